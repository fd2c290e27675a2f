"""What the feature adds to the kernel."""

from __future__ import annotations

from harness.feature import Feature, FeatureRecords, FeatureTables
from harness.features.decompose.records import Decomposition, find_step_problems, rename_arms


def _load_records() -> tuple[FeatureRecords, ...]:
    from harness.features.decompose.records import DecompositionRecord, decompose_run

    return (
        FeatureRecords(
            key="decompositions",
            record=DecompositionRecord,
            place=6,
            description="One entry per decomposition of a scenario and job.",
            compute=decompose_run,
        ),
    )


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
    load_records=_load_records,
)
