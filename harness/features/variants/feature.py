"""What the feature adds to the kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.feature import STACKS, Feature, FeatureTables, ReportPlace
from harness.features.variants.request import Variant, VariantName, adapt, check_tables

if TYPE_CHECKING:
    from harness.report.blocks import Block
    from harness.report.section import Section


def _yield_blocks(section: Section) -> Iterable[Block]:
    from harness.features.variants.report import variant_blocks

    return variant_blocks(section)


FEATURE = Feature(
    name="variants",
    subject=STACKS,
    tables=FeatureTables(
        key="variant",
        table=Variant,
        what="variants",
        name_type=VariantName,
        in_lab=True,
        check_tables=check_tables,
        adapt=adapt,
    ),
    contents={ReportPlace.DIFFERENCES: _yield_blocks},
)
