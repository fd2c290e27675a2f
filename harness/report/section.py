"""A section of the report: what it shows of one disk in one scenario, its workloads, their arms, and its notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol, TypeVar

from harness.analysis import Estimate
from harness.feature import FeatureReport, feature_reports
from harness.model.disk import NetworkPath
from harness.report.draw import HOST, mode_colours, mode_symbols, safe
from harness.report.modes import Comparison, Headline, compare_modes
from harness.report.verdicts import allowed
from harness.results import ArmName, CellRecord, Outcome, Run


@dataclass(frozen=True, slots=True)
class ReportNote:
    """A note, and the cells that it is about."""

    text: str
    about: str


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of a disk's cells: `general` is for every cell, or every cell of some modes; `own` is by cell id."""

    general: tuple[ReportNote, ...]
    own: Mapping[str, tuple[str, ...]]


def notes_of(cells: Sequence[CellRecord]) -> Notes:
    """The notes of these cells: those that all measured cells of some modes (two or more) share, and those of a cell.

    Cells without a measurement, for example skipped ones, count only if their mode has no other cells.
    """
    measured = {cell.mode for cell in cells if cell.measured}
    counted = [cell for cell in cells if cell.measured or cell.mode not in measured]
    of_modes = Counter(cell.mode for cell in counted)
    guests = {cell.mode for cell in counted if not cell.is_baseline}
    holders: dict[str, list[str]] = {}
    for cell in counted:
        for text in cell.notes:
            holders.setdefault(text, []).append(cell.mode)
    general = {text: about for text, modes in holders.items() if (about := _all_of(modes, of_modes, guests))}
    return Notes(
        general=tuple(ReportNote(text, about) for text, about in general.items()),
        own={cell.id: tuple(text for text in cell.notes if text not in general) for cell in cells},
    )


def _all_of(holders: Sequence[str], of_modes: Counter[str], guests: Set[str]) -> str:
    """The cells of a note that is in one cell for each of these modes, in words; empty if other cells lack it."""
    modes = dict.fromkeys(holders)
    if len(holders) < 2 or len(holders) != sum(of_modes[mode] for mode in modes):
        return ""
    if modes.keys() == of_modes.keys():
        return "every cell"
    return "every cell of a guest" if modes.keys() == guests else f"every cell of {', '.join(modes)}"


_DASH = {"host": "solid", "twin": "dash", "guest": "solid"}


@dataclass(frozen=True, slots=True)
class ArmStyle:
    """How an arm looks in every chart. `key` is the name by which the page's legend shows and hides it."""

    name: str
    key: str
    colour: str
    symbol: str
    dash: str


@dataclass(frozen=True, slots=True)
class ArmOfCell:
    """One arm with the cell that has its values."""

    place: ArmName
    mode: str | None
    """None for the bare host."""
    cell: CellRecord
    source: ArmName
    """Where the cell's records have the arm's values. The baseline of several guests is their host, shown as a twin."""

    @property
    def label(self) -> str:
        return label_of(self.place, self.mode)

    @property
    def throughput(self) -> Estimate | None:
        """The mean over its blocks, in IO/s or B/s."""
        return self.cell.mean(self.cell.throughput, self.source)

    def mean(self, name: str) -> Estimate | None:
        """The mean over its blocks of the metric of this name, in its unit; None if it does not have it."""
        return self.cell.mean(self.cell.metrics.get(name), self.source)


def label_of(place: str, mode: str | None) -> str:
    """For example "guest lvm"; "host" for the bare host, whose mode is None."""
    return "host" if mode is None else f"{place} {mode}"


def look_of(modes: Sequence[str], place: str, mode: str | None) -> ArmStyle:
    """The look of an arm among these `modes` of its disk. Its name is escaped."""
    return ArmStyle(
        name="host" if mode is None else f"{place} {safe(mode)}",
        key="host" if mode is None else f"{place}:{mode}",
        colour=HOST if mode is None else mode_colours(modes).get(mode, HOST),
        symbol="circle" if mode is None else mode_symbols(modes).get(mode, "circle"),
        dash=_DASH[place],
    )


def arms_of(cells: Iterable[CellRecord]) -> tuple[ArmOfCell, ...]:
    """The arms of usable cells of one job: the host, then twin and guest of each mode in the order of the cells.

    The cells share the host. Its values come from the cell with the most blocks.
    """
    usable = [cell for cell in cells if cell.usable]
    bare = [cell for cell in usable if cell.mode_detail.has_bare_host]
    arms_of_cell = [ArmOfCell("host", None, cell, "host") for cell in sorted(bare, key=_blocks)[-1:]]
    for cell in usable:
        if cell.is_baseline:
            continue
        if not cell.mode_detail.has_bare_host:
            # The baseline of several guests is fio on their volumes, as a twin.
            arms_of_cell.append(ArmOfCell("twin", cell.mode, cell, "host"))
        arms_of_cell += [ArmOfCell(place, cell.mode, cell, place) for place in ("twin", "guest")]
    return tuple(arms_of_cell)


def _blocks(cell: CellRecord) -> int:
    return len(cell.rounds)


Quantity = Literal["throughput", "latency"]


@dataclass(frozen=True, slots=True)
class ArmSeries:
    """One arm of a workload over the depths, in IO/s, B/s or seconds."""

    place: ArmName
    mode: str | None
    """None for the bare host."""
    points: tuple[tuple[int, Estimate], ...]
    """iodepth and the mean over blocks."""
    doubtful: frozenset[int] = frozenset()
    """Depths at which the guest is faster than its host, which needs an explanation."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """The worst values with which a mode's guest keeps its budget, by depth, in the quantity's unit."""

    mode: str
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Split:
    """The two parts of one mode's overhead at one depth."""

    mode: str
    layer: Estimate | None
    virtualisation: Estimate
    doubt: str
    """`void`, or `faster` than the host, which needs an explanation; else empty."""


@dataclass(frozen=True)
class WorkloadCells:
    """One workload of a section: its cells by depth and mode, and what its charts show."""

    name: str
    random: bool
    cells: tuple[CellRecord, ...]

    @cached_property
    def depths(self) -> tuple[int, ...]:
        return tuple(sorted({cell.iodepth for cell in self.cells}))

    @property
    def rated(self) -> bool:
        return self.cells[0].rated

    @property
    def unit(self) -> str:
        """The unit of the cells' main metric."""
        return self.cells[0].headline_unit

    def series(self, quantity: Quantity) -> tuple[ArmSeries, ...]:
        """The host, then twin and guest of each mode. Arms without a usable value are left out."""
        arms: dict[tuple[ArmName, str | None], dict[int, Estimate]] = {("host", None): {}}
        for depth in self.depths:
            for arm in arms_of(cell for cell in self.cells if cell.iodepth == depth):
                metric = arm.cell.throughput if quantity == "throughput" else arm.cell.latency
                if (mean := arm.cell.mean(metric, arm.source)) is not None:
                    arms.setdefault((arm.place, arm.mode), {})[depth] = mean
        order = {mode: number for number, mode in enumerate(dict.fromkeys(cell.mode for cell in self.cells))}
        ranked = sorted(arms, key=lambda arm: (-1 if arm[1] is None else order[arm[1]], arm[0] == "guest"))
        doubtful = {(cell.mode, cell.iodepth) for cell in self.cells if cell.better_than_host}
        return tuple(
            ArmSeries(
                place,
                mode,
                points=tuple(sorted(arms[place, mode].items())),
                doubtful=frozenset(depth for depth in self.depths if place == "guest" and (mode, depth) in doubtful),
            )
            for place, mode in ranked
        )

    def allowances(self, quantity: Quantity) -> tuple[Allowance, ...]:
        """What the budgets in the metric of this quantity allow, for each mode that has one."""
        by_mode: dict[str, dict[int, float]] = {}
        for cell in self.cells:
            metric, name = cell.throughput, cell.throughput_name
            if quantity == "latency":
                metric, name = cell.latency, cell.latency_name
            host = cell.mean(metric, "host")
            for budget in cell.budget:
                if budget.metric == name and budget.difference is None and host is not None and cell.usable:
                    by_mode.setdefault(cell.mode, {})[cell.iodepth] = allowed(host.point, budget)
        return tuple(Allowance(mode, tuple(sorted(points.items()))) for mode, points in by_mode.items())

    def split(self, iodepth: int) -> tuple[Split, ...]:
        """Storage layer and virtualisation of each mode with a value at this depth, doubtful ones marked."""
        return tuple(
            Split(cell.mode, cell.headline.layer, cell.headline.virtualisation, cell.doubt)
            for cell in self.cells
            if cell.iodepth == iodepth and cell.measured and cell.headline and cell.headline.virtualisation
        )


class _OfDisk(Protocol):
    """A record of one disk in one scenario."""

    @property
    def host(self) -> str: ...
    @property
    def disk(self) -> str: ...
    @property
    def scenario(self) -> str: ...


_Key = tuple[str, str, str]
"""Host, disk and scenario of a section."""
_RecordT = TypeVar("_RecordT", bound=_OfDisk)
_ComputedT = TypeVar("_ComputedT")


@dataclass(frozen=True)
class Section:
    """All results of one disk in one scenario. `run` has them and those of other disks."""

    run: Run
    key: str
    """Unique within the page, and valid as an HTML id."""
    name: str
    title: str
    all_cells: tuple[CellRecord, ...]
    """Also those that memory serves, which stand in no table, chart or comparison with others."""
    _computed: dict[object, object] = field(default_factory=dict, compare=False, repr=False)

    def once(self, compute: Callable[[Section], _ComputedT]) -> _ComputedT:
        """What `compute` finds of this disk, computed once."""
        if compute not in self._computed:
            self._computed[compute] = compute(self)
        return self._computed[compute]  # type: ignore[return-value]

    @cached_property
    def cells(self) -> tuple[CellRecord, ...]:
        """The cells that a disk served."""
        return tuple(cell for cell in self.all_cells if not cell.is_cached)

    @cached_property
    def reports(self) -> tuple[FeatureReport, ...]:
        """What features add that may have something of this disk."""
        return feature_reports(self.run, self.all_cells)

    @cached_property
    def special(self) -> Headline | None:
        """What is answered of the disk if it is not which mode loses least, for example how its arrays scale."""
        return next((special for report in self.reports if (special := report.headline(self)) is not None), None)

    @cached_property
    def comparison(self) -> Comparison:
        """What the modes lose whose guest runs alone."""
        return compare_modes(self.alone)

    @cached_property
    def alone(self) -> tuple[CellRecord, ...]:
        """The cells of VMs that run alone: only these are figures of an attach mode. All cells, if none of them is."""
        details = ((cell, cell.mode_detail) for cell in self.cells)
        alone = tuple(cell for cell, detail in details if not (detail.runs_with_others or detail.in_container))
        return alone if any(not cell.is_baseline for cell in alone) else self.cells

    @cached_property
    def network(self) -> NetworkPath | None:
        """How the host reaches the disk; None if it is one of its own."""
        return next((disk.facts.network for disk in self.run.disks if disk.name == self.all_cells[0].disk), None)

    def own(self, records: Iterable[_RecordT]) -> tuple[_RecordT, ...]:
        """Those of the records that are of this disk and scenario."""
        cell = self.all_cells[0]
        key = (cell.host, cell.disk, cell.scenario)
        return tuple(record for record in records if (record.host, record.disk, record.scenario) == key)

    @cached_property
    def modes(self) -> tuple[str, ...]:
        """The modes with a guest, in the order of the plan."""
        return tuple(dict.fromkeys(cell.mode for cell in self.cells if not cell.is_baseline))

    @cached_property
    def workloads(self) -> tuple[WorkloadCells, ...]:
        by_name: dict[str, list[CellRecord]] = {}
        for cell in self.cells:
            by_name.setdefault(cell.workload, []).append(cell)
        return tuple(WorkloadCells(name, cells[0].job.is_random, tuple(cells)) for name, cells in by_name.items())

    @cached_property
    def depths(self) -> tuple[int, ...]:
        return tuple(sorted({cell.iodepth for cell in self.cells}))

    @property
    def split_depth(self) -> int:
        """The first shown depth of the split: 32, or the nearest smaller depth, or the smallest."""
        return max((depth for depth in self.depths if depth <= 32), default=min(self.depths, default=1))

    @property
    def notes(self) -> Notes:
        return notes_of(self.all_cells)


def outcome_counts(cells: Sequence[CellRecord]) -> dict[Outcome, int]:
    """The number of cells by outcome, in the order of the reports, without zeros."""
    counts = Counter(cell.outcome for cell in cells)
    return {outcome: counts[outcome] for outcome in Outcome if counts[outcome]}


def find_sections(run: Run) -> tuple[Section, ...]:
    """One section per host, disk and scenario, in the order of the plan."""
    by_key: dict[_Key, list[CellRecord]] = {}
    for cell in run.cells:
        by_key.setdefault((cell.host, cell.disk, cell.scenario), []).append(cell)
    return tuple(
        Section(run, f"disk{number}", _name(key, by_key), run.run.scenarios.get(key[2], key[2]), tuple(cells))
        for number, (key, cells) in enumerate(by_key.items(), start=1)
    )


def _name(key: _Key, keys: Iterable[_Key]) -> str:
    """The name of a section among all: the disk, with its scenario and host only if these distinguish it."""
    host, disk, scenario = key
    name = disk
    if sum(other[:2] == key[:2] for other in keys) > 1:
        name += f" ({scenario})"
    if len({other[0] for other in keys}) > 1:
        name += f" on {host}"
    return name
