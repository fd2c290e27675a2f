"""Cells, and the arms that they need: what runs where. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harness.model.job import Job
from harness.model.mode import Mode
from harness.units import short_size


class Place(StrEnum):
    """Where an arm runs: on the host's bare device, on the host with the mode's layout, in the guest, or on the host on
    the single disk that an array which was there already is compared with.

    `against` is only a role in a cell: it is the guest with which the cell's own guest is compared, that of another
    variant, or without a neighbour or a backup.
    """

    HOST = "host"
    TWIN = "twin"
    GUEST = "guest"
    REFERENCE = "reference"
    AGAINST = "against"


REFERENCE_PLACE = 1
"""The place of the reference disk in the scenario's `disks`, from 0: after the array."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One place where a job runs. `mode` is None for the bare host and the reference, which all modes share."""

    place: Place
    mode: Mode | None = None

    @property
    def id(self) -> str:
        """`host`, `twin:lvm`, `guest:lvm` or `reference`."""
        return f"{self.place}:{self.mode.name}" if self.mode else str(self.place)

    @property
    def in_guest(self) -> bool:
        """Whether it runs in a guest."""
        return self.place is Place.GUEST

    @property
    def places(self) -> tuple[int, ...]:
        """The places of its disks in the scenario's `disks`, from 0."""
        if self.place is Place.REFERENCE:
            return (REFERENCE_PLACE,)
        return self.mode.layout.base.places if self.mode else (0,)

    def parts(self, job: Job) -> tuple[ConcurrentJob, ...]:
        """What runs at the same time in a slice of this arm with this job, the arm's own guest first."""
        if self.mode is None or len(self.mode.volumes) == 1:
            return (ConcurrentJob(self, job),)
        first, *others = (Arm(self.place, volume) for volume in self.mode.volumes)
        neighbour = self.mode.neighbour
        if neighbour is None:
            return tuple(ConcurrentJob(arm, job) for arm in (first, *others))
        beside = neighbour.beside(seconds=job.seconds, ramp=job.ramp)
        return (ConcurrentJob(first, job), *(ConcurrentJob(arm, beside, neighbour=True) for arm in others))

    def writes(self, job: Job) -> bool:
        """Whether anything writes in a slice of this arm with this job."""
        return any(part.job.writes for part in self.parts(job))


@dataclass(frozen=True, slots=True)
class ConcurrentJob:
    """One of the jobs that run at the same time in a slice, on a volume of its own."""

    arm: Arm
    job: Job
    neighbour: bool = False
    """Whether it is the job of a neighbour, which is not part of the arm's figures."""

    @property
    def number(self) -> int:
        """The number of its guest, or of its fio on the host."""
        return self.arm.mode.number if self.arm.mode else 1

    @property
    def guest(self) -> str:
        """The name of its guest among those of a session."""
        return self.arm.mode.guest_name if self.arm.mode else ""

    @property
    def machine(self) -> str:
        """What its fio is called: `host`, `host-2`, `guest`, `guest-g2`, or with variants `guest-VARIANT`."""
        if not self.arm.in_guest:
            return f"host-{self.number}" if self.number > 1 else "host"
        return "-".join(filter(None, ("guest", self.guest)))


def arms_of(mode: Mode) -> dict[Place, Arm]:
    """The arms that a cell of this mode needs, by their role.

    The baseline of several guests is fio on the host as often as there are guests, on the same volumes at once.
    """
    arms = {Place.HOST: Arm(Place.TWIN, mode) if mode.guests > 1 else Arm(Place.HOST)}
    if mode.has_twin:
        arms[Place.TWIN] = Arm(Place.TWIN, mode.twin)
    if mode.against is not None:
        arms[Place.AGAINST] = Arm(Place.GUEST, mode.against)
    if mode.attach is not None:
        arms[Place.GUEST] = Arm(Place.GUEST, mode)
    return arms


@dataclass(frozen=True, slots=True)
class Cell:
    """disk x mode x job: one pytest item."""

    scenario: str
    disk: str
    mode: Mode
    job: Job
    reference: str = ""
    """The name of the single disk that the array is compared with, if the disk is such an array; else empty."""

    @property
    def id(self) -> str:
        """For example `optane-lvm-randread-4k-qd32`."""
        return f"{self.scenario}-{self.mode.name}-{self.job.id}"

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms of this cell: the host, the twin if the mode has a layout on the device, the guest, the reference of
        an array. If the mode is compared with another variant, also the guest of that one.
        """
        return tuple(self.by_role.values())

    @property
    def by_role(self) -> dict[Place, Arm]:
        """Its arms by their role in the cell, in the order in which they are listed."""
        return arms_of(self.mode) | ({Place.REFERENCE: Arm(Place.REFERENCE)} if self.reference else {})

    @property
    def writes(self) -> bool:
        """Whether anything writes while it is measured."""
        return any(arm.writes(self.job) for arm in self.arms)

    @property
    def places(self) -> frozenset[int]:
        """The places in the scenario's `disks` that its arms use, from 0."""
        return frozenset(place for arm in self.arms for place in arm.places)

    @property
    def facets(self) -> dict[str, str | int]:
        """The keywords of the cell's pytest mark, for example for `-m "cell(mode='lvm', iodepth=32)"`."""
        return {
            "scenario": self.scenario,
            "disk": self.disk,
            "mode": self.mode.name,
            **({"variant": self.mode.variant_name} if self.mode.variant else {}),
            "workload": self.job.name,
            "pattern": self.job.pattern,
            "bs": short_size(self.job.bs),
            "iodepth": self.job.iodepth,
            "numjobs": self.job.numjobs,
        }
