"""The trials of a calibration: a device against itself, a known delay, series of short slices, and boots. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from harness.analysis.slices import LEAST_MEANS, SHORTEST_S
from harness.measure.pauses import Pauses
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.cell import Arm, Cell, Place
from harness.model.job import Job
from harness.model.mode import Mode
from harness.scenario.plan import Plan
from harness.scenario.setups import Group
from harness.scenario.timetable import ScheduledArm, Timetable, timetables

MIB = 1024**2
SPAN = 64 * MIB
"""Bytes of the disk that are filled and read."""
BLOCK = 4096
DEPTHS = (32, 1)
"""The iodepths of the groups that measure a device against itself, in turn, and of the series of short slices."""
LEAST_SLICES = 2 * LEAST_MEANS
"""Slices of a series that must count: two means of neighbours are compared at least so often."""

PASSTHROUGH = Mode("passthrough", Device(), Attach())
# Their names are part of the names of the disks on the host. The kernel accepts 31 characters there.
PLAIN = Mode("plain", Device(), Attach())
LATE = Mode("late", Device(), Attach())

SCENARIO = "calibration"
IN_MEMORY = "memory"
"""The name of the disk in the trials with a delay. It is not a disk of the lab file."""


@dataclass(frozen=True, slots=True)
class CalibrationSpec:
    """What to measure: `groups` of `rounds` blocks of a device against itself, and `repetitions` of the delay.

    Each repetition has `delay_rounds` blocks. `seconds` is the duration of each slice. Each series has `slices` of the
    shortest duration. Each of `boots` has `boot_rounds` blocks.
    """

    groups: int = 40
    rounds: int = 3
    repetitions: int = 5
    delay_rounds: int = 6
    seconds: float = 1.0
    slices: int = 120
    boots: int = 5
    boot_rounds: int = 5


@dataclass(frozen=True, slots=True)
class Trial:
    """One group, which is measured in one round of `rounds` blocks. All turns run the same job.

    `reboot`: the round begins with a new boot of the guest. At least `least` of its blocks must count.
    """

    group: Group
    turns: tuple[ScheduledArm, ...]
    rounds: int
    reboot: bool = False
    least: int = 2

    @property
    def job(self) -> Job:
        return self.group.jobs[0]

    @property
    def plan(self) -> Plan:
        """The trial as a plan."""
        return Plan(self.group.disk, (self.group,), 1, SPAN, write_rate=0, reboot=self.reboot)

    def tables(self, seed: int, number: int) -> list[Timetable]:
        """The timetables of round `number`. Their random order depends only on seed, group and round."""
        chance = random.Random(f"calibrate {seed} {self.group.id} {number}")
        return timetables({self.job: self.turns}, self.rounds, chance=chance, pause=self.pause)

    @staticmethod
    def pause(job: Job, arm: Arm) -> float:
        """The time after each slice. It does not depend on what was measured, so that all trials have the same."""
        return Pauses().after(job, in_guest=arm.in_guest, rotational=False)


def same_device_trials(spec: CalibrationSpec, disk: str) -> list[Trial]:
    """The guest's `disk` as two arms, `a` and `b`. All differences between them are noise."""
    arm = Arm(Place.GUEST, PASSTHROUGH)
    turns = (ScheduledArm(arm, 1, "a"), ScheduledArm(arm, 2, "b"))
    trials = []
    for number in range(spec.groups):
        job = _randread(DEPTHS[number % len(DEPTHS)], spec.seconds)
        cell = Cell(SCENARIO, disk, PASSTHROUGH, job)
        trials.append(Trial(Group(f"same{number + 1:02}-{job.id}", disk, SCENARIO, (cell,)), turns, spec.rounds))
    return trials


def delay_trials(spec: CalibrationSpec) -> list[Trial]:
    """Two disks in the guest, one of them with a delay. One request at a time."""
    return [_delay_trial(f"delay{number + 1:02}", Place.GUEST, spec) for number in range(spec.repetitions)]


def host_delay_trial(spec: CalibrationSpec) -> Trial:
    """The same two disks on the host, to check the delay itself."""
    return _delay_trial("delay-on-host", Place.HOST, spec)


def slice_trials(spec: CalibrationSpec, disk: str) -> list[Trial]:
    """Series of short slices that follow each other on one arm: host and guest, at each depth."""
    trials = []
    for place in (Place.HOST, Place.GUEST):
        for depth in DEPTHS:
            job = _randread(depth, SHORTEST_S)
            group = Group(f"slices-{place}-{job.id}", disk, SCENARIO, (Cell(SCENARIO, disk, PASSTHROUGH, job),))
            trials.append(Trial(group, (_turn(place),), spec.slices, least=LEAST_SLICES))
    return trials


def boot_trials(spec: CalibrationSpec, disk: str) -> list[Trial]:
    """The guest against the host, each time in a new boot."""
    job = _randread(DEPTHS[0], spec.seconds)
    cell = Cell(SCENARIO, disk, PASSTHROUGH, job)
    turns = (_turn(Place.HOST), _turn(Place.GUEST))
    return [
        Trial(Group(f"boot{number:02}-{job.id}", disk, SCENARIO, (cell,)), turns, spec.boot_rounds, reboot=True)
        for number in range(1, spec.boots + 1)
    ]


def _turn(place: Place) -> ScheduledArm:
    """The arm of the disk under test at this place, which is also the turn's name."""
    return ScheduledArm(Arm(place, PASSTHROUGH if place is Place.GUEST else None), name=str(place))


def _delay_trial(name: str, place: Place, spec: CalibrationSpec) -> Trial:
    job = _randread(1, spec.seconds)
    cells = tuple(Cell(SCENARIO, IN_MEMORY, mode, job) for mode in (PLAIN, LATE))
    # On the host there is only one arm. The name of the turn selects the disk.
    plain, late = (Arm(place, mode if place is Place.GUEST else None) for mode in (PLAIN, LATE))
    turns = (ScheduledArm(plain, 1, PLAIN.name), ScheduledArm(late, 2, LATE.name))
    return Trial(Group(f"{name}-{job.id}", IN_MEMORY, SCENARIO, cells), turns, spec.delay_rounds)


def _randread(iodepth: int, seconds: float) -> Job:
    return Job("randread", BLOCK, iodepth=iodepth, ramp=0.0, seconds=seconds)
