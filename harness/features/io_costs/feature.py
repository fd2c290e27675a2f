"""What the feature adds to the kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.feature import Feature, ReportPlace
from harness.features.io_costs.costs import account_blocks, cost_per_io, explain_faster

if TYPE_CHECKING:
    from harness.report.blocks import Block
    from harness.report.section import Section


def _yield_blocks(section: Section) -> Iterable[Block]:
    from harness.features.io_costs.report import cost_blocks

    return cost_blocks(section)


FEATURE = Feature(
    name="io_costs",
    cost_per_io=cost_per_io,
    account_blocks=account_blocks,
    explain_faster=explain_faster,
    contents={ReportPlace.COSTS: _yield_blocks},
)
