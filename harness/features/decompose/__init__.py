"""Decompositions split the latency between the bare host and a guest into steps: `[decompose.NAME]` of a scenario.

A step is an arm of the scenario that differs from the arm before it in one thing, which `records.py` checks and names.
Each step is a contrast of two arms in the blocks that all arms of the decomposition share, so the steps add up to the
whole (results.json has them under `decompositions`). `report.py` shows them as a waterfall. All cells of a scenario
with decompositions get the same rounds.
"""

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
    brings=(
        FeatureTables(
            key="decompose",
            table=Decomposition,
            what="a decomposition",
            sets=("steps", "workloads"),
            find_problems=find_step_problems,
            evaluated="decompositions",
            rename_arms=rename_arms,
            shares_rounds=True,
        ),
    ),
    load_records=lambda: (
        FeatureRecords(
            key="decompositions",
            record=DecompositionRecord,
            place=6,
            description="One entry per decomposition of a scenario and job.",
            compute=decompose_run,
        ),
    ),
)
