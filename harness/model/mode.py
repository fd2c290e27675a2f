"""Attach modes, arms and cells. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator

from harness.model.attach import Attach, Attachment, StoredAttachment
from harness.model.base import Device, Md
from harness.model.effective import NOTHING, Effective
from harness.model.guest import ANY_GUEST, GuestOptions
from harness.model.job import Job
from harness.model.layout import AnyLayout, Layout
from harness.model.values import VALUE
from harness.model.variant import HostSetting, ModeVariant
from harness.units import short_size


@dataclass(frozen=True, slots=True)
class Mode:
    """An attach mode and its name. `attach` is None for `host`, the baseline."""

    name: str
    layout: Layout
    attach: Attachment | None
    guest: GuestOptions = ANY_GUEST
    """The guest that gets the disk. Modes with different guests are measured in different setups."""
    variant: ModeVariant | None = None
    """Of which mode it is a variant; None if it is none."""
    base: Mode | None = None
    """The mode of which it is a variant. All variants of a mode use the same data on the disk."""
    against: Mode | None = None
    """The same mode in the variant that this one is compared with; None for the reference, and without variants."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names that select it: its own, and that of the mode of which it is a variant."""
        return (self.name,) if self.variant is None else (self.name, self.variant.mode)

    @property
    def variant_name(self) -> str:
        """The name of its variant; empty without variants."""
        return self.variant.name if self.variant else ""

    @property
    def alternating(self) -> bool:
        """Whether its guest and those of the other variants run one after the other."""
        return self.variant is not None and self.variant.alternating

    @property
    def settings(self) -> tuple[HostSetting, ...]:
        """What is set on the host while its guest runs."""
        return self.variant.settings if self.variant else ()

    @property
    def stored(self) -> Mode:
        """The mode whose layout holds its data."""
        return self.base or self

    @property
    def twin(self) -> Mode:
        """The mode of its twin on the host, which variants share unless only one of them uses the page cache."""
        return self.stored if self._direct == self.stored._direct else self

    @property
    def _direct(self) -> bool:
        return self.attach is None or self.attach.direct

    @property
    def has_twin(self) -> bool:
        """Whether fio on the host uses another device than the bare one."""
        return not isinstance(self.layout, Device)

    @property
    def detail(self) -> ModeDetail:
        """The meaning of its name, as stored in a run."""
        return ModeDetail(self.layout, self.attach, self.guest, self.variant)

    @property
    def expected(self) -> Effective:
        """The settings that must be read back from its disk and its guest."""
        if self.attach is None:
            return NOTHING
        threads = self.attach.threads if isinstance(self.attach, Attach) and self.attach.in_qemu else 0
        return self.guest.expected(iothreads=threads).merged(self.attach.expected)

    def on(self, guest: GuestOptions, *, one_guest: bool = False) -> Mode:
        """The same mode on a host whose guests have these options. The mode's own ones win.

        `one_guest` says that the host runs only one guest of a run at a time.
        """
        if self.attach is None:
            return self
        return replace(
            self,
            guest=self.guest.over(guest),
            variant=replace(self.variant, alternating=True) if self.variant and one_guest else self.variant,
            against=self.against.on(guest, one_guest=one_guest) if self.against else None,
        )


def _of_schema_1(value: object) -> object:
    """Reads results of virt-overhead 0.1, which have an empty table for VFIO and all options for other attachments."""
    return {"device": "vfio"} if value == {} else value


@dataclass(frozen=True, slots=True)
class ModeDetail:
    """The meaning of a mode's name."""

    __pydantic_config__ = VALUE

    layout: AnyLayout
    """What is built on the disk; `kind` is `device`, `lvm`, `raw`, ..."""
    attach: Annotated[StoredAttachment | None, BeforeValidator(_of_schema_1)]
    """How the guest gets it (bus, cache, aio, iothread); null for the mode `host`. `device` is `unknown` if the run was
    imported."""
    guest: GuestOptions = field(default=ANY_GUEST, compare=False)
    """The size and placement that were requested for its guest. Two runs can be compared if only these differ."""
    variant: ModeVariant | None = None
    """The variant of a mode; null for a mode without variants."""

    @property
    def on_array(self) -> bool:
        """Whether it is on an array of disks. Then the speed of one disk is not an upper bound."""
        return isinstance(self.layout.base, Md)


class Place(StrEnum):
    """Where an arm runs: on the host's bare device, on the host with the mode's layout, in the guest, or on the host on
    the single disk that an array which was there already is compared with.

    `against` is only a role in a cell: it is the guest of another variant, with which the cell's own guest is compared.
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


def arms_of(mode: Mode) -> dict[Place, Arm]:
    """The arms that a cell of this mode needs, by their role."""
    arms = {Place.HOST: Arm(Place.HOST)}
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
