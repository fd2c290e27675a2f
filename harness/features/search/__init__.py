"""Searches for the highest load at which a latency stays below a bound: `[search.NAME]` of a scenario.

A search follows the rounds of a group, and has rounds of its own (`measuring.py`). Each measures the arms at rates
that follow from what the rounds before showed (`curve.py`): first at full speed and at shares of it, then between the
fastest rate that keeps the bound and the slowest one that does not. Latency over load is a monotone curve, and the
highest load is where it reaches the bound. `request.py` is the table of a scenario, what the search costs in a plan,
and what results.json has under `searches`; `report.py` is the part of the report.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.feature import Feature, FeatureRecords, FeatureTables
from harness.features.search.request import Search, SearchRecord, find_problems, plan_searches

if TYPE_CHECKING:
    from harness.measure.rounds import FollowingSeries, SeriesContext
    from harness.measure.series import PreparedGroup


def _follow(context: SeriesContext, _prepared: PreparedGroup) -> Iterable[FollowingSeries]:
    from harness.features.search.measuring import follow

    return follow(context)


FEATURE = Feature(
    name="search",
    tables=FeatureTables(
        key="search",
        table=Search,
        what="a search",
        sets=("modes",),
        find_problems=find_problems,
        evaluated="searches",
    ),
    follow_ups=plan_searches,
    follow=_follow,
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
