"""What the benchmark compares, and in which slices each design measures it. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from harness.features.calibrate.measuring import BLOCK, DELAY_NS, LATE, PASSTHROUGH, PLAIN
from harness.measure.phases import UNKNOWN_JITTER, Pauses
from harness.model.job import Job, Workload
from harness.model.mode import Arm, Place
from harness.scenario.timetable import ScheduledArm, Slice, Timetable, timetables

WORKLOADS = (
    Workload("randread", BLOCK),
    Workload("randwrite", BLOCK),
    Workload("randrw", BLOCK, read_share=0.5),
)
MOST_LATE_SECONDS = 0.5
"""The longest pause for the end of a slice's last I/Os. A slice that ends later overlaps the next one."""


class Design(StrEnum):
    """How the arms of a comparison share the time."""

    OLD = "old"
    """Each arm runs all of its jobs, one after the other, once a round."""
    SLICES = "slices"
    """The arms alternate in short slices, and the blocks of a job are spread over the round."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two turns that run the same jobs. Their true difference is known.

    `added_s` is the time that the second turn adds to each I/O, in seconds. None: both are the same disk, and the
    true overhead is 0.
    """

    name: str
    turns: tuple[ScheduledArm, ScheduledArm]
    iodepth: int
    added_s: float | None = None


_HOST = Arm(Place.HOST)
_GUEST = Arm(Place.GUEST, PASSTHROUGH)
COMPARISONS = (
    Comparison("host against host", (ScheduledArm(_HOST, 1, "host-a"), ScheduledArm(_HOST, 2, "host-b")), iodepth=32),
    Comparison(
        "guest against itself", (ScheduledArm(_GUEST, 1, "guest-a"), ScheduledArm(_GUEST, 2, "guest-b")), iodepth=32
    ),
    # With one request at a time, the disks' own response times are known: see docs/calibration.md.
    Comparison(
        "delay in the guest",
        (ScheduledArm(Arm(Place.GUEST, PLAIN), name="plain"), ScheduledArm(Arm(Place.GUEST, LATE), name="late")),
        iodepth=1,
        added_s=DELAY_NS / 1e9,
    ),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the unit before showed of the time that slices need beside their own. In seconds."""

    jitter: float = UNKNOWN_JITTER
    """By how much their starts differ from the planned times."""
    late: Mapping[str, float] = field(default_factory=dict)
    """How much later than requested the slices of each job ended, by the job's id."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long a group of one comparison and job takes, in either design.

    With slices, it has `blocks` blocks of `slice_s` seconds. With the old design it has `rounds` rounds, in which each
    arm runs the job for as long as gives the same wall time.
    """

    slice_s: float = 0.2
    blocks: int = 12
    rounds: int = 3

    def samples(self, design: Design) -> int:
        """The number of pairs of a group."""
        return self.rounds if design is Design.OLD else self.blocks

    def jobs(self, design: Design, seen: Seen) -> dict[Comparison, list[Job]]:
        """The jobs of each comparison."""
        return {
            each: [self._job(workload, each.iodepth, design, seen) for workload in WORKLOADS] for each in COMPARISONS
        }

    def tables(self, design: Design, seen: Seen, chance: random.Random) -> list[Timetable]:
        """The timetables of one group of each comparison and workload, which are measured together."""
        jobs = self.jobs(design, seen)
        if design is Design.OLD:
            return [_in_series(list(self._old_rounds(jobs, chance)), seen)]
        turns: dict[Job, list[ScheduledArm]] = {}
        for comparison, several in jobs.items():
            for job in several:
                turns.setdefault(job, []).extend(comparison.turns)
        return timetables(turns, self.blocks, chance=chance, pause=lambda job, _arm: pause(job, seen))

    def seconds(self, design: Design, seen: Seen) -> float:
        """How long the timetables of `design` take."""
        return sum(table.seconds for table in self.tables(design, seen, random.Random(0)))

    def _job(self, workload: Workload, iodepth: int, design: Design, seen: Seen) -> Job:
        """The job of a slice. Its seconds are whole milliseconds, because fio takes these."""
        job = workload.job(iodepth, ramp=0.0, seconds=self.slice_s)
        if design is Design.SLICES:
            return job
        seconds = self.blocks * (self.slice_s + pause(job, seen)) / self.rounds - pause(job, seen)
        return workload.job(iodepth, ramp=0.0, seconds=round(seconds, 3))

    def _old_rounds(
        self, jobs: Mapping[Comparison, Sequence[Job]], chance: random.Random
    ) -> Iterator[tuple[int, ScheduledArm, Job]]:
        """Round, turn and job of each slice: the arms in random order, all of them with the same order of jobs."""
        turns = [(turn, each) for each in COMPARISONS for turn in each.turns]
        for number in range(1, self.rounds + 1):
            order = chance.sample(range(len(WORKLOADS)), len(WORKLOADS))
            for turn, comparison in chance.sample(turns, len(turns)):
                for at in order:
                    yield number, turn, jobs[comparison][at]


def pause(job: Job, seen: Seen) -> float:
    """Seconds between a slice of `job` and the next slice, in both designs."""
    if job.id not in seen.late:
        return Pauses().after(job, in_guest=True, rotational=False)
    return seen.jitter + min(seen.late[job.id], MOST_LATE_SECONDS)


def _in_series(planned: Sequence[tuple[int, ScheduledArm, Job]], seen: Seen) -> Timetable:
    slices, now = [], 0.0
    for number, turn, job in planned:
        slices.append(Slice(number, turn, job, now))
        now = slices[-1].end + pause(job, seen)
    return Timetable(tuple(slices), now)
