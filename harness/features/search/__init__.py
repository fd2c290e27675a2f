"""Searches for the highest load at which a latency stays below a bound: `[search.NAME]` of a scenario.

A search follows the rounds of a group, and has rounds of its own (`measuring.py`). Each measures the arms at rates
that follow from what the rounds before showed (`curve.py`): first at full speed and at shares of it, then between the
fastest rate that keeps the bound and the slowest one that does not. Latency over load is a monotone curve, and the
highest load is where it reaches the bound. `request.py` is the table of a scenario, what the search costs in a plan,
and what results.json has under `searches`; `report.py` is the part of the report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import Feature, FeatureRecords, FeatureTables, import_later
from harness.features.search.request import Search, SearchRecord, find_problems, plan_searches

if TYPE_CHECKING:
    from harness.features.search import measuring
else:
    (measuring,) = import_later(__name__, "measuring")


FEATURE = Feature(
    name="search",
    brings=(
        FeatureTables(
            key="search",
            table=Search,
            what="a search",
            sets=("modes",),
            find_problems=find_problems,
            evaluated="searches",
        ),
    ),
    follow_ups=plan_searches,
    follow=lambda context, _prepared: measuring.follow(context),
    load_records=lambda: (
        FeatureRecords(
            key="searches",
            record=SearchRecord,
            place=8,
            description="One entry per search for the highest load and group of cells.",
            ends_follow_up=lambda record: record.stopped is not None,
        ),
    ),
)
