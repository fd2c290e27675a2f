"""What a calibration measures: arms that differ by nothing, and arms that differ by a delay that we set. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from harness.model.attach import Attach
from harness.model.job import Job
from harness.model.layout import Device
from harness.model.mode import Arm, Cell, Mode, Place
from harness.scenario.plan import Group

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
class Order:
    """What is asked for: `groups` of `rounds` of a device against itself, `repetitions` of `delay_rounds` of the delay.

    `seconds` is what each job takes.
    """

    groups: int = 40
    rounds: int = 3
    repetitions: int = 5
    delay_rounds: int = 6
    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Spot:
    """Where one arm of a trial runs: on the disk of `mode`, in the guest or on the host. `visit` tells twins apart."""

    name: str
    mode: Mode
    place: Place = Place.GUEST
    visit: int = 1

    @property
    def arm(self) -> Arm:
        return Arm(self.place, self.mode if self.place is Place.GUEST else None)


@dataclass(frozen=True, slots=True)
class Trial:
    """One group of rounds over spots that all run the same job."""

    group: Group
    spots: tuple[Spot, ...]
    rounds: int

    @property
    def job(self) -> Job:
        return self.group.jobs[0]

    def order(self, seed: int, number: int) -> list[Spot]:
        """The spots in the random order of this round: the same whenever seed, group and round are."""
        return random.Random(f"calibrate {seed} {self.group.id} {number}").sample(self.spots, len(self.spots))


def same_device_trials(order: Order, disk: str) -> list[Trial]:
    """The guest's `disk` as two arms, `a` and `b`, between which there is no difference but noise."""
    spots = (Spot("a", PASSTHROUGH, visit=1), Spot("b", PASSTHROUGH, visit=2))
    trials = []
    for number in range(order.groups):
        job = _randread(DEPTHS[number % len(DEPTHS)], order.seconds)
        cell = Cell(SCENARIO, disk, PASSTHROUGH, job)
        trials.append(Trial(Group(f"same{number + 1:02}-{job.id}", disk, SCENARIO, (cell,)), spots, order.rounds))
    return trials


def delay_trials(order: Order) -> list[Trial]:
    """Two disks in the guest of which one answers later, one request at a time."""
    return [_delay_trial(f"delay{number + 1:02}", Place.GUEST, order) for number in range(order.repetitions)]


def host_delay_trial(order: Order) -> Trial:
    """The same two disks on the host: whether the delay is what was set."""
    return _delay_trial("delay-on-host", Place.HOST, order)


def _delay_trial(name: str, place: Place, order: Order) -> Trial:
    job = _randread(1, order.seconds)
    cells = tuple(Cell(SCENARIO, IN_MEMORY, mode, job) for mode in (PLAIN, LATE))
    spots = (Spot("plain", PLAIN, place, visit=1), Spot("late", LATE, place, visit=2))
    return Trial(Group(f"{name}-{job.id}", IN_MEMORY, SCENARIO, cells), spots, order.delay_rounds)


def _randread(iodepth: int, seconds: float) -> Job:
    return Job("randread", BLOCK, iodepth=iodepth, ramp=0.0, seconds=seconds)
