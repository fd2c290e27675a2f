"""Attach modes; the cells of a mode and a job, with their arms: what runs where; the budgets of cells. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from harness.analysis import METRICS, Limit
from harness.analysis.verdict import Both
from harness.config.names import choices
from harness.model.attach import ATTACH_OPTIONS, Attach, Attachment, InContainer, StoredAttachment, Vfio
from harness.model.base import Amplification, Device, Md
from harness.model.guest import ANY_GUEST, GUEST_OPTIONS, GuestOptions
from harness.model.job import Job
from harness.model.layout import ZFS_PROPERTIES, AnyLayout, InnerFilesystem, Layout, amplification
from harness.model.option import NOTHING, Effective, option_of_settings
from harness.model.values import Added, FileValue, Iodepth, Share
from harness.model.workloads import OneWorkload, WorkloadTuple
from harness.units import format_duration, short_size


@dataclass(frozen=True, slots=True)
class Neighbour(FileValue):
    """What a second guest does, on a volume of its own, while a guest is measured."""

    workload: OneWorkload
    iodepth: Iodepth = 32

    @property
    def id(self) -> str:
        """The name of its job, for example `randwrite-4k-qd32`."""
        return self.beside(seconds=0.0, ramp=0.0).id

    def beside(self, *, seconds: float, ramp: float) -> Job:
        """Its job beside one that is measured for `seconds` after `ramp` seconds."""
        return self.workload.job(self.iodepth, ramp=ramp, seconds=seconds)


OPTIONS: Mapping[str, str] = {
    **option_of_settings(GUEST_OPTIONS, ATTACH_OPTIONS),
    "qemu_backing_files": "snapshots",
    "qemu_data_file": "data_file",
    "host_encryption": "encryption",
    **{f"host_zfs_{name}": name for name in ZFS_PROPERTIES},
    "container": "container",
    "container_unprivileged": "unprivileged",
    "container_memory": "memory",
    "host_nodatacow": "nodatacow",
    "qemu_block_driver": "client",
    "guest_filesystem": "filesystem",
    "host_filesystem": "filesystem",
}
"""The name of the option for each setting that shows the effect of an option."""
IN_CONTAINER = "container"
"""The end of the name of a mode with a container in place of the guest, and the name of that guest."""


@dataclass(frozen=True, slots=True)
class HostSetting(FileValue):
    """A file of the kernel's settings on the host, and its value."""

    path: str
    value: str

    @property
    def words(self) -> str:
        return f"{self.path} = {self.value}"


@dataclass(frozen=True, slots=True)
class ModeVariant(FileValue):
    """Of which mode a mode is a variant, and how it is compared."""

    name: str
    """The name of the variant."""
    mode: str
    """The name of the mode without the variant."""
    reference: str | None
    """The variant that it is compared with; null for the reference itself."""
    settings: tuple[HostSetting, ...] = field(default=(), compare=False)
    """What is set on the host while its guest runs."""
    alternating: bool = field(default=False, compare=False)
    """Whether its guest and that of the other variants run one after the other. Otherwise they run side by side."""


@dataclass(frozen=True, slots=True)
class Mode:
    """An attach mode and its name. `attach` is None for `host`, the baseline."""

    name: str
    layout: Layout
    """What is built on the disk."""
    attach: Attachment | None
    """How the guest gets it; in a file, `{}` for all defaults."""
    guest: GuestOptions = ANY_GUEST
    """The guest that gets the disk. Modes with different guests are measured in different setups."""
    variant: ModeVariant | None = None
    """Of which mode it is a variant; None if it is none."""
    base: Mode | None = None
    """The mode of which it is a variant. All variants of a mode use the same data on the disk."""
    against: Mode | None = None
    """The mode that this one is compared with in the same blocks: the same one in the reference variant, without a
    neighbour, without a backup, or with a VM instead of a container. None for the reference, and without any of these.
    """
    guests: int = 1
    """How many guests run a job at the same time, each on a volume of its own."""
    neighbour: Neighbour | None = None
    """What a second guest does while the guest of this mode is measured; None if it is alone."""
    backup: bool = False
    """Whether a backup of its disk runs while its guest is measured."""
    on_node: bool = field(default=False, compare=False)
    """Whether its guest is a VM of Proxmox VE. It has one kind of SCSI controller, and its backups begin slowly."""
    number: int = 1
    """The number of its guest: 1, or that of a further guest."""
    cached: bool = False
    """Whether the user declares that the host's memory serves its I/O. It is compared with a twin in the same state."""
    filesystem: InnerFilesystem | None = None
    """The file system in the guest that fio uses; None: fio uses the disk itself. Its twin has a volume of its own."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names that select it: its own, and that of the mode of which it is a variant."""
        return (self.name,) if self.variant is None else (self.name, self.variant.mode)

    @property
    def variant_name(self) -> str:
        """The name of its variant; empty without variants."""
        return self.variant.name if self.variant else ""

    @property
    def guest_name(self) -> str:
        """The name of its guest among those of a session: that of the variant, or `g2` for a second guest."""
        if self.in_container:
            return IN_CONTAINER
        return f"g{self.number}" if self.number > 1 else self.variant_name

    @property
    def in_container(self) -> bool:
        """Whether a container has the place of the guest."""
        return isinstance(self.attach, InContainer)

    @property
    def attached(self) -> Mode:
        """The mode under whose name the guest has its disk: with a neighbour or a backup, that of the mode without."""
        beside = self.neighbour is not None or self.backup
        return self.base if beside and self.base is not None else self

    @property
    def volumes(self) -> tuple[Mode, ...]:
        """A mode for each volume that it uses at the same time: its own first, then that of each further guest."""
        first = self.attached
        last = 2 if self.neighbour is not None else self.guests
        further = (replace(first, name=f"{first.name}-g{n}", guests=1, number=n) for n in range(2, last + 1))
        return (first, *further)

    @property
    def runs_with_others(self) -> bool:
        """Whether other guests, or a backup, do I/O while it is measured."""
        return self.detail.runs_with_others

    @property
    def alternating(self) -> bool:
        """Whether its guest runs only while it is measured: one after the other with those of the other variants.

        Proxmox VE gives a device to a VM when it starts it, so the host has the disk only without this VM.
        """
        passed_at_boot = self.on_node and isinstance(self.attach, Vfio)
        return passed_at_boot or (self.variant is not None and self.variant.alternating)

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
        return self.stored if self.is_direct == self.stored.is_direct else self

    @property
    def writes_later(self) -> bool:
        """Whether the host may write data, or tables of a file system, after a slice in which they were changed."""
        inside = self.filesystem is not None and self.filesystem.writes_later
        return not self.is_direct or inside or (self.attach is not None and self.layout.writes_later)

    @property
    def is_direct(self) -> bool:
        """Whether no page cache is between the host's disks and the mode. QEMU's own client of a network has none."""
        return self.attach is None or self.attach.direct or self.layout.over_network

    @property
    def has_twin(self) -> bool:
        """Whether fio on the host uses another device than its baseline. That of several guests is on their volumes."""
        return not isinstance(self.layout, Device) and self.detail.has_bare_host

    @property
    def detail(self) -> ModeDetail:
        """The meaning of its name, as stored in a run."""
        neighbour = self.neighbour.id if self.neighbour else None
        return ModeDetail(
            self.layout,
            self.attach,
            self.guest,
            self.variant,
            self.guests,
            neighbour,
            self.backup,
            self.cached,
            self.filesystem,
        )

    def amplification(self, job: Job) -> Amplification:
        """What the disks may move for each byte of the job."""
        below = amplification(self.layout, job)
        if self.filesystem is None:
            return below
        return self.filesystem.amplification(job, by_loop=self.layout.is_file).over(below)

    @property
    def expected(self) -> Effective:
        """The settings that must be read back from its disk and its guest."""
        if self.attach is None:
            return NOTHING
        threads = self.attach.threads if isinstance(self.attach, Attach) and self.attach.in_qemu else 0
        if self.in_container:
            size = Effective(guest_cpus=self.guest.vcpu_count, container_memory=self.guest.memory)
            return size.merged(self.attach.expected).merged(self.layout.expected)
        attach = self.attach.expected
        if self.layout.over_network:
            # The client of the network has no engine of the kernel.
            attach = replace(attach, aio=None, qemu_aio=None)
        if (inside := self.filesystem) is not None:
            attach = replace(attach, guest_filesystem=inside.kind, host_filesystem=inside.kind)
        return self.guest.expected(iothreads=threads).merged(attach).merged(self.layout.expected)

    def on(self, guest: GuestOptions, *, one_guest: bool = False) -> Mode:
        """The same mode on a host whose guests have these options. The mode's own ones win.

        `one_guest` says that the host is a node of Proxmox VE, where variants have the same VM one after the other.
        """
        if self.attach is None:
            return self
        return replace(
            self,
            guest=self.guest.over(guest),
            on_node=one_guest,
            variant=replace(self.variant, alternating=True) if self.variant and one_guest else self.variant,
            against=self.against.on(guest, one_guest=one_guest) if self.against else None,
            base=self.base.on(guest, one_guest=one_guest) if self.base else None,
        )


@dataclass(frozen=True, slots=True)
class ModeDetail(FileValue):
    """The meaning of a mode's name."""

    layout: AnyLayout
    """What is built on the disk; `kind` is `device`, `lvm`, `raw`, ..."""
    attach: StoredAttachment | None
    """How the guest gets it (bus, cache, aio, iothread); null for the mode `host`. `device` is `unknown` if the run was
    imported."""
    guest: GuestOptions = field(default=ANY_GUEST, compare=False)
    """The size and placement that were requested for its guest. Two runs can be compared if only these differ."""
    variant: ModeVariant | None = None
    """The variant of a mode; null for a mode without variants."""
    guests: int = 1
    """How many guests run a job at the same time, each on a volume of its own."""
    neighbour: str | None = None
    """The job of a second guest that runs beside this one, for example `randwrite-4k-qd32`; null without one."""
    backup: bool = False
    """Whether a backup of its disk runs meanwhile."""
    cached: bool = False
    """Whether it is declared that the host's memory serves its I/O. Its cells are compared with a twin in the same
    state of the cache, and never ranked with those of other modes."""
    filesystem: Annotated[InnerFilesystem | None, Field(exclude_if=lambda value: value is None)] = None
    """The file system in its guest that fio uses; left out if fio uses the disk itself."""

    @property
    def runs_with_others(self) -> bool:
        """Whether other guests, or a backup, do I/O while it is measured. Then its figures are not those of the
        attachment alone."""
        return self.guests > 1 or self.neighbour is not None or self.backup

    @property
    def in_container(self) -> bool:
        """Whether a container has the place of the guest."""
        return isinstance(self.attach, InContainer)

    @property
    def has_bare_host(self) -> bool:
        """Whether its baseline is the bare host, which modes share. That of several guests is on their volumes, and
        that of a cached mode is its twin."""
        return self.guests == 1 and not self.cached

    @property
    def on_array(self) -> bool:
        """Whether it is on an array of disks. Then the speed of one disk is not an upper bound."""
        return isinstance(self.layout.base, Md)


def find_setting_changes(before: Mode, after: Mode) -> Iterator[tuple[str, str]]:
    """The settings of the host in which two variants differ: the path of each, and both values in words."""
    one, other = ({setting.path: setting.value for setting in mode.settings} for mode in (before, after))
    for path in dict.fromkeys([*one, *other]):
        if one.get(path) != other.get(path):
            values = " -> ".join(values.get(path, "unchanged") for values in (one, other))
            yield path, f"{path} {values}"


class Place(StrEnum):
    """Where an arm runs: on the host's bare device, on the host with the mode's layout, in the guest, or on the host on
    the single disk that an array which was there already is compared with.

    `against` and `direct` are only roles in a cell. `against` is the guest with which the cell's own guest is compared,
    that of another variant, or without a neighbour or a backup. `direct` is the bare host in a cached cell.
    """

    HOST = "host"
    TWIN = "twin"
    GUEST = "guest"
    REFERENCE = "reference"
    AGAINST = "against"
    DIRECT = "direct"


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

    The baseline of several guests is fio on the host as often as there are guests, on the same volumes at once. That of
    a cached mode is its twin, and the bare host is beside it.
    """
    arms = {Place.HOST: Arm(Place.HOST)}
    if mode.guests > 1:
        arms = {Place.HOST: Arm(Place.TWIN, mode)}
    elif mode.cached:
        arms = {Place.HOST: Arm(Place.TWIN, mode.twin), Place.DIRECT: Arm(Place.HOST)}
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
        """The arms of this cell: the host, the twin if the mode has a layout on the device or is cached, the guest, the
        reference of an array. If the mode is compared with another variant, also the guest of that one.
        """
        return tuple(self.by_role.values())

    @property
    def by_role(self) -> dict[Place, Arm]:
        """Its arms by their role in the cell, in the order in which they are listed."""
        arms = arms_of(self.mode) | ({Place.REFERENCE: Arm(Place.REFERENCE)} if self.reference else {})
        if self.job.trims and self.mode.layout.twin.is_file:
            # On the host, fio trims devices only.
            arms.pop(Place.TWIN, None)
        return arms

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


LabKind = Literal["bare-metal", "nested", "emulated"]

_LATENCIES = tuple(name for name, metric in METRICS.items() if metric.is_latency)


def _require_known_metric(name: str) -> str:
    if name not in METRICS:
        raise ValueError(f"no such metric; {choices(name, METRICS)}")
    return name


MetricName = Annotated[str, AfterValidator(_require_known_metric)]


def lab_kind_of(accel: str, hypervisor: str) -> LabKind:
    """The kind of lab with guests under `accel`, on a host under this `hypervisor` (empty on a real machine)."""
    # systemd-detect-virt prints `qemu` for an emulated CPU, and `kvm` under KVM.
    if accel != "kvm" or hypervisor == "qemu":
        return "emulated"
    return "nested" if hypervisor else "bare-metal"


@dataclass(frozen=True, slots=True)
class Budget(FileValue):
    """The overhead that a scenario allows, in one metric, for the cells that the budget covers.

    None for `modes`, `workloads` or `iodepth` is no restriction. `find_reference_problems` checks the names.
    """

    metric: MetricName
    """The metric to judge: a name of the table of metrics."""
    share: Share | None = None
    """A fraction of the host's value: 0.3 is 30 %."""
    absolute: Added | None = None
    """Seconds added to a latency."""
    both: Both | None = None
    """For two limits: with `looser`, a cell must meet one of them. With `stricter`, it must meet both."""
    modes: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Names from the `modes` of the scenario; without them, every mode but `host`."""
    workloads: WorkloadTuple | None = None
    """Workloads of the scenario; without them, every workload."""
    iodepth: Annotated[tuple[Iodepth, ...], Field(min_length=1)] | None = None
    """Depths that at least one profile measures; without them, every depth."""
    lab: Annotated[tuple[LabKind, ...], Field(min_length=1)] = ("bare-metal",)
    """The kinds of lab that the budget is for. Labs that do not represent real hardware need their own budgets."""
    difference: Share | None = None
    """Instead of the other limits: the loss against the reference variant that is allowed, as a share of it."""

    @property
    def limit(self) -> Limit:
        """The limit for the analysis."""
        return Limit(self.share if self.difference is None else self.difference, self.absolute, self.both)

    @property
    def key(self) -> str:
        """What it limits. The last one of several budgets with the same key counts."""
        return self.metric if self.difference is None else f"difference in {self.metric}"

    def covers(self, cell: Cell, lab_kind: LabKind) -> bool:
        """Whether the budget is for this cell in such a lab. No budget covers cells of the host, the baseline."""
        return (
            cell.mode.attach is not None
            and lab_kind in self.lab
            and (self.difference is None or cell.mode.against is not None)
            and (self.modes is None or any(name in self.modes for name in cell.mode.names))
            and (self.workloads is None or cell.job.workload in self.workloads)
            and (self.iodepth is None or cell.job.iodepth in self.iodepth)
        )

    @model_validator(mode="after")
    def _require_consistent(self) -> Self:
        if problems := list(self._find_problems()):
            raise ValueError("\n".join(problems))
        return self

    def _find_problems(self) -> Iterator[str]:
        metric = METRICS[self.metric]
        if self.share is None and self.absolute is None and self.difference is None:
            yield "has no limit; allowed: share, absolute, share and absolute with both, or difference"
        if self.difference is not None and (self.share is not None or self.absolute is not None):
            other = "share" if self.share is not None else "absolute"
            yield f"difference conflicts with {other}, which is about the host; allowed: a budget of its own for each"
        if self.absolute is not None and not metric.is_latency:
            yield (
                f'absolute = "+{format_duration(self.absolute)}" conflicts with metric = "{metric.name}"; '
                f"allowed: share, or a latency ({', '.join(_LATENCIES)})"
            )
        if self.share is not None and self.share >= 1 and metric.higher_is_better:
            yield (
                f'share = "{self.share * 100:g} %" of metric = "{metric.name}" can never be exceeded; '
                "allowed: less than 100 %"
            )
        together = self.share is not None and self.absolute is not None
        if together and self.both is None:
            yield 'share and absolute together need the key both; allowed: both = "looser" or both = "stricter"'
        if self.both is not None and not together:
            yield f'both = "{self.both}" needs two limits; allowed: only together with share and absolute'
