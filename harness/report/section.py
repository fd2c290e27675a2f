"""A section of the report: what it shows of one disk in one scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeVar

from harness.analysis import Estimate
from harness.feature import features
from harness.report.modes import Comparison, Headline, compare_modes
from harness.report.notes import Notes, notes_of
from harness.report.workload import WorkloadCells
from harness.results import CellRecord, Outcome, Run


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


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Overhead by mode (rows) and job (columns). None: no value to compare. `words` says why."""

    modes: tuple[str, ...]
    columns: tuple[tuple[str, int], ...]
    """Workload and iodepth of each column."""
    values: tuple[tuple[Estimate | None, ...], ...]
    words: tuple[tuple[str, ...], ...]
    """By field: "void", "faster", "skip", or a dot if nothing was measured; empty if there is a value."""

    def of(self, begin: int, end: int) -> HeatMap:
        """Only the columns from `begin` to before `end`."""
        values, words = (tuple(row[begin:end] for row in self.values), tuple(row[begin:end] for row in self.words))
        return HeatMap(self.modes, self.columns[begin:end], values, words)


@dataclass(frozen=True)
class Section:
    """All results of one disk in one scenario. `run` has them and those of other disks."""

    run: Run
    key: str
    """Unique within the page, and valid as an HTML id."""
    name: str
    title: str
    cells: tuple[CellRecord, ...]
    _computed: dict[object, object] = field(default_factory=dict, compare=False, repr=False)

    def once(self, compute: Callable[[Section], _ComputedT]) -> _ComputedT:
        """What `compute` finds of this disk, computed once."""
        if compute not in self._computed:
            self._computed[compute] = compute(self)
        return self._computed[compute]  # type: ignore[return-value]

    @cached_property
    def special(self) -> Headline | None:
        """What is answered of the disk if it is not which mode loses least, for example how its arrays scale."""
        return next((special for feature in features() if (special := feature.headline(self)) is not None), None)

    @property
    def is_one_of_several(self) -> bool:
        """Whether the run has results of other disks or scenarios."""
        return len({(cell.host, cell.disk, cell.scenario) for cell in self.run.cells}) > 1

    @cached_property
    def comparison(self) -> Comparison:
        """What the modes lose whose guest runs alone."""
        return compare_modes(self.alone)

    @cached_property
    def alone(self) -> tuple[CellRecord, ...]:
        """The cells whose guest runs alone: only these are figures of an attach mode. All cells, if none of them is."""
        alone = tuple(cell for cell in self.cells if not cell.mode_detail.runs_with_others)
        return alone if any(not cell.is_baseline for cell in alone) else self.cells

    def own(self, records: Iterable[_RecordT]) -> tuple[_RecordT, ...]:
        """Those of the records that are of this disk and scenario."""
        cell = self.cells[0]
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
    def has_overhead(self) -> bool:
        """True if at least one cell has a loss of throughput to compare."""
        return any(cell.ranked and cell.overhead is not None for cell in self.cells)

    @property
    def split_depth(self) -> int:
        """The first shown depth of the split: 32, or the nearest smaller depth, or the smallest."""
        return max((depth for depth in self.depths if depth <= 32), default=min(self.depths, default=1))

    @cached_property
    def heat_map(self) -> HeatMap:
        workloads = [workload for workload in self.workloads if not workload.rated]
        columns = tuple((workload.name, depth) for workload in workloads for depth in workload.depths)
        at = {(cell.mode, cell.workload, cell.iodepth): cell for cell in self.cells}
        rows = [[at.get((mode, *column)) for column in columns] for mode in self.modes]
        return HeatMap(
            modes=self.modes,
            columns=columns,
            values=tuple(tuple(cell.overhead if cell and cell.usable else None for cell in row) for row in rows),
            words=tuple(tuple(_word(cell) if cell else "" for cell in row) for row in rows),
        )

    @property
    def notes(self) -> Notes:
        return notes_of(self.cells)

    @property
    def counts(self) -> dict[Outcome, int]:
        return outcome_counts(self.cells)


def outcome_counts(cells: Sequence[CellRecord]) -> dict[Outcome, int]:
    """The number of cells by outcome, in the order of the reports, without zeros."""
    counts = Counter(cell.outcome for cell in cells)
    return {outcome: counts[outcome] for outcome in Outcome if counts[outcome]}


def _word(cell: CellRecord) -> str:
    """The word in a field without a value."""
    return cell.doubt or {Outcome.SKIPPED: "skip", Outcome.NOT_MEASURED: "\N{MIDDLE DOT}"}.get(cell.outcome, "")


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
