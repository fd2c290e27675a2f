"""What a calibration measures: arms that differ by nothing, and arms that differ by a delay that we set. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from harness.measure.measurer import Turn
from harness.model.attach import Attach
from harness.model.job import Job
from harness.model.layout import Device
from harness.model.mode import Arm, Cell, Mode, Place
from harness.scenario.plan import Group, Plan

MIB = 1024**2
SPAN = 64 * MIB
"""Bytes of the disk that are filled and read."""
BLOCK = 4096
DEPTHS = (32, 1)
"""The iodepths that the groups of a device against itself take in turn."""

PASSTHROUGH = Mode("passthrough", Device(), Attach())
# Their names are part of the disks' on the host, of which the kernel takes 31 characters.
PLAIN = Mode("plain", Device(), Attach())
LATE = Mode("late", Device(), Attach())

SCENARIO = "calibration"
IN_MEMORY = "memory"
"""What the disk of the delay's trials is called, which is none of the lab's."""


@dataclass(frozen=True, slots=True)
class CalibrationSpec:
    """What to measure: `groups` of `rounds` of a device against itself, `repetitions` of `delay_rounds` of the delay.

    `seconds` is what each job takes.
    """

    groups: int = 40
    rounds: int = 3
    repetitions: int = 5
    delay_rounds: int = 6
    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One group of rounds over turns that all run the same job."""

    group: Group
    turns: tuple[Turn, ...]
    rounds: int

    @property
    def job(self) -> Job:
        return self.group.jobs[0]

    @property
    def plan(self) -> Plan:
        """The trial as a plan of its own."""
        return Plan(self.group.disk, (self.group,), self.rounds, SPAN, write_rate=0)

    def order(self, seed: int, number: int) -> list[Turn]:
        """The turns in the random order of this round: the same whenever seed, group and round are."""
        return random.Random(f"calibrate {seed} {self.group.id} {number}").sample(self.turns, len(self.turns))


def same_device_trials(spec: CalibrationSpec, disk: str) -> list[Trial]:
    """The guest's `disk` as two arms, `a` and `b`, between which there is no difference but noise."""
    arm = Arm(Place.GUEST, PASSTHROUGH)
    turns = (Turn(arm, 1, "a"), Turn(arm, 2, "b"))
    trials = []
    for number in range(spec.groups):
        job = _randread(DEPTHS[number % len(DEPTHS)], spec.seconds)
        cell = Cell(SCENARIO, disk, PASSTHROUGH, job)
        trials.append(Trial(Group(f"same{number + 1:02}-{job.id}", disk, SCENARIO, (cell,)), turns, spec.rounds))
    return trials


def delay_trials(spec: CalibrationSpec) -> list[Trial]:
    """Two disks in the guest of which one answers later, one request at a time."""
    return [_delay_trial(f"delay{number + 1:02}", Place.GUEST, spec) for number in range(spec.repetitions)]


def host_delay_trial(spec: CalibrationSpec) -> Trial:
    """The same two disks on the host: whether the delay is what was set."""
    return _delay_trial("delay-on-host", Place.HOST, spec)


def _delay_trial(name: str, place: Place, spec: CalibrationSpec) -> Trial:
    job = _randread(1, spec.seconds)
    cells = tuple(Cell(SCENARIO, IN_MEMORY, mode, job) for mode in (PLAIN, LATE))
    # On the host there is one arm, which works on the disk that the turn is named after.
    plain, late = (Arm(place, mode if place is Place.GUEST else None) for mode in (PLAIN, LATE))
    turns = (Turn(plain, 1, PLAIN.name), Turn(late, 2, LATE.name))
    return Trial(Group(f"{name}-{job.id}", IN_MEMORY, SCENARIO, cells), turns, spec.delay_rounds)


def _randread(iodepth: int, seconds: float) -> Job:
    return Job("randread", BLOCK, iodepth=iodepth, ramp=0.0, seconds=seconds)
