"""What the feature adds to the kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.feature import Feature, FeatureRecords, FeatureTables
from harness.features.commands.request import (
    CommandRecord,
    OwnCommand,
    find_problems,
    note_ignored_flushes,
    plan_commands,
)

if TYPE_CHECKING:
    from harness.measure.rounds import FollowingSeries, SeriesContext
    from harness.measure.series import PreparedGroup


def _follow(context: SeriesContext, prepared: PreparedGroup) -> Iterable[FollowingSeries]:
    from harness.features.commands.running import follow

    return follow(context, prepared)


FEATURE = Feature(
    name="commands",
    tables=FeatureTables(
        key="workload",
        table=OwnCommand,
        what="a command",
        sets=("modes",),
        find_problems=find_problems,
    ),
    follow_ups=plan_commands,
    follow=_follow,
    find_notes=note_ignored_flushes,
    load_records=lambda: (
        FeatureRecords(
            key="commands",
            record=CommandRecord,
            place=15,
            description="One entry per command of the scenario (`[workload.NAME]`) and mode; else empty.",
            in_journal=False,
            ends_follow_up=lambda _record: True,
        ),
    ),
)
