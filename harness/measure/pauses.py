"""How long the pause after a slice must be, so that its last I/Os complete before the next slice starts. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from statistics import median

from harness.model.cell import Arm
from harness.model.job import Job
from harness.results import Measurement
from harness.scenario.timetable import BACKUP_TAIL, drain_seconds

_SLOWEST_IOPS = 2500.0
"""I/Os per second that a solid-state disk, or its guest, completes at least."""
_SLOWEST_IOPS_ROTATIONAL = 80.0
_DEEP = 32
"""With more I/Os in flight, a hard disk sorts them, and completes at least so many:"""
_SLOWEST_IOPS_DEEP = 160.0
_LONG_PAUSE = 0.5
"""Seconds. If a job needs longer pauses than this, each arm has its own: the others need not wait for the slowest."""
_OF_ARM = 1.5
"""How much longer the last I/Os of an arm may take than in its few slices so far."""
UNKNOWN_JITTER = 0.1
"""Seconds by which starts of slices may differ from their planned times, before any was measured."""
FEW_JITTER = 0.05
"""The least jitter after fewer than _ONE_IN pairs of slices, which may be exact by chance."""
LEAST_JITTER = 0.02
_ONE_IN = 50
"""The pauses are too short for one slice in so many."""
_HICCUP = 10
"""Of more values than this, the largest is left out."""
_USUAL = 3
"""So many pairs of slices show what is usual for them."""
MOST_AFTER_BACKUP = 10.0
"""Seconds. A backup that takes longer to end voids the next slice."""
_LONGER = 1.2
"""How much longer the end of a backup may take than of those before."""
MOST_JITTER = 0.5
"""Seconds. A machine that hung for longer needs no longer pauses: its slices are measured again."""


class Pauses:
    """The pauses between the slices of a group. Each timetable that is measured makes them more exact.

    When a slice ends, fio waits for the I/Os in flight. Before the first timetable, this time is estimated from the
    queue depth and the kind of disk. After that, the slices of the job show it, separately on the host and in guests,
    where it is longer, and separately for each arm if it is long. The starts of slices differ from their planned times,
    and the last round shows by how much. Both
    allow for all but one slice in 50.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, bool], list[float]] = {}
        """How long the slices took, by the job's id and whether they ran in a guest."""
        self._of_arm: dict[tuple[str, str], list[float]] = {}
        """The same by the job's id and the arm's."""
        self._cancelled: list[float] = []
        """How long after its slice each backup, and the last I/O beside it, ended."""
        self._round = 0
        self._closer: list[float] = []
        """By how much closer than usual two successive starts of the last round came."""
        self.jitter = UNKNOWN_JITTER
        """Seconds by which two successive slices of the last round started closer to each other than is usual there."""

    def learn(self, timetable: Sequence[Measurement]) -> None:
        """Take the measurements of a timetable into account. They are in the order of time, and at least one."""
        for measurement in timetable:
            if measurement.backup is not None:
                self._cancelled.append(min(measurement.backup.after, MOST_AFTER_BACKUP))
                continue
            longest = max([measurement.seconds, *(part.seconds for part in measurement.parts)])
            self._seconds.setdefault((measurement.job, measurement.in_guest), []).append(longest)
            self._of_arm.setdefault((measurement.job, measurement.arm), []).append(longest)
        if timetable[0].round != self._round:
            self._round, self._closer = timetable[0].round, []
        self._closer += [-deviation for deviation in _compute_deviations(timetable)]
        self.jitter = _jitter(self._closer)

    def after(self, job: Job, *, in_guest: bool, rotational: bool, arm: Arm | None = None) -> float:
        """Seconds between a slice of `job` and the next slice. `rotational` means that the disk is a hard disk.

        With `arm`, after a slice of this arm.
        """
        if seconds := self._seconds.get((job.id, in_guest)):
            longest = max(_find_most(seconds) - job.seconds, 0.0)
            of_arm = self._of_arm.get((job.id, arm.id)) if arm is not None else None
            if of_arm and longest > _LONG_PAUSE:
                longest = min(longest, _OF_ARM * max(_find_most(of_arm) - job.seconds, 0.0))
            return self.jitter + longest
        of_hard_disk = _SLOWEST_IOPS_DEEP if job.depth > _DEEP else _SLOWEST_IOPS_ROTATIONAL
        return self.jitter + drain_seconds(job, arm, of_hard_disk if rotational else _SLOWEST_IOPS)

    @property
    def after_backup(self) -> float:
        """Seconds after a slice with a backup, in addition to the pause after its job, until nothing of both runs."""
        return max([BACKUP_TAIL, *self._cancelled]) * (_LONGER if self._cancelled else 1)


def _jitter(closer: Sequence[float]) -> float:
    if not closer:
        return UNKNOWN_JITTER
    least = LEAST_JITTER if len(closer) >= _ONE_IN else FEW_JITTER
    return min(max(_find_most(closer), least), MOST_JITTER)


def _compute_deviations(timetable: Sequence[Measurement]) -> list[float]:
    """By how much more time than usual passed from each start to the next one, where it is known what is usual.

    In one timetable, the same pause follows each slice of a job on a machine. Then comes the ramp of the other slice.
    Before and after a slice with a backup, there is more time. A machine whose slices are all early or late is no
    deviation: the next timetable corrects it.
    """
    planned: dict[Hashable, list[tuple[tuple[bool, bool], float]]] = {}
    for one, other in pairwise(timetable):
        same = (one.job, one.in_guest, other.wall, one.backup is None, other.backup is None)
        planned.setdefault(same, []).append(((one.in_guest, other.in_guest), other.started - one.started))
    between: dict[tuple[bool, bool], list[float]] = {}
    for several in planned.values():
        if len(several) >= _USUAL:
            usual = median(apart for _, apart in several)
            for places, apart in several:
                between.setdefault(places, []).append(apart - usual)
    closer: list[float] = []
    for deviations in between.values():
        usual = median(deviations) if len(deviations) >= _USUAL else 0.0
        closer += [deviation - usual for deviation in deviations]
    return closer


def _find_most(values: Sequence[float]) -> float:
    """The largest value, without one in _ONE_IN. Of more than _HICCUP, one is left out: it may be a single hiccup."""
    left_out = max((len(values) - 1) // _ONE_IN, int(len(values) > _HICCUP))
    return sorted(values, reverse=True)[left_out]
