"""figures.toml: studies, the disks that they measured, a figure for each job; and which figure belongs to a cell.

A mode is compared by what the studies state: where it runs, what it lies on, and which layout is between. Few state how
the disk is attached; where they do not, that may differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PlainValidator, ValidationError, model_validator

from harness.analysis import METRICS
from harness.config.names import one_line
from harness.config.problems import describe, matching, read_toml
from harness.errors import ConfigError
from harness.model.attach import Attach, Server
from harness.model.base import Device, Md, RaidLevel, Shape
from harness.model.disk import DiskClass
from harness.model.job import Job
from harness.model.layout import Layout, Lvm, Qcow2, RawFile
from harness.model.mode import MetricName, ModeDetail, Place
from harness.model.option import Bus
from harness.model.values import Iodepth, TomlTable
from harness.model.workloads import OneWorkload

PublishedArm = Literal["host", "array", "passthrough", "lvm", "raw", "qcow2", "guest"]
"""Where a figure was measured: on the host (a disk, an array), or in a guest; `guest`: the layout is not stated."""

Line = Annotated[str, AfterValidator(one_line)]
Name = Annotated[str, matching("[a-z0-9]+(_[a-z0-9]+)*", "lower case letters and digits, with `_` between words")]


def _parse_value(value: object) -> float | str:
    if isinstance(value, str):
        return one_line(value)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError("allowed: a number above 0, or the words of the source in quotes")
    return float(value)


Value = Annotated[float | str, PlainValidator(_parse_value)]
"""In the unit in which reports show the metric, or what the source says instead of a number."""
Percent = Annotated[float, Field(gt=-1000, lt=100)]


@dataclass(frozen=True, slots=True)
class Band:
    """A published number, from `low` to `high`. Usually both are the same."""

    low: float
    high: float

    def factor(self, value: float) -> float:
        """How many times `value` is above or below the band, 1 or more; 1 within the band. Both must be above 0."""
        return max(1.0, self.low / value, value / self.high)


class _OfJob(TomlTable):
    """Something that a study found for one job."""

    workload: OneWorkload
    iodepth: Annotated[list[Iodepth], Field(min_length=1)] | None = None
    """The depths at which it applies; None if the source does not state the depth."""

    def covers(self, job: Job) -> bool:
        """Whether it is about this job: the same workload and, if the source states the depth, the same depth."""
        return job.io == self.workload.io and (self.iodepth is None or job.iodepth in self.iodepth)


class PublishedAttach(TomlTable):
    """How a guest got the disk, as far as the source states it."""

    bus: Bus | None = None
    iothread: bool | None = None
    server: Server | None = None

    def is_like(self, attach: object) -> bool:
        """Whether a mode attaches its disk so."""
        return all(getattr(attach, key, None) == value for key, value in self.model_dump(exclude_none=True).items())


class PublishedFigure(_OfJob):
    """What a study found for one job, by arm: `values`, or only the share that the guest loses."""

    metric: MetricName
    values: Annotated[dict[PublishedArm, Value], Field(min_length=1)] | None = None
    lost_percent: (
        dict[Literal["guest", "qcow2"], Annotated[list[Percent], Field(min_length=2, max_length=2)]] | None
    ) = None
    """The least and the most that the guest loses of the host's throughput, where the source has no absolute values."""
    attach: PublishedAttach = Field(default_factory=PublishedAttach)
    """How the guests of the figure got the disk. A guest with another attachment does not have this figure."""
    about: bool = False
    """True if the values are read from prose and not from a table."""
    note: Line | None = None

    @model_validator(mode="after")
    def _require_one_kind(self) -> Self:
        if (self.values is None) == (self.lost_percent is None):
            raise ValueError("allowed: either values or lost_percent")
        if self.lost_percent and not METRICS[self.metric].higher_is_better:
            raise ValueError("lost_percent is for throughput; allowed: metric iops or bw")
        for low, high in (self.lost_percent or {}).values():
            if low > high:
                raise ValueError(f"lost_percent: {low:g} is more than {high:g}; allowed: the smaller number first")
        return self

    @property
    def arms(self) -> tuple[PublishedArm, ...]:
        """The arms that the figure has."""
        return tuple(self.values if self.values is not None else self.lost_percent or ())

    def value(self, arm: PublishedArm) -> float | None:
        """The value in the metric's unit: I/Os per second, bytes per second or seconds; None without a number."""
        value = (self.values or {}).get(arm)
        return value * METRICS[self.metric].shown.scale if isinstance(value, float) else None

    def words(self, arm: PublishedArm) -> str | None:
        """What the source says instead of a number, if it does."""
        value = (self.values or {}).get(arm)
        return value if isinstance(value, str) else None

    def ratio(self, arm: PublishedArm, reference: PublishedArm | None) -> Band | None:
        """The arm divided by the reference; None if the source does not have both."""
        if lost := next((lost for name, lost in (self.lost_percent or {}).items() if name == arm), None):
            low, high = lost
            return Band(1 - high / 100, 1 - low / 100)
        value, base = self.value(arm), self.value(reference) if reference is not None else None
        return Band(value / base, value / base) if value is not None and base is not None else None


class PublishedArray(TomlTable):
    """The array of a study. `level` is None for a level that md does not have."""

    level: RaidLevel | None = None
    disks: Annotated[int, Field(ge=2)]
    legs: Literal[1, 2] = 1

    def is_like(self, array: Shape) -> bool:
        """Whether the array has the same level, disks and legs. The studies do not state the chunk."""
        return (array.level, array.disks, array.legs) == (self.level, self.disks, self.legs)


class PublishedDisk(TomlTable):
    """A disk or an array that a study measured."""

    model: Line
    array: PublishedArray | None = None
    """None for a single disk."""
    disk_class: DiskClass | None = None
    """Its class, if the figures are to be shown beside those of any disk of this class with the same job."""
    figures: Annotated[list[PublishedFigure], Field(min_length=1)]

    def reference(self, arm: PublishedArm) -> PublishedArm | None:
        """The arm to which a figure of `arm` is relative: a guest's to its host, an array's to a single disk."""
        if arm == "host":
            return None
        return "host" if arm == "array" or self.array is None else "array"


class Gain(_OfJob):
    """How many times the throughput of one array of a study another one has, in one job. Both have as many disks."""

    disk: Name
    over: Name
    times: Annotated[float, Field(gt=0)]
    note: Line | None = None


class Study(TomlTable):
    """One source, and what it measured."""

    title: Line
    source: Line
    url: Annotated[str, matching("https://[!-~]+", "a URL that begins with https://, without spaces")] | None = None
    setup: Line | None = None
    notes: list[Line] = Field(default_factory=list)
    """What a reader must know about the figures, and figures that belong to no job."""
    disk: Annotated[dict[Name, PublishedDisk], Field(min_length=1)]
    gain: list[Gain] = Field(default_factory=list)
    """Its arrays against each other."""

    @model_validator(mode="after")
    def _require_arrays(self) -> Self:
        for name in (name for gain in self.gain for name in (gain.disk, gain.over)):
            if name not in self.disk or self.disk[name].array is None:
                raise ValueError(f"gain: {name} is not an array of this study")
        return self

    @property
    def has_arrays(self) -> bool:
        """Whether it measured only arrays. The mode then says which of them is meant."""
        return all(disk.array is not None for disk in self.disk.values())


@dataclass(frozen=True, slots=True)
class PublishedLink:
    """What the key `published` of a scenario selects: one disk of a study, or all arrays of a study."""

    name: str
    study: Study
    disks: tuple[PublishedDisk, ...]
    disk_is_array: bool
    """True if it names one array: the scenario's disk is then such an array, a volume of a controller or a NAS. False
    for a study of arrays as a whole: the modes of the scenario then build the arrays."""

    @property
    def models(self) -> str:
        """The models of disks or arrays, in words."""
        return "; ".join(disk.model for disk in self.disks)


class Figures(TomlTable):
    """The whole file."""

    study: dict[Name, Study]

    @property
    def links(self) -> dict[str, PublishedLink]:
        """Every value of the key `published`, with what it selects."""
        return {link.name: link for name, study in self.study.items() for link in _list_links(name, study)}


def _list_links(name: str, study: Study) -> Iterator[PublishedLink]:
    if study.has_arrays:
        yield PublishedLink(name, study, tuple(study.disk.values()), disk_is_array=False)
    for key, disk in study.disk.items():
        yield PublishedLink(f"{name}.{key}", study, (disk,), disk_is_array=disk.array is not None)


FIGURES = Path(__file__).parent / "figures.toml"
_HINT = "features/published/figures.py declares every key; if you did not change the file, install virt-overhead again"


@cache
def links() -> Mapping[str, PublishedLink]:
    """What each value of a scenario's key `published` selects, by value. ConfigError if the file is damaged."""
    return MappingProxyType(read_figures(FIGURES).links)


def read_figures(path: Path) -> Figures:
    """The figures in `path`. ConfigError names the file and lists every problem with its key."""
    data = read_toml(path, what="figures", hint=_HINT)
    try:
        return Figures.model_validate(data)
    except ValidationError as error:
        problems = describe(error, data, Figures)
        raise ConfigError("\n".join(f"{path}: {problem}" for problem in problems), hint=_HINT) from None


def list_class_links(disk_class: DiskClass | None) -> tuple[PublishedLink, ...]:
    """The disks of studies that are of this class and are compared with all of it; none if the class is not known."""
    if disk_class is None:
        return ()
    return tuple(link for link in links().values() if all(disk.disk_class == disk_class for disk in link.disks))


@dataclass(frozen=True, slots=True)
class Counterpart:
    """A figure that belongs to a cell: which of its arms, and which place of the cell it is about."""

    disk: PublishedDisk
    figure: PublishedFigure
    arm: PublishedArm
    place: Place

    @property
    def ratio(self) -> Band | None:
        """The published arm divided by its reference: guest/host, guest/array, array/disk; None without one of them."""
        if self.place is Place.HOST:  # The cell has no other place to which its host is relative.
            return None
        return self.figure.ratio(self.arm, self.disk.reference(self.arm))


def find_counterparts(
    link: PublishedLink, mode: ModeDetail, job: Job, existing: Shape | None = None
) -> tuple[Counterpart, ...]:
    """The linked figures for a cell of this mode and job, in the order of the file.

    `existing` is the shape of the array that the cell's disk is. None stands for a single disk, and for an unknown one.
    A figure with a stated depth replaces one of the same workload, metric and arm that does not state its depth.
    """
    found = [counterpart for disk in link.disks for counterpart in _match_disk(link, disk, mode, job, existing)]
    stated = {(each.disk.model, each.figure.metric, each.arm) for each in found if each.figure.iodepth is not None}
    return tuple(
        each
        for each in found
        if each.figure.iodepth is not None or (each.disk.model, each.figure.metric, each.arm) not in stated
    )


def _match_disk(
    link: PublishedLink, disk: PublishedDisk, mode: ModeDetail, job: Job, existing: Shape | None
) -> Iterator[Counterpart]:
    for figure in disk.figures:
        if figure.covers(job):
            for arm in figure.arms:
                place = _place(arm, disk, mode, existing, disk_is_array=link.disk_is_array)
                if place is not None and (place is not Place.GUEST or figure.attach.is_like(mode.attach)):
                    yield Counterpart(disk, figure, arm, place)


def _place(
    arm: PublishedArm, disk: PublishedDisk, mode: ModeDetail, existing: Shape | None, *, disk_is_array: bool
) -> Place | None:
    """The place of the mode at which the published arm was measured; None if the mode is another one."""
    base = mode.layout.base
    is_like = disk.array is not None and existing is not None and disk.array.is_like(existing)
    is_single = disk.array is None and existing is None
    is_the_disk = isinstance(base, Device) and (is_single or is_like or (disk_is_array and disk.array is not None))
    same_array = (
        isinstance(base, Md)
        and base.is_optimal
        and disk.array is not None
        and disk.array.is_like(base.shape)
        and not disk_is_array
    )
    if mode.attach is None:  # the mode `host`, always on the bare device
        return Place.HOST if is_the_disk and arm == ("array" if disk.array else "host") else None
    if arm == "array":
        return Place.TWIN if same_array and mode.layout.is_base else None
    served_by_qemu = isinstance(mode.attach, Attach) and mode.attach.device == "disk"
    return Place.GUEST if (is_the_disk or same_array) and served_by_qemu and _has_layout(arm, mode.layout) else None


def _has_layout(arm: PublishedArm, layout: Layout) -> bool:
    """Whether the guest of `arm` has this layout."""
    match arm:
        case "passthrough":
            return layout.is_base
        case "lvm":
            return isinstance(layout, Lvm) and not layout.encrypted
        case "raw":
            return isinstance(layout, RawFile) and layout.filesystem == "ext4" and not layout.encrypted
        case "qcow2":
            return isinstance(layout, Qcow2) and not layout.encrypted
        case "guest":
            return True
    return False
