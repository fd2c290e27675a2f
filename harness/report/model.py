"""The view model: pure functions from a stored run to what the report shows, one section per disk and scenario."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from harness.model.attach import Unknown
from harness.report.answers import AnswerView, MatrixView
from harness.report.array_states import array_state_views, state_sentences
from harness.report.arrays import array_headline, existing_array_sentences
from harness.report.banners import Banner, banners
from harness.report.best import best_rows
from harness.report.breakdown import breakdown_views
from harness.report.calibration import calibration_sentences
from harness.report.cells import CellView, Outcome
from harness.report.disks import disk_views
from harness.report.fio_files import fio_file_views
from harness.report.gains import gain_sentences
from harness.report.groups import ConditioningView, GroupView, conditionings, groups
from harness.report.modes import compare_modes, headline
from harness.report.neighbours import neighbour_views, shared_views
from harness.report.published import published_view
from harness.report.responsible import BlameView
from harness.report.scaling import scaling_views
from harness.report.section import Section, outcome_counts
from harness.report.verdicts import Verdicts, verdicts
from harness.report.waterfall import waterfall_groups
from harness.results import BreakdownRecord, CellRecord, DecompositionRecord, Run
from harness.results.answers import Answer, answers, seconds_of_slice
from harness.results.option_matrix import option_matrix
from harness.results.responsible import flush_blame, throughput_blame

_Key = tuple[str, str, str]
"""Host, disk and scenario of a section."""
_RecordT = TypeVar("_RecordT", BreakdownRecord, DecompositionRecord)


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
        return frozenset(
            conditioning.disk for conditioning in self.conditionings if conditioning.record.steady is False
        )

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
        sections=_sections(run, cells),
        verdicts=verdicts(cells),
        groups=groups(run),
        conditionings=conditionings(run),
        calibration=calibration_sentences(run),
    )


def _sections(run: Run, cells: Sequence[CellView]) -> tuple[Section, ...]:
    """One section per host, disk and scenario, in the order of the plan."""
    by_key: dict[_Key, list[CellView]] = {}
    for cell in cells:
        by_key.setdefault((cell.record.host, cell.record.disk, cell.record.scenario), []).append(cell)
    slice_seconds = seconds_of_slice(run.cells, run.run.efficiency.wall_s)
    return tuple(
        _section(run, key, tuple(own), html_id=f"disk{number}", name=_name(key, by_key), slice_seconds=slice_seconds)
        for number, (key, own) in enumerate(by_key.items(), start=1)
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


def _section(
    run: Run, key: _Key, own: tuple[CellView, ...], *, html_id: str, name: str, slice_seconds: float
) -> Section:
    """The section of the `own` cells. `slice_seconds` is the time that a slice of the run takes."""
    _, disk, scenario = key
    alone = _alone(own)
    comparison = compare_modes(alone)
    scalings = scaling_views(run.scalings, own)
    built = [view for view in scalings if not view.record.reference]
    existing = existing_array_sentences(scalings) if scalings and not built else ()
    states = array_state_views(run.array_states, own)
    # The answer about arrays that a run builds is how they scale, not which mode to use.
    results = [] if built else [cell.record for cell in alone if cell.usable and not cell.is_baseline]
    matrix = option_matrix(results)
    found_answers = answers(results, slice_seconds) if results else ()
    blames = _blames(results, found_answers)
    answer = array_headline(name, built, comparison) if built else headline(name, comparison)
    return Section(
        run=run,
        key=html_id,
        name=name,
        title=run.run.scenarios.get(scenario, scenario),
        headline=replace(
            answer,
            details=(
                *(sentence for blame in blames for sentence in blame.sentences),
                *answer.details,
                *existing,
                *gain_sentences(run.run.published.get(scenario), built),
                *state_sentences(states),
            ),
        ),
        answers=tuple(map(AnswerView, found_answers)),
        matrix=MatrixView(matrix) if matrix else None,
        blames=blames,
        comparison=comparison,
        cells=own,
        waterfalls=waterfall_groups(html_id, _of(key, run.decompositions), own),
        scalings=scalings,
        array_states=states,
        breakdowns=breakdown_views(html_id, _of(key, run.breakdowns)),
        published=published_view(run, scenario, alone),
        best=best_rows(own),
        fio_files=fio_file_views(run, scenario, own),
        shared=shared_views(own),
        neighbours=neighbour_views(own),
        disks=disk_views(run, scenario, disk),
    )


def _of(key: _Key, records: Iterable[_RecordT]) -> list[_RecordT]:
    """The records of one section."""
    return [record for record in records if (record.host, record.disk, record.scenario) == key]


def _alone(cells: tuple[CellView, ...]) -> tuple[CellView, ...]:
    """The cells whose guest runs alone: only these are figures of an attach mode. All cells, if none of them is."""
    alone = tuple(cell for cell in cells if not cell.record.mode_detail.runs_with_others)
    return alone if any(not cell.is_baseline for cell in alone) else cells


def _blames(cells: Sequence[CellRecord], found: Sequence[Answer]) -> tuple[BlameView, ...]:
    """For throughput and for flushes: the layer that is responsible in the mode that is recommended for them."""
    by_use = {answer.use.name: answer.mode for answer in found if answer.mode is not None}
    mode = next(iter(by_use.values()), None)
    if mode is None or any(isinstance(cell.mode_detail.attach, Unknown) for cell in cells):
        return ()  # nothing is known of the layers of an imported result
    confidence = max(cell.confidence for cell in cells)
    flushing = by_use.get("database", mode)
    blames = (
        throughput_blame([cell for cell in cells if cell.mode == mode], confidence),
        flush_blame([cell for cell in cells if cell.mode == flushing], confidence),
    )
    return tuple(BlameView(blame) for blame in blames if blame is not None)
