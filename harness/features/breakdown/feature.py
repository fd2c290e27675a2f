"""What the feature adds to the kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.feature import Feature, FeatureRecords, RunSwitch

if TYPE_CHECKING:
    from harness.lab.created import HostThing
    from harness.measure.rounds import FollowingSeries, SeriesContext
    from harness.measure.series import PreparedGroup
    from harness.scenario.plan import Plan

FLAG = "--breakdown"


def _estimate_seconds(plan: Plan) -> float:
    from harness.features.breakdown.measuring import estimate_seconds

    return estimate_seconds(plan)


def _follow(context: SeriesContext, prepared: PreparedGroup) -> Iterable[FollowingSeries]:
    from harness.features.breakdown.measuring import follow

    return follow(context, prepared)


def _list_things() -> tuple[type[HostThing], ...]:
    from harness.features.breakdown.measuring import TraceInstance

    return (TraceInstance,)


def _load_records() -> tuple[FeatureRecords, ...]:
    from harness.features.breakdown.parts import BreakdownRecord

    return (
        FeatureRecords(
            key="breakdowns",
            record=BreakdownRecord,
            place=13,
            description="One entry per mode and workload of a run with `--breakdown`; else empty.",
            in_journal=False,
        ),
    )


FEATURE = Feature(
    name="breakdown",
    switch=RunSwitch(
        flag=FLAG,
        help="also trace one I/O at a time of each mode and workload, and show where its microseconds go",
        estimate_seconds=_estimate_seconds,
    ),
    follow=_follow,
    list_things=_list_things,
    load_records=_load_records,
)
