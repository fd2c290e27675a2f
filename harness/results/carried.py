"""Whether a slice depends on the arm that ran before it: a cache that drains, a garbage collection. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from harness.analysis import Observation, find_carry_over
from harness.model.job import Job
from harness.results.cells import LongerSlices
from harness.results.journal import Measurement
from harness.results.records import CarryOverRecord

ERROR_RATE = 0.01
"""How often a group without any carry-over shows some, over all its jobs and looks together."""
DISCARDED_SLICES = (4, 16)
"""The time at the beginning of a slice that does not count if slices depend on the arm before, in times of the measured
time. If the first is not enough, the second follows. In this time, the arm's own load replaces what the arm before has
left in a cache.
"""
LEAST_SECONDS = 0.5
"""The same for slices that are shorter than this: how long a cache needs does not depend on the length of a slice."""
MATTERS = 1 / 3
"""The smallest effect for which a job is measured again, as a share of the target of the overhead's half width.

The whole interval of the effect must be beyond it: by noise alone, the largest of several estimates mostly is.
In blocks of random order, an effect changes the overhead by about half of it: at most a sixth of the target.
"""
_TARGET = 0.10
"""The target of a plan without one: a share, as `smoke` promises."""
MOST_APART_SECONDS = 1.0
"""Between slices that are further apart, another timetable begins: no arm ran directly before."""


def find_carry_overs(
    measurements: Sequence[Measurement], jobs: Iterable[Job], *, target: float | None = None, looks: int = 1
) -> tuple[CarryOverRecord, ...]:
    """What each job of one group shows about carry-over, by its headline metric. Jobs with too few slices are left out.

    `measurements` are those of the group in the order of time. A job whose slices became longer is tested once for each
    length, the shortest first. `target` is the half width of the overhead's interval that is wanted, as a share.
    `looks` is how often the group is tested at most, while it is measured.
    """
    least = MATTERS * (_TARGET if target is None else target)
    tests = []
    for job in jobs:
        series = sorted({measurement.discarded_s for measurement in measurements if measurement.job == job.id})
        tests += [
            (job, seconds, find_carry_over(_collect_observations(measurements, job, seconds))) for seconds in series
        ]
    enough = len({job for job, _, tested in tests if tested.enough})
    error_rate = ERROR_RATE / (max(enough, 1) * looks)
    return tuple(
        CarryOverRecord(
            job=job.id,
            discarded_s=seconds,
            p_value=tested.p_value,
            effect=tested.effect,
            cause=tested.cause,
            shown=tested.shown(error_rate),
            at_least=tested.at_least(error_rate),
            matters=tested.at_least(error_rate) >= least,
        )
        for job, seconds, tested in tests
        if tested.p_value is not None and tested.effect is not None and tested.cause is not None
    )


def find_longer_slices(
    records: Sequence[CarryOverRecord], measurements: Iterable[Measurement], jobs: Iterable[Job]
) -> dict[Job, float]:
    """The jobs that need longer slices, with the seconds at the beginning of each slice that are to be discarded.

    `records` is what `find_carry_overs` returned for the group with these `measurements`. A job is left out if the
    effect is too small to matter, if its longest slices are too few for a test, or if the last of DISCARDED_SLICES was
    tried.
    """
    last = {record.job: record for record in records}
    reached: dict[str, float] = {}
    for measurement in measurements:
        reached[measurement.job] = max(measurement.discarded_s, reached.get(measurement.job, 0.0))
    needed = {}
    for job in jobs:
        tested = last.get(job.id)
        if tested is None or not (tested.shown and tested.matters) or tested.discarded_s < reached[job.id]:
            continue
        longer = (times * max(job.seconds, LEAST_SECONDS) for times in DISCARDED_SLICES)
        if (seconds := next((duration for duration in longer if duration > tested.discarded_s), None)) is not None:
            needed[job] = seconds
    return needed


def split_by_length(measurements: Iterable[Measurement]) -> tuple[list[Measurement], list[Measurement]]:
    """The measurements that count, and those that longer slices of the same job and group replaced.

    Of the replaced ones, only the shortest slices are returned: the result without any discarding.
    """
    several = list(measurements)
    lengths: dict[tuple[str, str], set[float]] = {}
    for slice_ in several:
        lengths.setdefault((slice_.group, slice_.job), set()).add(slice_.discarded_s)
    counted, replaced = [], []
    for slice_ in several:
        of_job = lengths[slice_.group, slice_.job]
        if slice_.discarded_s == max(of_job):
            counted.append(slice_)
        elif slice_.discarded_s == min(of_job):
            replaced.append(slice_)
    return counted, replaced


def note_carry_over(records: Sequence[CarryOverRecord], longer: LongerSlices | None) -> list[str]:
    """What a reader of a cell must know. `records` is what the cell's job shows, the shortest slices first."""
    shown = [record for record in records if record.shown]
    if not shown:
        return []
    effect = (
        f"a slice is {shown[-1].effect:+.1%} different (at least {shown[-1].at_least:.1%}) "
        f"if {shown[-1].cause} ran before it"
    )
    if longer is None:
        so = (
            ", so the arms disturb each other"
            if shown[-1].matters
            else ": not shown to be large enough to measure it again"
        )
        return [f"carry-over: {effect}{so}"]
    before = f"the overhead with all of each slice is {_format_percent(longer.naive.point)}"
    if longer.naive.low is not None and longer.naive.high is not None:
        before += f" [{_format_percent(longer.naive.low)}, {_format_percent(longer.naive.high)}]"
    if shown[-1].discarded_s >= longer.discarded_s:
        still = f"although its first {longer.discarded_s:g} s do not count, so the arms disturb each other"
        return [f"carry-over: {effect}, {still}; {before}; let slices run for longer (`ramp` of the profile)"]
    doubt = "" if records[-1].discarded_s >= longer.discarded_s else "; the longer slices are too few for another test"
    return [f"carry-over: {effect}, so the first {longer.discarded_s:g} s of each slice do not count; {before}{doubt}"]


def _format_percent(share: float) -> str:
    return f"{share:.1%}"


def _collect_observations(measurements: Sequence[Measurement], job: Job, discarded_s: float) -> list[Observation]:
    """The slices of the job with this length, if another slice ran directly before.

    An arm that always follows itself shows nothing: its slices have a timetable of their own. It is left out.
    """
    blocks: dict[tuple[int, int], int] = {}
    observations = []
    for before, slice_ in pairwise(measurements):
        value = slice_.metrics.get(job.headline, 0.0)
        if slice_.job != job.id or slice_.discarded_s != discarded_s or slice_.overlap is not None or value <= 0:
            continue
        if _measure_gap(before, slice_) > MOST_APART_SECONDS:
            continue
        block = blocks.setdefault((slice_.round, slice_.block), len(blocks))
        other = before.job != job.id
        observations.append(Observation(block, slice_.arm, before.arm, math.log(value), after_other_job=other))
    alternating = {observation.arm for observation in observations if observation.previous != observation.arm}
    return [observation for observation in observations if observation.arm in alternating]


def _measure_gap(before: Measurement, slice_: Measurement) -> float:
    """Seconds from the end of a slice to the start of the next one, or of its ramp."""
    ramp = max(slice_.wall - slice_.seconds, 0.0)
    return slice_.started - ramp - (before.started + before.seconds)
