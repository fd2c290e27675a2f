"""Groups of cells that are measured together, the setups that they need, and how long each kind of work takes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import Annotated, Literal, get_args

from pydantic import Field

from harness.model.attach import Attach, Vfio
from harness.model.base import Base, Device, Md
from harness.model.job import Job
from harness.model.mode import REFERENCE_PLACE, Arm, Cell, Mode, Place
from harness.model.option import BUSES, SCSI_BUSES
from harness.scenario.timetable import Counts, count_timetables, drain_seconds, rebuilds, waiting

Kind = Literal[
    "program",
    "lab",
    "build",
    "condition",
    "boot",
    "fio",
    "pause",
    "start",
    "recovery",
    "again",
    "end",
]
"""`program`: the command itself, and its report. `lab`: until the host answers. `build`: the layouts. `condition`:
filling them. `boot`: guests. `fio`: its slices. `pause`: between slices. `start`: beginning and ending a timetable.
`recovery`: the same of an array during a timetable. `again`: what is measured again. `end`: taking everything down."""
KINDS: tuple[Kind, ...] = get_args(Kind)

PROGRAM_SECONDS = 7.0
LAB_SECONDS = 33.0
"""The boot of the embedded lab's host."""
BUILD_SECONDS = 2.0
"""For a setup: the partition tables, and what is read of the disks."""
LAYER_SECONDS = 0.8
"""For each region with a layout."""
ARRAY_SECONDS = 2.5
"""For each disk of an array."""
FILL_SECONDS = 1.0
"""For the fio that fills."""
SIMULATED_FILL_RATE = 200 * 1024**2
"""Bytes per second that a simulated host writes at most, whatever its disks could do."""
BOOT_SECONDS = 9.0
ATTACH_SECONDS = 1.3
"""For each mode with a guest: attaching its disk, and reading back how it is attached."""
PAUSE_SECONDS = 0.04
"""Between two slices, of which fio's I/Os in flight need a part."""
START_SECONDS = 2.2
"""For each timetable: login, the start of fio on each machine, and reading what it printed."""
RECOVERY_SECONDS = 5.0
"""For each timetable during which an array recovers: the spare is added before it, and taken out after it."""
AGAIN_SHARE = 0.03
"""Of the time for measuring: jobs whose slices overlapped, or that need longer slices."""
END_SECONDS = 5.0
"""For each setup: shutting down its guests, and removing its layouts."""
REMOVE_SECONDS = 0.8
"""For each mode of it."""
REMOVE_ARRAY_SECONDS = 1.5
"""For each disk of an array: udev looks at each of them, and may assemble the array again."""

OF_THE_HOST: frozenset[Kind] = frozenset({"program", "lab", "boot", "start"})
"""What a run of other scenarios says something about. The rest depends on what is built and measured."""
REAL_HOST: Mapping[Kind, float] = {"lab": 0.1}
"""What a real host takes of the times above, which were measured in the embedded lab: it need not boot. A real host is
faster in other ways, too, but most of a run is fio's slices, and its first run shows the rest."""
RUNNING = 0.1
"""What opening a simulated host takes that runs already, of the time that its boot takes."""
LAST_RUNS = 5
"""Runs of which the median counts."""
LEAST_SECONDS = 1.0
"""What took less than this says nothing about the pace."""
MOST_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class Pace:
    """What one run took of each kind, as a multiple of the usual time. `scenarios` are those that it measured."""

    scenarios: tuple[str, ...]
    ratios: Mapping[Kind, Annotated[float, Field(ge=0, le=MOST_RATIO)]]


@dataclass(frozen=True, slots=True)
class Paces:
    """The time of each kind of work on a host, as a multiple of the usual time; 1 if it is not known.

    `fill_rate`: bytes per second that can be filled at most; None if only the disks limit it.
    """

    ratios: Mapping[Kind, float] = field(default_factory=lambda: dict(REAL_HOST))
    fill_rate: float | None = None

    @classmethod
    def of(cls, runs: Sequence[Pace], scenarios: Sequence[str], *, simulated: bool, running: bool = False) -> Paces:
        """The paces for these scenarios from the last runs on the host, the newest first.

        The median of the last runs of the same scenarios, because a single run may have met other load. Without one,
        runs of others count for what depends on the host only.
        `simulated`: as in the embedded lab, which need not boot if it is `running`.
        """
        usual = cls({}, SIMULATED_FILL_RATE) if simulated else cls()
        found: dict[Kind, float] = dict(usual.ratios)
        for kind in KINDS:
            known = [(run.scenarios, run.ratios[kind]) for run in runs if kind in run.ratios]
            same = [ratio for own, ratio in known if own == tuple(scenarios)]
            others = [ratio for _, ratio in known] if kind in OF_THE_HOST else []
            if ratios := (same or others)[:LAST_RUNS]:
                found[kind] = median(ratios)
        if running:
            found["lab"] = RUNNING
        return replace(usual, ratios=found)

    def of_kind(self, kind: Kind) -> float:
        """The multiple of the usual time."""
        return self.ratios.get(kind, 1.0)

    def seconds(self, work: Mapping[Kind, float]) -> float:
        """The time for work whose usual times are these."""
        return sum(seconds * self.of_kind(kind) for kind, seconds in work.items())

    def fill_seconds(self, size: float, write_rate: float) -> float:
        """The usual time to fill so many bytes on disks that write so many per second."""
        return size / (write_rate if self.fill_rate is None else min(write_rate, self.fill_rate))


def pace_of(scenarios: Sequence[str], planned: Mapping[Kind, float], took: Mapping[Kind, float]) -> Pace:
    """The pace of a run: what it took of each kind, and the usual time for what it did, in seconds."""
    ratios = {
        kind: min(took[kind] / usual, MOST_RATIO)
        for kind, usual in planned.items()
        if kind in took and usual >= LEAST_SECONDS
    }
    return Pace(tuple(scenarios), ratios)


MOST_REGIONS = 8
"""Regions on a disk in addition to the bare one. With more, a disk of usual size has no room for the profile's span."""
MOST_LISTED = 6
"""Disks that a text lists by name."""
MOST_ON_ROOT_BUS = 20
"""Disk devices on a guest's root bus. The bus has 28 slots, also for the serial and network devices."""

REBUILD_SECONDS = 6.0
"""For how long an array recovers before and after the slices of a timetable: its spare is written to meanwhile."""
USUAL_IOPS = 5000.0
"""The I/Os per second of a disk that is not known, for the estimate of the pauses."""
ROTATIONAL_IOPS = 1000.0
"""A disk with less than this is treated as a hard disk before its pauses are known: it completes UNKNOWN_IOPS."""
UNKNOWN_IOPS = 160.0
"""With many I/Os in flight. Few of them need no long pauses."""
DRAIN_MARGIN = 1.0
"""Pauses are as long as the longest that was seen, but the disks sort what is in flight."""


def setups(modes: Iterable[Mode]) -> list[tuple[Mode, ...]]:
    """The modes of each setup, in the order given. Each mode joins the last setup, or begins a new one if that is full.

    So modes that are next to each other in the list are measured together, and modes on one file system share it. All
    variants of a mode are in one setup, also the reference that is not listed itself.
    """
    several = tuple(dict.fromkeys(each for mode in modes for each in (mode.against, mode) if each is not None))
    by_stored: dict[Mode, list[Mode]] = {}
    for mode in several:
        by_stored.setdefault(mode.stored, []).append(mode)
    found: list[list[Mode]] = []
    for own in by_stored.values():
        if found and _fit([*found[-1], *own]):
            found[-1] += own
        else:
            found.append(own)
    return [tuple(together) for together in found]


def regions(modes: Iterable[Mode]) -> list[Base]:
    """The base of each region, without the region of the bare disk: one region for each bare array and each layer.

    Variants of a mode share its region. Each of several guests has a region. A qcow2 file has two regions. fio on the
    host cannot read the format, so the twin is a separate RAW file.
    """
    volumes = stored_volumes(modes)
    layouts = [mode.layout for mode in volumes]
    arrays = dict.fromkeys(layout for layout in layouts if isinstance(layout, Md))
    layers = [layout.base for layout in layouts if not layout.is_base for _ in range(layout.regions)]
    # The twin of a guest with a file system has a volume of its own.
    layers += [mode.layout.base for mode in volumes if mode.filesystem is not None]
    return [*arrays, *layers]


def stored_volumes(modes: Iterable[Mode]) -> list[Mode]:
    """The modes whose layouts are built for these modes: one for each volume."""
    return list(dict.fromkeys(volume.stored for mode in modes for volume in mode.volumes))


def by_guest(modes: Iterable[Mode]) -> dict[str, list[Mode]]:
    """The modes whose disks each guest of a setup gets, by the guest's name. Each disk once."""
    disks_by_guest: dict[str, dict[Mode, None]] = {}
    for mode in modes:
        for volume in mode.volumes if mode.attach is not None else ():
            disks_by_guest.setdefault(volume.guest_name, {})[volume] = None
    return {name: list(disks) for name, disks in disks_by_guest.items()}


def places_needed(modes: Iterable[Mode]) -> tuple[int, ...]:
    """The places in the scenario's `disks` that the modes use, from 0, sorted. Always with 0, the baseline's disk."""
    return tuple(sorted({0, *(place for mode in modes for place in mode.layout.base.places)}))


def places_of(cells: Iterable[Cell]) -> tuple[int, ...]:
    """The same for the arms of these cells, with the reference of an array."""
    return tuple(sorted({0, *(place for cell in cells for place in cell.places)}))


def disks_in_words(names: Sequence[str]) -> str:
    """For example "ssd1, ssd2", or "ssd1 and 15 other disks"."""
    return ", ".join(names) if len(names) <= MOST_LISTED else f"{names[0]} and {len(names) - 1} other disks"


def _fit(modes: Sequence[Mode]) -> bool:
    guests = by_guest(modes)
    alternating = {mode.alternating for own in guests.values() for mode in own}
    return len(alternating) < 2 and len(regions(modes)) <= MOST_REGIONS and all(map(_fit_one_guest, guests.values()))


def _fit_one_guest(modes: Sequence[Mode]) -> bool:
    """Whether one guest can have the disks of all these modes."""
    attached = [mode.attach for mode in modes]
    if len({mode.guest for mode in modes}) > 1:
        return False  # One guest has all disks of a setup.
    if any(isinstance(attach, Vfio) for attach in attached):
        return len(attached) == 1  # The host does not have the disk while this guest has it.
    daemons = [isinstance(attach, Attach) and not attach.in_qemu for attach in attached]
    if any(daemons) and (not all(daemons) or len(daemons) > 1):
        # The guest's memory is shared with the daemon, so its pages are others. All daemons give one serial number.
        return False
    disks = [attach for attach in attached if isinstance(attach, Attach)]
    scsi = {(attach.bus, attach.controller) for attach in disks if attach.bus in SCSI_BUSES}
    if len(scsi) > 1 and any(mode.on_node for mode in modes):
        return False  # A VM of Proxmox VE has one kind of SCSI controller.
    buses = [attach.bus for attach in disks]
    if "ide" in buses and set(buses) != {"ide"}:
        return False  # IDE needs another machine type, which would be a second difference between the modes.
    on_root_bus = len(buses) - buses.count("sata") - buses.count("ide")
    return on_root_bus <= MOST_ON_ROOT_BUS and all(buses.count(bus) <= BUSES[bus].most for bus in buses)


@dataclass(frozen=True)
class Group:
    """One disk, a batch of jobs, and the selected cells. They are measured together, in rounds."""

    id: str
    disk: str
    scenario: str
    cells: tuple[Cell, ...]
    blocks: int = 1
    """Blocks of each job in a round."""
    setup: int = 1
    """The number of its setup in the plan."""
    disk_iops: float = USUAL_IOPS
    """The I/Os per second of each disk with which its time is estimated."""

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms that the cells need, each once, the host first."""
        return tuple(self._jobs_by_arm)

    def jobs_of(self, arm: Arm) -> tuple[Job, ...]:
        """The jobs of the cells that need this arm. The host runs all jobs."""
        return tuple(self._jobs_by_arm.get(arm, ()))

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(dict.fromkeys(cell.job for cell in self.cells))

    @cached_property
    def round_seconds(self) -> float:
        """fio seconds of one round over all arms, with what slices wait for backups and layouts."""
        arms = self._jobs_by_arm
        return self.blocks * sum(job.wall + waiting(job, arm, arms) for arm, jobs in arms.items() for job in jobs)

    @cached_property
    def writing_seconds(self) -> float:
        """The part of `round_seconds` in which jobs write. A second on an array counts once for each of its disks.

        The spare of a rebuilding array is written to all the time, also by jobs that read.
        """
        jobs = self.blocks * sum(
            job.wall * (arm.mode.layout.base.disks if arm.mode else 1)
            for arm, jobs in self._jobs_by_arm.items()
            for job in jobs
            if arm.writes(job)
        )
        spares = self.blocks * sum(
            job.wall for arm, jobs in self._jobs_by_arm.items() if rebuilds(arm.mode) for job in jobs
        )
        return jobs + spares + REBUILD_SECONDS * self.recoveries

    @property
    def recoveries(self) -> int:
        """The recoveries of arrays in a round: one for each timetable of a mode on a rebuilding array."""
        return self.counts.recoveries

    @cached_property
    def counts(self) -> Counts:
        """The slices and timetables of a round."""
        return count_timetables(self._jobs_by_arm, self.blocks, self.usual_pause)

    def work(self, rounds: int, together: int = 1) -> dict[Kind, float]:
        """The usual times of so many rounds, without boots and without what is measured again.

        So many of them `together` share their timetables.
        """
        counts = count_timetables(self._jobs_by_arm, together * self.blocks, self.usual_pause)
        timetables = rounds * counts.timetables / together + min(rounds, 1) * counts.first
        return {
            "fio": rounds * self.round_seconds,
            "pause": rounds * self.blocks * self._pauses(self.disk_iops) + min(rounds, 1) * self._first_pauses,
            "start": timetables * START_SECONDS,
            "recovery": rounds * counts.recoveries / together * RECOVERY_SECONDS,
        }

    def usual_pause(self, job: Job, arm: Arm, iops: float | None = None) -> float:
        """The usual time between a slice and the next one, and between its ramp and its measured time.

        `iops` of each disk, else those of the group.
        """
        drained = DRAIN_MARGIN * drain_seconds(job, arm, iops or self.disk_iops)
        return PAUSE_SECONDS + (2 * drained if job.ramp else drained)

    def _pauses(self, iops: float) -> float:
        """The pauses of a block of each job."""
        return sum(self.usual_pause(job, arm, iops) for arm, jobs in self._jobs_by_arm.items() for job in jobs)

    @cached_property
    def _first_pauses(self) -> float:
        """By how much the pauses of the first block are longer: they are not known yet."""
        if self.disk_iops >= ROTATIONAL_IOPS:
            return 0.0
        return max(self._pauses(UNKNOWN_IOPS) - self._pauses(self.disk_iops), 0.0)

    @cached_property
    def _jobs_by_arm(self) -> dict[Arm, dict[Job, None]]:
        """The jobs of each arm, in the order of the cells."""
        jobs_by_arm: dict[Arm, dict[Job, None]] = {Arm(Place.HOST): {}}
        for cell in self.cells:
            for arm in cell.arms:
                jobs_by_arm.setdefault(arm, {})[cell.job] = None
        return jobs_by_arm


@dataclass(frozen=True)
class Setup:
    """Modes that are built and attached at the same time. They are taken down before the next setup begins.

    Each of its groups has the host among its arms. So every cell has a baseline of its own setup.
    """

    number: int
    disks: tuple[str, ...]
    """The disks that its layouts need, the host's baseline first."""
    groups: tuple[Group, ...]

    @cached_property
    def modes(self) -> tuple[Mode, ...]:
        """The modes of its cells, and those that they are compared with."""
        modes = (cell.mode for group in self.groups for cell in group.cells)
        return tuple(dict.fromkeys(each for mode in modes for each in (mode.against, mode) if each is not None))

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(dict.fromkeys(job for group in self.groups for job in group.jobs))

    @property
    def boot_seconds(self) -> float:
        """The usual time to boot its guests once, with the disks of all modes."""
        guests = by_guest(mode for mode in self.modes if mode.attach is not None)
        return sum(BOOT_SECONDS + ATTACH_SECONDS * len(modes) for modes in guests.values())

    @property
    def build_seconds(self) -> float:
        """The usual time to build its layouts."""
        return BUILD_SECONDS + LAYER_SECONDS * len(self.bases) + ARRAY_SECONDS * self._members

    @property
    def end_seconds(self) -> float:
        """The usual time to take it down."""
        removed = REMOVE_SECONDS * len(self.modes) + REMOVE_ARRAY_SECONDS * self._members
        return END_SECONDS + removed

    @property
    def _members(self) -> int:
        """The disks of all its arrays."""
        return sum(base.disks for base in self.bases if not isinstance(base, Device))

    @property
    def filled_regions(self) -> float:
        """The bytes that filling all regions writes, as a multiple of one region. Includes mirrors and parity."""
        return sum(base.bytes_written for base in self.bases)

    @cached_property
    def bases(self) -> tuple[Base, ...]:
        """The base of each region, with those of the host's baseline and of the reference of an array."""
        return (*(Device() for _ in self.bare_places), *regions(self.modes))

    @cached_property
    def bare_places(self) -> tuple[int, ...]:
        """The places of the disks with a bare region: that of the host's baseline, and the reference of an array."""
        references = {REFERENCE_PLACE for group in self.groups for cell in group.cells if cell.reference}
        return (0, *sorted(references))
