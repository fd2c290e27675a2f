"""What the feature adds to the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import Feature, FeatureTables
from harness.features.variants.request import Variant, VariantName, adapt, check_tables

if TYPE_CHECKING:
    pass


FEATURE = Feature(
    name="variants",
    tables=FeatureTables(
        key="variant",
        table=Variant,
        what="variants",
        name_type=VariantName,
        in_lab=True,
        check_tables=check_tables,
        adapt=adapt,
    ),
)
