"""How long the pause after a slice must be, so that its last I/Os complete before the next slice starts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from harness.model.job import Job
from harness.results import Measurement

_SLOWEST_IOPS = 2500.0
"""I/Os per second that a solid-state disk, or its guest, completes at least."""
_SLOWEST_IOPS_ROTATIONAL = 80.0
UNKNOWN_JITTER = 0.1
"""Seconds by which starts of slices may differ from their planned times, before any was measured."""
LEAST_JITTER = 0.02
MOST_JITTER = 0.5
"""Seconds. A machine that hung for longer needs no longer pauses: its slices are measured again."""


def pause_after(job: Job, measured: Sequence[Measurement], *, rotational: bool) -> float:
    """Seconds between a slice of `job` and the next slice.

    When a slice ends, fio waits for the I/Os in flight. Before the first round, this time is estimated from the queue
    depth and the kind of disk. After that, the job's slices in `measured` show it. The starts of slices differ from
    their planned times, and the last round in `measured` shows by how much. Both allow for all but one slice in 50.
    `measured` are the measurements of the group, in the order of time.
    """
    late = [each.seconds - job.seconds for each in measured if each.job == job.id]
    if late:
        return _jitter(measured) + max(_most(late), 0.0)
    return _jitter(measured) + job.depth / (_SLOWEST_IOPS_ROTATIONAL if rotational else _SLOWEST_IOPS)


def _jitter(measured: Sequence[Measurement]) -> float:
    """Seconds by which two successive slices of the last round started closer to each other than is usual there."""
    apart: dict[tuple[str, str], list[float]] = {}
    for one, other in pairwise(each for each in measured if each.round == measured[-1].round):
        # In one round, the planned time between slices of these two jobs is always the same.
        apart.setdefault((one.job, other.job), []).append(other.started - one.started)
    closer = [median(several) - each for several in apart.values() if len(several) > 2 for each in several]
    return min(max(_most(closer), LEAST_JITTER), MOST_JITTER) if closer else UNKNOWN_JITTER


def _most(values: Sequence[float]) -> float:
    """The largest value, without one in 50."""
    return sorted(values, reverse=True)[(len(values) - 1) // 50]
