"""The view model: pure functions from a stored run to what the report shows, one section per disk and scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from harness.analysis import Estimate
from harness.report.answers import AnswerView, MatrixView
from harness.report.arms import arms_of
from harness.report.array_states import ArrayStateView, array_state_views, state_sentences
from harness.report.arrays import array_headline, existing_array_sentences
from harness.report.background import guests_of
from harness.report.banners import Banner, banners
from harness.report.best import BestRow, best_rows
from harness.report.breakdown import BreakdownView, breakdown_views
from harness.report.budgets import allowed
from harness.report.calibration import calibration_sentences
from harness.report.cells import ArmName, CellView, Outcome
from harness.report.costs import ArmCosts, arm_costs, cycles_of, parts_of
from harness.report.disks import DiskView, disk_notes, disk_views
from harness.report.fio_files import FioFileView, fio_file_views
from harness.report.gains import gain_sentences
from harness.report.groups import ConditioningView, GroupView, conditionings, groups
from harness.report.latencies import LatencyView, latency_view
from harness.report.modes import Comparison, Headline, compare_modes, headline
from harness.report.neighbours import NeighbourView, SharedView, neighbour_views, shared_views
from harness.report.notes import Notes, notes_of
from harness.report.published import PublishedView, published_view
from harness.report.responsible import BlameView
from harness.report.scaling import ScalingView, scaling_views
from harness.report.search import SearchView, search_views
from harness.report.settings import Setting, setting_of
from harness.report.variants import VariantGroup, variant_groups
from harness.report.verdicts import Verdicts, verdicts
from harness.report.waterfall import WaterfallGroup, waterfall_groups
from harness.results import CellRecord, Run
from harness.results.answers import Answer, answers, seconds_of_slice
from harness.results.io_costs import IoCost
from harness.results.option_matrix import option_matrix
from harness.results.responsible import flush_blame, throughput_blame

Quantity = Literal["throughput", "latency"]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Overhead by mode (rows) and job (columns). None means that there is no value to compare; `words` says why."""

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


@dataclass(frozen=True, slots=True)
class Series:
    """One arm of a workload over the depths, in IO/s, B/s or seconds."""

    place: ArmName
    mode: str | None
    """None for the bare host."""
    points: tuple[tuple[int, Estimate], ...]
    """iodepth and the mean over blocks."""
    doubtful: frozenset[int] = frozenset()
    """Depths at which the guest is faster than its host, which is not a result."""


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
    """Why this is not a result: `void`, or `faster` than the host; else empty."""


@dataclass(frozen=True)
class WorkloadView:
    """One workload of a section: its cells by depth and mode, and what its charts show."""

    name: str
    random: bool
    cells: tuple[CellView, ...]

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

    def costs(self, iodepth: int) -> tuple[ArmCosts, ...]:
        """What an I/O costs the host on each arm; empty if that was not counted."""
        return self._costs[iodepth]

    @cached_property
    def latencies(self) -> LatencyView:
        """Whole distributions, and latency over load."""
        return latency_view(self.cells)

    @cached_property
    def cost_parts(self) -> tuple[IoCost, ...]:
        return parts_of([arm for arms in self._costs.values() for arm in arms])

    @cached_property
    def cycle_costs(self) -> tuple[IoCost, ...]:
        return cycles_of([arm for arms in self._costs.values() for arm in arms])

    @property
    def has_costs(self) -> bool:
        return any(self._costs.values())

    @cached_property
    def _costs(self) -> dict[int, tuple[ArmCosts, ...]]:
        """The costs by depth."""
        return {depth: arm_costs([cell for cell in self.cells if cell.iodepth == depth]) for depth in self.depths}

    def series(self, quantity: Quantity) -> tuple[Series, ...]:
        """The host, then twin and guest of each mode. Arms without a usable value are left out."""
        arms: dict[tuple[ArmName, str | None], dict[int, Estimate]] = {("host", None): {}}
        for depth in self.depths:
            for arm in arms_of(cell for cell in self.cells if cell.iodepth == depth):
                metric = arm.cell.throughput if quantity == "throughput" else arm.cell.latency
                if (mean := arm.cell.mean(metric, arm.source)) is not None:
                    arms.setdefault((arm.place, arm.mode), {})[depth] = mean
        order = {mode: number for number, mode in enumerate(dict.fromkeys(cell.mode for cell in self.cells))}
        ranked = sorted(arms, key=lambda arm: (-1 if arm[1] is None else order[arm[1]], arm[0] == "guest"))
        doubtful = {(cell.mode, cell.iodepth) for cell in self.cells if cell.faster_than_host}
        return tuple(
            Series(
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
            for budget in cell.record.budget:
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


@dataclass(frozen=True)
class Section:
    """All results of one disk in one scenario."""

    key: str
    """Unique within the page, and valid as an HTML id."""
    name: str
    title: str
    headline: Headline
    answers: tuple[AnswerView, ...]
    """Which mode to use for what; empty for arrays, and without a result."""
    matrix: MatrixView | None
    """What single options do; None if no two modes differ in one option only."""
    blames: tuple[BlameView, ...]
    """Which layer is responsible in the recommended mode."""
    comparison: Comparison
    cells: tuple[CellView, ...]
    waterfalls: tuple[WaterfallGroup, ...]
    scalings: tuple[ScalingView, ...]
    array_states: tuple[ArrayStateView, ...]
    """What a missing member of an array, or its recovery, costs."""
    breakdowns: tuple[BreakdownView, ...]
    """Where the microseconds of an I/O go, of a run that traced this."""
    searches: tuple[SearchView, ...]
    published: PublishedView | None
    """Published figures for comparison; None if the scenario names none."""
    best: tuple[BestRow, ...]
    """The tests of CrystalDiskMark, with the best slice beside the mean."""
    fio_files: tuple[FioFileView, ...]
    """The fio files among the workloads: what was measured of each section."""
    variants: tuple[VariantGroup, ...]
    """The differences between variants."""
    shared: tuple[SharedView, ...]
    """What each of several guests got."""
    neighbours: tuple[NeighbourView, ...]
    """What neighbours cost."""
    disks: tuple[DiskView, ...]
    """What its disks are; empty for runs of version 0.1 and imported ones."""

    @cached_property
    def modes(self) -> tuple[str, ...]:
        """The modes with a guest, in the order of the plan."""
        return tuple(dict.fromkeys(cell.mode for cell in self.cells if not cell.is_baseline))

    @cached_property
    def workloads(self) -> tuple[WorkloadView, ...]:
        by_name: dict[str, list[CellView]] = {}
        for cell in self.cells:
            by_name.setdefault(cell.workload, []).append(cell)
        return tuple(WorkloadView(name, cells[0].random, tuple(cells)) for name, cells in by_name.items())

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
            values=tuple(tuple(cell.overhead if cell and cell.comparable else None for cell in row) for row in rows),
            words=tuple(tuple(_word(cell) if cell else "" for cell in row) for row in rows),
        )

    @property
    def settings(self) -> tuple[tuple[str, Setting], ...]:
        """How to set up each recommended mode."""
        modes = dict.fromkeys(answer.take for answer in self.answers if answer.take)
        found = ((mode, setting_of([cell.record for cell in self.cells], mode)) for mode in modes)
        return tuple((mode, setting) for mode, setting in found if setting is not None)

    @property
    def never(self) -> tuple[str, ...]:
        """Why modes are never recommended, each once."""
        return tuple(dict.fromkeys(sentence for answer in self.answers for sentence in answer.never))

    @property
    def notes(self) -> Notes:
        return notes_of(self.cells)

    @property
    def guests(self) -> tuple[str, ...]:
        """Size and placement of the guests, as read back: a sentence for all modes with the same."""
        return tuple(
            f"{what[0].upper()}{what[1:]}: {words}." for what, words in guests_of([each.record for each in self.cells])
        )

    @property
    def disk_notes(self) -> tuple[str, ...]:
        return disk_notes(self.disks)

    @property
    def counts(self) -> dict[Outcome, int]:
        return outcome_counts(self.cells)


@dataclass(frozen=True, slots=True)
class ReportView:
    """The whole report."""

    run: Run
    banners: tuple[Banner, ...]
    sections: tuple[Section, ...]
    verdicts: Verdicts
    groups: tuple[GroupView, ...]
    conditionings: tuple[ConditioningView, ...]
    calibration: tuple[str, ...]
    """What is known about the smallest overhead that this lab can show, sentence by sentence."""

    @property
    def unsteady(self) -> frozenset[str]:
        """The disks that did not reach a steady state before they were measured."""
        return frozenset(each.disk for each in self.conditionings if each.record.steady is False)

    @property
    def cells(self) -> tuple[CellView, ...]:
        return tuple(cell for section in self.sections for cell in section.cells)

    @property
    def counts(self) -> dict[Outcome, int]:
        return outcome_counts(self.cells)


def report_view(run: Run) -> ReportView:
    """What the report shows of this run."""
    cells = [CellView(record) for record in run.cells]
    return ReportView(
        run=run,
        banners=banners(run),
        sections=sections(run, cells),
        verdicts=verdicts(cells),
        groups=groups(run),
        conditionings=conditionings(run),
        calibration=calibration_sentences(run),
    )


def sections(run: Run, cells: Sequence[CellView]) -> tuple[Section, ...]:
    """One section per host, disk and scenario, in the order of the plan. A name has only what distinguishes it."""
    by_key: dict[tuple[str, str, str], list[CellView]] = {}
    for cell in cells:
        by_key.setdefault((cell.record.host, cell.record.disk, cell.record.scenario), []).append(cell)
    found = []
    slice_seconds = seconds_of_slice(run.cells, run.run.efficiency.wall_s)
    for number, (key, members) in enumerate(by_key.items(), start=1):
        host, disk, scenario = key
        own = tuple(members)
        name = disk
        if sum(other[:2] == key[:2] for other in by_key) > 1:
            name += f" ({scenario})"
        if len({other[0] for other in by_key}) > 1:
            name += f" on {host}"
        alone = _alone(own)
        comparison = compare_modes(alone)
        searched = [each for each in run.searches if (each.host, each.disk, each.scenario) == key]
        traced = [each for each in run.breakdowns if (each.host, each.disk, each.scenario) == key]
        scalings = scaling_views(run.scalings, own)
        states = array_state_views(run.array_states, own)
        built = [view for view in scalings if not view.record.reference]
        existing = existing_array_sentences(scalings) if scalings and not built else ()
        answer = array_headline(name, built, comparison) if built else headline(name, comparison)
        results = [] if built else [cell.record for cell in alone if cell.comparable and not cell.is_baseline]
        matrix = option_matrix(results)
        found_answers = answers(results, slice_seconds) if results else ()
        found_blames = _blames(results, found_answers)
        steps = [each for each in run.decompositions if (each.host, each.disk, each.scenario) == key]
        found.append(
            Section(
                key=f"disk{number}",
                name=name,
                title=run.run.scenarios.get(scenario, scenario),
                headline=replace(
                    answer,
                    details=(
                        *(sentence for each in found_blames for sentence in each.sentences),
                        *answer.details,
                        *existing,
                        *gain_sentences(run.run.published.get(scenario), built),
                        *state_sentences(states),
                    ),
                ),
                answers=tuple(map(AnswerView, found_answers)),
                matrix=MatrixView(matrix) if matrix else None,
                blames=found_blames,
                comparison=comparison,
                cells=own,
                waterfalls=waterfall_groups(f"disk{number}", steps, own),
                scalings=scalings,
                array_states=states,
                breakdowns=breakdown_views(f"disk{number}", traced),
                searches=search_views(f"disk{number}", searched, list(dict.fromkeys(cell.mode for cell in own))),
                published=published_view(run, scenario, alone),
                best=best_rows(own),
                fio_files=fio_file_views(run, scenario, own),
                variants=variant_groups(own),
                shared=shared_views(own),
                neighbours=neighbour_views(own),
                disks=disk_views(run, scenario, disk),
            )
        )
    return tuple(found)


def _alone(cells: tuple[CellView, ...]) -> tuple[CellView, ...]:
    """The cells whose guest runs alone: only these are figures of an attach mode. All cells, if none of them is."""
    alone = tuple(cell for cell in cells if not cell.record.mode_detail.runs_with_others)
    return alone if any(not cell.is_baseline for cell in alone) else cells


def _blames(cells: Sequence[CellRecord], found: Sequence[Answer]) -> tuple[BlameView, ...]:
    """For throughput and for flushes: the layer that is responsible in the mode that is recommended for them."""
    by_use = {answer.use.name: answer.mode for answer in found if answer.mode is not None}
    mode = next(iter(by_use.values()), None)
    if mode is None:
        return ()
    confidence = max(cell.confidence for cell in cells)
    flushing = by_use.get("database", mode)
    blames = (
        throughput_blame([cell for cell in cells if cell.mode == mode], confidence),
        flush_blame([cell for cell in cells if cell.mode == flushing], confidence),
    )
    return tuple(BlameView(blame) for blame in blames if blame is not None)


def outcome_counts(cells: Sequence[CellView]) -> dict[Outcome, int]:
    """The number of cells by outcome, in the order of the reports, without zeros."""
    counts = Counter(cell.outcome for cell in cells)
    return {outcome: counts[outcome] for outcome in Outcome if counts[outcome]}


def _word(cell: CellView) -> str:
    """The word in a field without a value."""
    return cell.doubt or {Outcome.SKIPPED: "skip", Outcome.NOT_MEASURED: "\N{MIDDLE DOT}"}.get(cell.outcome, "")
