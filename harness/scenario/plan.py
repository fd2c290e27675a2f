"""Expands a scenario into cells and groups, and estimates their cost. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from harness.model.base import Base, Device
from harness.model.job import Job, Workload
from harness.model.mode import REFERENCE_PLACE, Arm, Cell, Mode, Place
from harness.model.profile import Conditioning, Profile, profile_of
from harness.scenario.scenario import Scenario
from harness.scenario.searches import PlannedSearch, planned_searches
from harness.scenario.setups import disks_in_words, places_of, regions, setups
from harness.scenario.timetable import rebuilds, takes_turns, waiting
from harness.units import format_size

FIO_SHARE = 0.84
"""The share of a round in which fio runs, measured with `smoke`. Starts of fio and pauses take the rest."""
STARTUP_SECONDS = 45.0
"""The time to build the layouts of a setup and to start its guest, without filling."""
REBUILD_SECONDS = 6.0
"""The time to start and to end the recovery of an array, for each job of a round."""
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

    @cached_property
    def recoveries(self) -> int:
        """The recoveries of arrays in a round: one for each job of each mode on a rebuilding array."""
        return len({(cell.mode, cell.job) for cell in self.cells if rebuilds(cell.mode)})

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


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a plan leaves out to write less: in words, and the cells that are therefore not measured."""

    what: str
    cells: tuple[Cell, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What to measure on one disk, and the cost. `span` in bytes, `write_rate` in bytes per second.

    `rounds` is the minimum and `most_rounds` the maximum number of rounds. `target`, `time_limit`, `conditioning` and
    `reboot` have the meaning that they have in the profile. `disks` are the disks for arrays, `disk` first. Without
    arrays, `disks` has only `disk`. `searches` follow the rounds of their groups. `limits` are the bytes that it may
    write to each disk, by the disk's name; empty without a limit. `left_out` is what it therefore leaves out.
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
    searches: tuple[PlannedSearch, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()

    def __post_init__(self) -> None:
        if self.most_rounds < self.rounds:
            object.__setattr__(self, "most_rounds", self.rounds)
        if not self.disks:
            object.__setattr__(self, "disks", (self.disk,))

    def with_rounds(self, number: int) -> Plan:
        """The same plan with a fixed number of rounds."""
        return replace(self, rounds=number, most_rounds=number)

    def with_time(self, seconds: float) -> Plan:
        """The same plan with as many rounds as this time allows, but at least `rounds`."""
        return replace(self, time_limit=seconds, most_rounds=max(self.rounds, MOST_ROUNDS))

    def without(self, cells: Iterable[Cell]) -> Plan:
        """The same plan without these cells. The groups and setups keep their names."""
        gone = {cell.id for cell in cells}
        groups = (replace(each, cells=_others(each.cells, gone)) for each in self.groups)
        searches = (replace(each, cells=_others(each.cells, gone)) for each in self.searches)
        return replace(
            self,
            groups=tuple(each for each in groups if each.cells),
            searches=tuple(each for each in searches if each.cells),
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

    def setup_of(self, group: Group) -> Setup:
        """The setup of the group."""
        return next(setup for setup in self.setups if setup.number == group.setup)

    @cached_property
    def fio_seconds(self) -> float:
        """fio seconds of the fewest rounds of all groups and of usual searches, without conditioning."""
        searching = sum(each.usual_seconds for each in self.searches)
        return self.rounds * self._round_seconds + searching

    def seconds_of(self, rounds: int) -> float:
        """The time for measuring so many rounds of all groups, with the starts of fio and the pauses."""
        return rounds * self._round_seconds / FIO_SHARE

    @property
    def minutes(self) -> float:
        """The estimate in minutes: the minimum number of rounds, the shortest conditioning, and the start."""
        rebuilding = self.rounds * sum(group.recoveries for group in self.groups) * REBUILD_SECONDS
        return self._minutes(self.fio_seconds, self._steady_rounds[0]) + rebuilding / 60

    @property
    def most_minutes(self) -> float:
        """The upper bound in minutes: the maximum number of rounds, the longest conditioning, and the start."""
        rounds = sum(self.most_rounds_of(group) * group.round_seconds for group in self.groups)
        searching = sum(each.search.time_limit for each in self.searches) * FIO_SHARE
        rebuilding = sum(self.most_rounds_of(group) * group.recoveries for group in self.groups) * REBUILD_SECONDS
        return self._minutes(rounds + searching, self._steady_rounds[1]) + rebuilding / 60

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
        """The bytes written at most: conditioning, every writing job at the disk's full write rate, and searches.

        Jobs that are measured again, because of carry-over or overlapping slices, keep to what the others leave of it.
        """
        steady = self._steady_seconds(self._steady_rounds[1]) * self.write_rate
        searching = sum(each.bytes_written(self.write_rate) for each in self.searches)
        return self.fill_bytes(self.span) + steady + sum(map(self.bytes_of, self.groups)) + searching

    def bytes_of(self, group: Group) -> float:
        """The part of `write_bytes` for measuring the group, without conditioning."""
        return self.most_rounds_of(group) * group.writing_seconds * self.write_rate

    def describe(self) -> str:
        """For example `40 cells in 1 group, 8 arms, 3 rounds: about 5 min, at most 192 GiB written to optane`.

        If the number of rounds varies: `3 to 12 rounds: about 40 min, at most 2 h 10 min, at most ...`. With more than
        one setup: `in 5 groups and 4 setups`. With searches: `3 rounds, 1 x highest load: ...`.
        """
        arms = len({arm for group in self.groups for arm in group.arms})
        number = len(self.setups)
        groups = _count(len(self.groups), "group") + (f" and {number} setups" if number > 1 else "")
        disks = max((setup.disks for setup in self.setups), key=len, default=(self.disk,))
        several = self.most_rounds > self.rounds
        rounds = f"{self.rounds} to {self.most_rounds} rounds" if several else _count(self.rounds, "round")
        about, most = _hours(self.minutes), _hours(self.most_minutes)
        searches = f", {len(self.searches)} x highest load" if self.searches else ""
        return (
            f"{_count(len(self.cells), 'cell')} in {groups}, {_count(arms, 'arm')}, "
            f"{rounds}{searches}: about {about}, {f'at most {most}, ' if most != about else ''}"
            f"at most {format_size(self._most_written(disks))} written to {disks_in_words(disks)}"
        )

    def _most_written(self, disks: Iterable[str]) -> float:
        """`write_bytes`, within the limits of the disks."""
        limit = sum(self.limits.get(disk, math.inf) for disk in disks)
        return min(self.write_bytes, limit)

    def _disks_of(self, groups: Iterable[Group]) -> tuple[str, ...]:
        places = places_of(cell for group in groups for cell in group.cells)
        return tuple(self.disks[place] for place in places)

    @cached_property
    def _round_seconds(self) -> float:
        """fio seconds of one round of all groups."""
        return sum(group.round_seconds for group in self.groups)

    @property
    def _steady_rounds(self) -> tuple[int, int]:
        return STEADY_ROUNDS if self.conditioning == "steady" else (0, 0)

    def _steady_seconds(self, steady_rounds: int) -> float:
        """The time of these conditioning rounds: one job on each region of each setup."""
        return steady_rounds * STEADY_SECONDS * sum(len(setup.bases) for setup in self.setups)

    def _minutes(self, fio_seconds: float, steady_rounds: int) -> float:
        steady = self._steady_seconds(steady_rounds)
        filling = self.fill_bytes(self.span) / self.write_rate
        return ((fio_seconds + steady) / FIO_SHARE + filling + STARTUP_SECONDS * len(self.setups)) / 60


def expand(scenario: Scenario, profile_name: str) -> list[Cell]:
    """All cells, sorted by setup, workload, iodepth and mode. So the modes of one job are next to each other.

    The cells of a group also follow each other, so pytest's progress shows the progress of the campaign.
    """
    profile = profile_of(scenario.profiles, profile_name)
    return [
        Cell(scenario.name, scenario.disk, mode, job, scenario.reference)
        for together in setups(scenario.modes)
        for job in _jobs(scenario.workloads, profile, together)
        for mode in together
    ]


def _jobs(workloads: Sequence[Workload], profile: Profile, together: Sequence[Mode]) -> Iterator[Job]:
    """The jobs of a setup with these modes. Arms that take turns have one long slice instead of several."""
    slices = profile.blocks if takes_turns(together) else 1
    for workload in workloads:
        seconds = (profile.own_times and workload.seconds_each) or profile.runtime
        for iodepth in workload.depths(profile.iodepth):
            yield workload.job(iodepth, ramp=profile.ramp, seconds=seconds * slices)


def group_cells(cells: Iterable[Cell], max_round_seconds: float, *, blocks: int = 1) -> list[Group]:
    """Splits the cells into groups. The modes of a group are in one setup.

    A round of a group takes at most `max_round_seconds` of fio. A group with only one job may take longer. Jobs stay in
    the order of the cells. The ids are `SCENARIO-batch1`, `SCENARIO-batch2`, ... Groups of one setup follow each other.
    """
    by_scenario: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        by_scenario.setdefault((cell.scenario, cell.disk), []).append(cell)
    return [
        Group(f"{scenario}-batch{number}", disk, scenario, tuple(batch), _blocks(batch, blocks), setup)
        for (scenario, disk), own in by_scenario.items()
        for number, (setup, batch) in enumerate(_batches(own, max_round_seconds, blocks), start=1)
    ]


def plan_for(scenario: Scenario, profile_name: str, selected: Iterable[Cell] | None = None) -> Plan:
    """The plan for the `selected` cells of this scenario, or for all its cells."""
    profile = profile_of(scenario.profiles, profile_name)
    cells = expand(scenario, profile_name) if selected is None else selected
    groups = group_cells(cells, profile.round_limit, blocks=profile.blocks)
    return Plan(
        scenario.disk,
        tuple(groups),
        profile.rounds,
        profile.span,
        scenario.write_rate,
        most_rounds=profile.most_rounds,
        target=profile.target,
        time_limit=profile.time_limit,
        conditioning=profile.conditioning,
        reboot=profile.reboot,
        disks=scenario.disks,
        searches=tuple(
            search
            for group in groups
            for search in planned_searches(scenario.searches, group.id, group.cells, group.blocks)
        ),
    )


def _blocks(cells: Sequence[Cell], blocks: int) -> int:
    return 1 if takes_turns(cell.mode for cell in cells) else blocks


def _batches(cells: Sequence[Cell], max_round_seconds: float, blocks: int) -> Iterator[tuple[int, list[Cell]]]:
    """The cells of each group of one scenario, with the number of its setup."""
    for number, together in enumerate(setups(cell.mode for cell in cells), start=1):
        by_job: dict[Job, list[Cell]] = {}
        for cell in cells:
            if cell.mode in together:
                by_job.setdefault(cell.job, []).append(cell)
        for batch in _within_round(list(by_job.values()), max_round_seconds, blocks):
            yield number, batch


def _within_round(cells_by_job: Sequence[list[Cell]], max_round_seconds: float, blocks: int) -> list[list[Cell]]:
    batches: list[list[Cell]] = []
    room = 0.0
    for cells in cells_by_job:
        arms = {arm for cell in cells for arm in cell.arms}
        cost = len(arms) * _blocks(cells, blocks) * cells[0].job.wall
        if not batches or cost > room:
            batches.append([])
            room = max_round_seconds
        batches[-1] += cells
        room -= cost
    return batches


def _others(cells: Iterable[Cell], gone: Collection[str]) -> tuple[Cell, ...]:
    return tuple(cell for cell in cells if cell.id not in gone)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _hours(minutes: float) -> str:
    whole = max(1, round(minutes))
    return f"{whole} min" if whole < 120 else f"{whole // 60} h {whole % 60} min"
