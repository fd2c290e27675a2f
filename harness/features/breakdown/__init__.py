"""Breakdowns: where the microseconds go that a guest adds to one I/O, with `--breakdown`.

After the rounds of a group, one I/O at a time is measured for each mode and workload (`measuring.py`), in slices with
and without tracing by turns. The kernels of host and guest trace it with tracefs, which needs no programs. The duration
of each layer, without that of the layer below it, is a part of the latency (`parts.py`, which also has what
results.json stores under `breakdowns`); `report.py` is the part of the report. Plans, and the measuring of rounds, know
nothing of it: its time is added to that of a plan, and its records are not cells.
"""

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
