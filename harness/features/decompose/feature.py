"""What the feature adds to the kernel."""

from __future__ import annotations

from harness.feature import Feature, FeatureRecords, FeatureTables
from harness.features.decompose.records import (
    Decomposition,
    DecompositionRecord,
    decompose_run,
    find_step_problems,
    rename_arms,
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
    records=(
        FeatureRecords(
            key="decompositions",
            record=DecompositionRecord,
            place=6,
            description="One entry per decomposition of a scenario and job.",
            compute=decompose_run,
        ),
    ),
)
