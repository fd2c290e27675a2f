"""What the feature adds to the kernel."""

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
