"""How long the pause after a slice must be, so that its last I/Os complete before the next slice starts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.model.job import Job
from harness.results import Measurement
from harness.scenario.timetable import GUARD_SECONDS

_SLOWEST_IOPS = 2500.0
"""I/Os per second that a solid-state disk, or its guest, completes at least."""
_SLOWEST_IOPS_ROTATIONAL = 80.0


def pause_after(job: Job, measured: Sequence[Measurement], *, rotational: bool) -> float:
    """Seconds between a slice of `job` and the next slice.

    When a slice ends, fio waits for the I/Os in flight. Before the first round, this time is estimated from the queue
    depth and the kind of disk. After that, the longest one of the job in `measured` counts.
    """
    late = [each.seconds - job.seconds for each in measured if each.job == job.id]
    if late:
        return GUARD_SECONDS + max(*late, 0.0)
    return GUARD_SECONDS + job.depth / (_SLOWEST_IOPS_ROTATIONAL if rotational else _SLOWEST_IOPS)
