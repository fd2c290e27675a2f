"""The plan for one disk: its groups of cells and their setups, and what measuring them costs. Pure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, TypeVar

from harness.model.base import Base, Device
from harness.model.cell import REFERENCE_PLACE, Arm, Cell, Place
from harness.model.job import Job
from harness.model.mode import Mode
from harness.model.profile import Conditioning
from harness.scenario import paces
from harness.scenario.paces import Kind, Paces
from harness.scenario.setups import by_guest, places_of, regions
from harness.scenario.timetable import Counts, count_timetables, drain_seconds, rebuilds, waiting

FIO_SHARE = 0.84
"""The share of a round in which fio runs, measured with `smoke`. Starts of fio and pauses take the rest."""
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
MOST_ROUNDS = 1000
"""The largest number of rounds of a plan whose time the user sets."""
STEADY_FILLS = 2
STEADY_ROUNDS = (5, 25)
"""Fills, and the fewest and most rounds until steady: SNIA's Solid State Storage Performance Test Specification."""
STEADY_SECONDS = 10.0
"""The time of the job on each region in such a round."""


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
        """fio seconds of one round over all arms, with what slices during a backup wait for it."""
        return self.blocks * sum(job.wall + waiting(arm) for arm, jobs in self._jobs_by_arm.items() for job in jobs)

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

    def work(self, rounds: int) -> dict[Kind, float]:
        """The usual times of so many rounds, without boots and without what is measured again."""
        counts = self.counts
        timetables = rounds * counts.timetables + min(rounds, 1) * counts.first
        return {
            "fio": rounds * self.round_seconds,
            "pause": rounds * self.blocks * self._pauses(self.disk_iops) + min(rounds, 1) * self._first_pauses,
            "start": timetables * paces.START_SECONDS,
            "recovery": rounds * counts.recoveries * paces.RECOVERY_SECONDS,
        }

    def usual_pause(self, job: Job, arm: Arm, iops: float | None = None) -> float:
        """The usual time between a slice and the next one, and between its ramp and its measured time.

        `iops` of each disk, else those of the group.
        """
        drained = DRAIN_MARGIN * drain_seconds(job, arm, iops or self.disk_iops)
        return paces.PAUSE_SECONDS + (2 * drained if job.ramp else drained)

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
        found: dict[Arm, dict[Job, None]] = {Arm(Place.HOST): {}}
        for cell in self.cells:
            for arm in cell.arms:
                found.setdefault(arm, {})[cell.job] = None
        return found


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
        return sum(paces.BOOT_SECONDS + paces.ATTACH_SECONDS * len(modes) for modes in guests.values())

    @property
    def build_seconds(self) -> float:
        """The usual time to build its layouts."""
        return paces.BUILD_SECONDS + paces.LAYER_SECONDS * len(self.bases) + paces.ARRAY_SECONDS * self._members

    @property
    def end_seconds(self) -> float:
        """The usual time to take it down."""
        removed = paces.REMOVE_SECONDS * len(self.modes) + paces.REMOVE_ARRAY_SECONDS * self._members
        return paces.END_SECONDS + removed

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


@dataclass(frozen=True, kw_only=True)
class FollowUp(ABC):
    """What a feature measures after the rounds of a group. `cells` are those of the group that it is about."""

    kind: ClassVar[str]
    """A word for what it is."""
    title: ClassVar[str]
    """As a plan names it, for example "highest load"."""
    description: ClassVar[str]
    """As a sentence about a plan names it, for example "the search for the highest load"."""

    group: str
    name: str
    cells: tuple[Cell, ...]

    @property
    def id(self) -> str:
        """The name of its own rounds in the journal, and of its record: `GROUP-KIND-NAME`."""
        return f"{self.group}-{self.kind}-{self.name}"

    @property
    @abstractmethod
    def usual_seconds(self) -> float:
        """fio seconds that it usually takes."""

    @property
    @abstractmethod
    def most_seconds(self) -> float:
        """The longest time that it takes."""

    @property
    @abstractmethod
    def writes(self) -> bool:
        """Whether its jobs write."""

    @abstractmethod
    def bytes_written(self, write_rate: int, place: int | None = None) -> float:
        """The bytes that it writes at most to disks that write `write_rate` bytes per second.

        With `place`, only to the disk at this place of the scenario's disks.
        """


_FollowUpT = TypeVar("_FollowUpT", bound=FollowUp)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a plan leaves out to write less: in words, and the cells that are therefore not measured."""

    what: str
    cells: tuple[Cell, ...] = ()
    option: str = ""
    """The option that limits what is written."""


@dataclass(frozen=True)
class Plan:
    """What to measure on one disk, and the cost. `span` in bytes, `write_rate` in bytes per second.

    `rounds` is the minimum and `most_rounds` the maximum number of rounds. `target`, `time_limit`, `conditioning` and
    `reboot` have the meaning that they have in the profile. `disks` are the disks for arrays, `disk` first. Without
    arrays, `disks` has only `disk`. `follow_ups` come after the rounds of their groups. `limits` are the bytes that
    it may write to each disk, by the disk's name; empty without a limit. `left_out` is what it therefore leaves out.
    """

    disk: str
    groups: tuple[Group, ...]
    rounds: int
    span: int
    write_rate: int
    most_rounds: int = 0
    target: float | None = None
    time_limit: float | None = None
    conditioning: Conditioning = "fill"
    reboot: bool = False
    disks: tuple[str, ...] = ()
    follow_ups: tuple[FollowUp, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()
    paces: Paces = field(default_factory=Paces)
    """How long the kinds of work take on its host."""
    offered: tuple[str, ...] | None = None
    """The kinds of layouts that its storage in use offers; None if that is not known, or on a disk."""
    traced_seconds: float = 0.0
    """For how long breakdowns are measured."""

    def __post_init__(self) -> None:
        if self.most_rounds < self.rounds:
            object.__setattr__(self, "most_rounds", self.rounds)
        if not self.disks:
            object.__setattr__(self, "disks", (self.disk,))

    def on(
        self,
        known: Paces,
        disk_iops: float | None,
        offered: tuple[str, ...] | None = None,
        traced_seconds: float = 0.0,
    ) -> Plan:
        """The same plan, with times as on this host. `disk_iops`: of its slowest disk, if that is known.

        `offered` are the kinds of layouts that its storage offers. The run skips the other modes, which take no time.
        `traced_seconds`: for how long breakdowns are measured.
        """
        groups = self.groups
        if disk_iops is not None:
            groups = tuple(replace(group, disk_iops=disk_iops) for group in groups)
        return replace(self, groups=groups, paces=known, offered=offered, traced_seconds=traced_seconds)

    @cached_property
    def _expected(self) -> Plan:
        """The plan without the cells of which it is known that the run skips them."""
        if self.offered is None:
            return self
        gone = [
            cell for cell in self.cells if cell.mode.attach is not None and cell.mode.layout.kind not in self.offered
        ]
        left = replace(self, offered=None).without(gone)
        # Nothing is measured just for the host.
        guests = [group for group in left.groups if any(cell.mode.attach is not None for cell in group.cells)]
        whole = {group.id for group in self.groups if all(cell.mode.attach is None for cell in group.cells)}
        return replace(left, groups=tuple(group for group in left.groups if group in guests or group.id in whole))

    def with_rounds(self, number: int) -> Plan:
        """The same plan with a fixed number of rounds."""
        return replace(self, rounds=number, most_rounds=number)

    def with_time(self, seconds: float) -> Plan:
        """The same plan with as many rounds as this time allows, but at least `rounds`."""
        return replace(self, time_limit=seconds, most_rounds=max(self.rounds, MOST_ROUNDS))

    def without(self, cells: Iterable[Cell]) -> Plan:
        """The same plan without these cells. The groups and setups keep their names."""
        gone = {cell.id for cell in cells}
        groups = (replace(group, cells=_others(group.cells, gone)) for group in self.groups)
        follow_ups = (replace(follow_up, cells=_others(follow_up.cells, gone)) for follow_up in self.follow_ups)
        return replace(
            self,
            groups=tuple(group for group in groups if group.cells),
            follow_ups=tuple(follow_up for follow_up in follow_ups if follow_up.cells),
        )

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for group in self.groups for cell in group.cells)

    @cached_property
    def setups(self) -> tuple[Setup, ...]:
        """The setups in the order in which they are measured."""
        by_number: dict[int, list[Group]] = {}
        for group in self.groups:
            by_number.setdefault(group.setup, []).append(group)
        return tuple(Setup(number, self._disks_of(groups), tuple(groups)) for number, groups in by_number.items())

    @property
    def expected_setups(self) -> tuple[Setup, ...]:
        """The setups that are built, as far as is known before the run."""
        return self._expected.setups

    def follow_ups_of(self, kind: type[_FollowUpT], group: Group) -> tuple[_FollowUpT, ...]:
        """What follows the rounds of this group, of one kind."""
        return tuple(each for each in self.follow_ups if isinstance(each, kind) and each.group == group.id)

    def setup_of(self, group: Group) -> Setup:
        """The setup of the group."""
        return next(setup for setup in self.setups if setup.number == group.setup)

    @cached_property
    def fio_seconds(self) -> float:
        """fio seconds of the fewest rounds of all groups and of usual follow-ups, without conditioning."""
        return self.rounds * self._round_seconds + sum(follow_up.usual_seconds for follow_up in self.follow_ups)

    def seconds_of(self, rounds: int) -> float:
        """The time for measuring so many rounds of all groups, with the starts of fio and the pauses."""
        return rounds * self._round_seconds / FIO_SHARE

    @property
    def minutes(self) -> float:
        """The estimate in minutes, from the command to its end: the fewest rounds, and the shortest conditioning."""
        return self.paces.seconds(self.work(self.fewest_steady_rounds)) / 60

    @property
    def most_minutes(self) -> float:
        """The upper bound in minutes: the maximum number of rounds, and the longest conditioning."""
        return self.paces.seconds(self.work(self._steady_rounds[1], most=True)) / 60

    def work(self, steady_rounds: int, *, most: bool = False) -> dict[Kind, float]:
        """The usual times of all its work, with the fewest rounds of its groups or with the most."""
        found = dict.fromkeys(paces.KINDS, 0.0)
        for group in self.groups:
            for kind, seconds in self.group_work(group, most=most).items():
                found[kind] += seconds
        for setup in self._expected.setups:
            for kind, seconds in self.setup_work(setup, steady_rounds).items():
                found[kind] += seconds
        found["fio"] += self.traced_seconds
        if self.groups:
            found |= {"program": paces.PROGRAM_SECONDS, "lab": paces.LAB_SECONDS}
        return found

    @property
    def once_minutes(self) -> float:
        """The part of `minutes` that the plans of one run on a host have in common."""
        found: dict[Kind, float] = {"program": paces.PROGRAM_SECONDS, "lab": paces.LAB_SECONDS}
        return self.paces.seconds(found) / 60 if self.groups else 0.0

    def group_work(self, group: Group, *, most: bool = False) -> dict[Kind, float]:
        """The usual times of measuring the group: the fewest rounds or the most, and what follows them."""
        rounds = self.most_rounds_of(group) if most else self.rounds
        own = next((each for each in self._expected.groups if each.id == group.id), None)
        if own is None:
            return {}
        found = own.work(rounds)
        found["again"] = paces.AGAIN_SHARE * sum(found.values())
        found["fio"] += sum(
            follow_up.most_seconds if most else follow_up.usual_seconds / FIO_SHARE
            for follow_up in self.follow_ups
            if follow_up.group == group.id
        )
        # The first boot belongs to the setup. Guests that take turns are booted for each of their timetables.
        boots = rounds - 1 if self.reboots(group) else 0
        found["boot"] = max(boots, 0) * self._expected.setup_of(own).boot_seconds
        return found

    def setup_work(self, setup: Setup, steady_rounds: int) -> dict[Kind, float]:
        """The usual times to prepare the setup, and to take it down."""
        fills = STEADY_FILLS if self.conditioning == "steady" else 1
        steady = steady_rounds * STEADY_SECONDS * len(setup.bases) / FIO_SHARE
        size = fills * self.span * setup.filled_regions
        return {
            "build": setup.build_seconds,
            "condition": paces.FILL_SECONDS + self.paces.fill_seconds(size, self.write_rate) + steady,
            "boot": setup.boot_seconds,
            "end": setup.end_seconds,
        }

    def reboots(self, group: Group) -> bool:
        """Whether the guest is booted anew for each round of the group.

        Guests of variants that run one after the other always are. A round is then a sample.
        """
        return self.reboot or any(cell.mode.alternating for cell in group.cells)

    def most_rounds_of(self, group: Group) -> int:
        """`most_rounds`, or as many rounds as fit into `time_limit`. Never fewer than `rounds`."""
        if self.time_limit is None:
            return self.most_rounds
        fitting = int(self.limit_of(group) * FIO_SHARE / group.round_seconds)
        return min(self.most_rounds, max(self.rounds, fitting))

    def limit_of(self, group: Group) -> float:
        """The group's part of `time_limit` in seconds, by the length of its rounds; infinite without a limit."""
        if self.time_limit is None:
            return math.inf
        return self.time_limit * group.round_seconds / self._round_seconds

    def fill_bytes(self, span: int) -> int:
        """The bytes that fill the regions of all setups before measuring. Each region has `span` bytes.

        The bare device has a region, and so has each mode with a layout on it. All groups of a setup share the regions.
        """
        fills = STEADY_FILLS if self.conditioning == "steady" else 1
        return round(fills * span * sum(setup.filled_regions for setup in self.setups))

    @property
    def write_bytes(self) -> float:
        """The bytes written at most: conditioning, every writing job at the disk's full write rate, and follow-ups.

        Jobs that are measured again, because of carry-over or overlapping slices, keep to what the others leave of it.
        """
        steady = self._steady_seconds(self._steady_rounds[1]) * self.write_rate
        following = sum(follow_up.bytes_written(self.write_rate) for follow_up in self.follow_ups)
        return self.fill_bytes(self.span) + steady + sum(map(self.bytes_of, self.groups)) + following

    def bytes_of(self, group: Group) -> float:
        """The part of `write_bytes` for measuring the group, without conditioning."""
        return self.most_rounds_of(group) * group.writing_seconds * self.write_rate

    def _disks_of(self, groups: Iterable[Group]) -> tuple[str, ...]:
        places = places_of(cell for group in groups for cell in group.cells)
        return tuple(self.disks[place] for place in places)

    @cached_property
    def _round_seconds(self) -> float:
        """fio seconds of one round of all groups."""
        return sum(group.round_seconds for group in self.groups)

    @property
    def fewest_steady_rounds(self) -> int:
        """The fewest rounds of conditioning on each region."""
        return self._steady_rounds[0]

    @property
    def _steady_rounds(self) -> tuple[int, int]:
        return STEADY_ROUNDS if self.conditioning == "steady" else (0, 0)

    def _steady_seconds(self, steady_rounds: int) -> float:
        """The time of these conditioning rounds: one job on each region of each setup."""
        return steady_rounds * STEADY_SECONDS * sum(len(setup.bases) for setup in self.setups)


def _others(cells: Iterable[Cell], gone: Collection[str]) -> tuple[Cell, ...]:
    return tuple(cell for cell in cells if cell.id not in gone)
