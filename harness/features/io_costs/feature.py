"""What the feature adds to the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import Feature
from harness.features.io_costs.costs import account_blocks, cost_per_io, explain_faster

if TYPE_CHECKING:
    pass


FEATURE = Feature(
    name="io_costs",
    cost_per_io=cost_per_io,
    account_blocks=account_blocks,
    explain_faster=explain_faster,
)
