"""What the feature adds to the kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.feature import Feature, FeatureRecords, FeatureTables, ReportPlace
from harness.features.decompose.records import DecompositionRecord, decompose_run
from harness.features.decompose.request import Decomposition, find_step_problems, rename_arms

if TYPE_CHECKING:
    from harness.report.blocks import Block
    from harness.report.section import Section


def _yield_blocks(section: Section) -> Iterable[Block]:
    from harness.features.decompose.report import waterfall_blocks

    return waterfall_blocks(section)


FEATURE = Feature(
    name="decompose",
    tables=FeatureTables(
        key="decompose",
        table=Decomposition,
        what="a decomposition",
        sets=("steps", "workloads"),
        find_problems=find_step_problems,
        evaluated="decompositions",
        rename_arms=rename_arms,
        shares_rounds=True,
    ),
    records=(
        FeatureRecords(
            key="decompositions",
            record=DecompositionRecord,
            place=6,
            description="One entry per decomposition of a scenario and job.",
            compute=decompose_run,
        ),
    ),
    contents={ReportPlace.PARTS: _yield_blocks},
)
