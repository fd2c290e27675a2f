"""How long the pause after a slice must be, so that its last I/Os complete before the next slice starts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from harness.model.job import Job
from harness.results import Measurement
from harness.scenario.timetable import GUARD_SECONDS

_SLOWEST_IOPS = 2500.0
"""I/Os per second that a solid-state disk, or its guest, completes at least."""
_SLOWEST_IOPS_ROTATIONAL = 80.0
_LONGEST_SLIP = 0.5
"""Seconds that a round adds to the pause at most. A machine that hung once for longer needs no longer pauses."""


def pause_after(job: Job, measured: Sequence[Measurement], *, rotational: bool) -> float:
    """Seconds between a slice of `job` and the next slice.

    When a slice ends, fio waits for the I/Os in flight. Before the first round, this time is estimated from the queue
    depth and the kind of disk. After that, the job's slices in `measured` show it. If slices overlapped, because they
    started late, the pause grows. Both allow for all but one slice in 50. `measured` are the measurements of the group,
    in the order of time.
    """
    late = [each.seconds - job.seconds for each in measured if each.job == job.id]
    guard = GUARD_SECONDS + _slipped(measured)
    if late:
        return guard + max(_most(late), 0.0)
    return guard + job.depth / (_SLOWEST_IOPS_ROTATIONAL if rotational else _SLOWEST_IOPS)


def _slipped(measured: Sequence[Measurement]) -> float:
    """Seconds by which slices overlapped, as the sum over the rounds: each round had the pause of the rounds before."""
    rounds: dict[int, list[float]] = {}
    for one, other in pairwise(measured):
        if one.round == other.round:
            # A late end has been allowed for already.
            end = one.started + min(one.seconds, one.wall - one.discarded_s)
            overlap = end - (other.started - other.discarded_s)
            rounds.setdefault(one.round, []).append(min(max(overlap, 0.0), _LONGEST_SLIP))
    return sum(map(_most, rounds.values()))


def _most(values: Sequence[float]) -> float:
    """The largest value, without one in 50."""
    return sorted(values, reverse=True)[(len(values) - 1) // 50]
