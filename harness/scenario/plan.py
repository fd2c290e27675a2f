"""From a scenario to cells, groups, their cost, and the random order of every round. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from harness.scenario.library import profile_of
from harness.scenario.model import Arm, Cell, Device, Job, Place, Scenario
from harness.units import format_size

FIO_SHARE = 0.87
"""The share of a round that fio runs; the rest is starting fio and reading counters (measured)."""
STARTUP_SECONDS = 45.0
"""Building layouts and starting the guest of a group, without filling."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Group:
    """One disk, a batch of jobs, and the selected cells: what is measured together, arm after arm, in rounds."""

    id: str
    disk: str
    scenario: str
    cells: tuple[Cell, ...]

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms that the cells need, host first, each once."""
        return tuple(dict.fromkeys([Arm(Place.HOST), *(arm for cell in self.cells for arm in cell.arms)]))

    def jobs_of(self, arm: Arm) -> tuple[Job, ...]:
        """The jobs this arm runs: those of the cells that need it. The host runs all."""
        return tuple(dict.fromkeys(cell.job for cell in self.cells if arm in cell.arms))

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(dict.fromkeys(cell.job for cell in self.cells))

    @property
    def round_seconds(self) -> float:
        """fio seconds of one round over all arms."""
        return sum(job.wall for arm in self.arms for job in self.jobs_of(arm))

    @property
    def writing_seconds(self) -> float:
        """The part of `round_seconds` in which jobs write."""
        return sum(job.wall for arm in self.arms for job in self.jobs_of(arm) if job.writes)

    @property
    def regions(self) -> int:
        """Regions of the disk that are filled: the device's own, and one per mode with a layout on it."""
        return 1 + len({cell.mode for cell in self.cells if not isinstance(cell.mode.layout, Device)})


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured on one disk and what it costs. `span` in bytes, `write_rate` in bytes per second."""

    disk: str
    groups: tuple[Group, ...]
    rounds: int
    span: int
    write_rate: int

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for group in self.groups for cell in group.cells)

    @property
    def fio_seconds(self) -> float:
        return self.rounds * sum(group.round_seconds for group in self.groups)

    @property
    def minutes(self) -> float:
        """The estimate: all rounds of all groups, filling, and the start of each group."""
        filling = self.fill_bytes(self.span) / self.write_rate
        return (self.fio_seconds / FIO_SHARE + filling + STARTUP_SECONDS * len(self.groups)) / 60

    def fill_bytes(self, span: int) -> int:
        """Bytes that fill the regions of all groups, `span` each, before anything is measured."""
        return span * sum(group.regions for group in self.groups)

    @property
    def write_bytes(self) -> float:
        """The most that can be written: filling, and every writing job at the disk's full write rate."""
        writing_seconds = self.rounds * sum(group.writing_seconds for group in self.groups)
        return self.fill_bytes(self.span) + writing_seconds * self.write_rate

    def describe(self) -> str:
        """For example `40 cells in 1 group, 8 arms, 3 rounds: about 5 min, at most 192 GiB written to optane`."""
        arms = len({arm for group in self.groups for arm in group.arms})
        counts = f"{_count(len(self.cells), 'cell')} in {_count(len(self.groups), 'group')}"
        return (
            f"{counts}, {_count(arms, 'arm')}, {_count(self.rounds, 'round')}: about {_hours(self.minutes)}, "
            f"at most {format_size(self.write_bytes)} written to {self.disk}"
        )


def expand(scenario: Scenario, profile_name: str) -> list[Cell]:
    """All cells: by workload, then iodepth, then mode, so that the modes of one job stand side by side.

    The cells of a group follow each other, too: pytest's progress is the campaign's.
    """
    profile = profile_of(scenario.profiles, profile_name)
    return [
        Cell(scenario.name, scenario.disk, mode, workload.job(iodepth, ramp=profile.ramp, seconds=profile.runtime))
        for workload in scenario.workloads
        for iodepth in profile.iodepth
        for mode in scenario.modes
    ]


def group_cells(cells: Iterable[Cell], max_round_seconds: float) -> list[Group]:
    """The cells in groups whose round takes at most `max_round_seconds` of fio, or has but one job.

    Jobs stay in the order of the cells. The ids are `SCENARIO-batch1`, `SCENARIO-batch2`, ...
    """
    by_disk: dict[tuple[str, str], dict[Job, list[Cell]]] = {}
    for cell in cells:
        by_disk.setdefault((cell.scenario, cell.disk), {}).setdefault(cell.job, []).append(cell)
    return [
        Group(f"{scenario}-batch{number}", disk, scenario, tuple(batch))
        for (scenario, disk), cells_of_job in by_disk.items()
        for number, batch in enumerate(_batches(list(cells_of_job.values()), max_round_seconds), start=1)
    ]


def plan_for(scenario: Scenario, profile_name: str, selected: Iterable[Cell] | None = None) -> Plan:
    """The plan for `selected` cells of this scenario, or for all of them."""
    profile = profile_of(scenario.profiles, profile_name)
    cells = expand(scenario, profile_name) if selected is None else selected
    groups = group_cells(cells, profile.round_limit)
    return Plan(scenario.disk, tuple(groups), profile.rounds, profile.span, scenario.write_rate)


def round_order(group: Group, seed: int, round_number: int) -> list[Arm]:
    """The arms in the random order of this round: the same whenever seed, group and round are."""
    return _shuffled(group.arms, f"arms {seed} {group.id} {round_number}")


def job_order(group: Group, seed: int, round_number: int) -> list[Job]:
    """The jobs in the random order of this round, which all its arms share."""
    return _shuffled(group.jobs, f"jobs {seed} {group.id} {round_number}")


def _batches(cells_by_job: Sequence[list[Cell]], max_round_seconds: float) -> list[list[Cell]]:
    batches: list[list[Cell]] = []
    room = 0.0
    for cells in cells_by_job:
        arms = {arm for cell in cells for arm in cell.arms}
        cost = len(arms) * cells[0].job.wall
        if not batches or cost > room:
            batches.append([])
            room = max_round_seconds
        batches[-1] += cells
        room -= cost
    return batches


def _shuffled(items: Sequence[T], seed: str) -> list[T]:
    return random.Random(seed).sample(items, len(items))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _hours(minutes: float) -> str:
    whole = max(1, round(minutes))
    return f"{whole} min" if whole < 120 else f"{whole // 60} h {whole % 60} min"
