"""How long the pause after a slice must be, so that its last I/Os complete before the next slice starts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from harness.model.job import Job
from harness.results import Measurement
from harness.scenario.timetable import BACKUP_TAIL

_SLOWEST_IOPS = 2500.0
"""I/Os per second that a solid-state disk, or its guest, completes at least."""
_SLOWEST_IOPS_ROTATIONAL = 80.0
UNKNOWN_JITTER = 0.1
"""Seconds by which starts of slices may differ from their planned times, before any was measured."""
LEAST_JITTER = 0.02
MOST_AFTER_BACKUP = 10.0
"""Seconds. A backup that takes longer to end voids the next slice."""
_LONGER = 1.2
"""How much longer the end of a backup may take than of those before."""
MOST_JITTER = 0.5
"""Seconds. A machine that hung for longer needs no longer pauses: its slices are measured again."""


class Pauses:
    """The pauses between the slices of a group. Each timetable that is measured makes them more exact.

    When a slice ends, fio waits for the I/Os in flight. Before the first timetable, this time is estimated from the
    queue depth and the kind of disk. After that, the slices of the job show it. The starts of slices differ from their
    planned times, and the last round shows by how much. Both allow for all but one slice in 50.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}
        """How long the slices of each job took, by the job's id."""
        self._cancelled: list[float] = []
        """How long after its slice each backup, and the last I/O beside it, ended."""
        self._last: list[Sequence[Measurement]] = []
        """The timetables of the last round."""

    def learn(self, timetable: Sequence[Measurement]) -> None:
        """Take the measurements of a timetable into account. They are in the order of time, and at least one."""
        for each in timetable:
            if each.backup is not None:
                self._cancelled.append(min(each.backup.after, MOST_AFTER_BACKUP))
                continue
            longest = max([each.seconds, *(part.seconds for part in each.parts)])
            self._seconds.setdefault(each.job, []).append(longest)
        if self._last and self._last[-1][0].round != timetable[0].round:
            self._last = []
        self._last.append(timetable)

    def after(self, job: Job, *, rotational: bool) -> float:
        """Seconds between a slice of `job` and the next slice. `rotational` means that the disk is a hard disk."""
        if seconds := self._seconds.get(job.id):
            return self.jitter + max(_most(seconds) - job.seconds, 0.0)
        return self.jitter + job.depth / (_SLOWEST_IOPS_ROTATIONAL if rotational else _SLOWEST_IOPS)

    @property
    def after_backup(self) -> float:
        """Seconds after a slice with a backup, in addition to the pause after its job, until nothing of both runs."""
        return max([BACKUP_TAIL, *self._cancelled]) * (_LONGER if self._cancelled else 1)

    @property
    def jitter(self) -> float:
        """Seconds by which two successive slices of the last round started closer to each other than is usual there."""
        closer: list[float] = []
        for timetable in self._last:
            # In one timetable, the same pause follows each slice of a job. Then comes the ramp of the other slice.
            # Before and after a slice with a backup, there is more time.
            apart: dict[tuple[str, float, bool, bool], list[float]] = {}
            for one, other in pairwise(timetable):
                apart.setdefault((one.job, other.wall, one.backup is None, other.backup is None), []).append(
                    other.started - one.started
                )
            closer += [median(several) - each for several in apart.values() if len(several) > 2 for each in several]
        return min(max(_most(closer), LEAST_JITTER), MOST_JITTER) if closer else UNKNOWN_JITTER


def _most(values: Sequence[float]) -> float:
    """The largest value, without one in 50."""
    return sorted(values, reverse=True)[(len(values) - 1) // 50]
