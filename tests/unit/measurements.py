"""Measurements for tests, and what stand-in measurers have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from harness.lab.transport.base import Runner
from harness.measure.series import LabFound, PreparedGroup, RoundSegment
from harness.measure.traced_slices import TracingRequest
from harness.model.counters import Counters
from harness.model.job import Job
from harness.results import ConditioningRecord, Measurement, TracedBlock
from harness.scenario.plan import Group, Plan
from harness.scenario.timetable import Slice

A_SLICE = Measurement(
    group="g",
    round=1,
    arm="host",
    repeat=1,
    job="randread-4k-qd32",
    started=1000.0,
    seconds=1.0,
    wall=1.0,
    metrics={},
    io_bytes=4096,
    raw="raw/1.json",
)
"""A measurement to be changed with `replace`: a test names what matters to it."""


def as_planned(group: Group, segment: RoundSegment, planned: Slice, metrics: Mapping[str, float]) -> Measurement:
    """The measurement of a slice that ran exactly as planned, with these metrics."""
    return replace(
        A_SLICE,
        group=group.id,
        round=segment.number,
        block=planned.block,
        boot=segment.boot,
        arm=planned.arm.id,
        repeat=planned.turn.again,
        job=planned.job.id,
        rate=planned.job.rate,
        started=planned.start,
        seconds=planned.job.seconds,
        wall=planned.job.wall,
        metrics=dict(metrics),
    )


def at_full_speed(job: Job, arm: str, number: int, iops: float, counters: Counters) -> Measurement:
    """The only slice of a round, with a full queue: its latency follows from its throughput."""
    return replace(
        A_SLICE,
        round=number,
        arm=arm,
        job=job.id,
        started=float(number),
        seconds=job.seconds,
        wall=job.wall,
        metrics={"iops": iops, "bw": iops * job.bs, "lat_mean": job.depth / iops},
        raw=f"raw/{number}-{arm.replace(':', '-')}-{job.id}.json",
        counters=counters,
    )


class StandIn:
    """What a measurer without a host has nothing to do for."""

    runner: Runner | None = None

    def prepare(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> PreparedGroup:  # noqa: ARG002
        return PreparedGroup(plan.span, ConditioningRecord("fill", None, (), None))

    def trace(self, group: Group, request: TracingRequest) -> Sequence[TracedBlock]:  # noqa: ARG002
        return ()

    def boot_again(self) -> None:
        pass

    def round_measured(self) -> None:
        pass

    def close_session(self) -> None:
        pass

    def close(self) -> None:
        pass
