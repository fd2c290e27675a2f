"""Decompositions: what a scenario may ask, and the records: each arm against the one before it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from harness.analysis import Estimate, holm
from harness.config.names import choices
from harness.config.problems import shown
from harness.model.attach import Attach, Attachment
from harness.model.base import Device, Kind
from harness.model.guest import GuestOptions, compress_lists
from harness.model.job import Job
from harness.model.mode import Arm, MetricName, Mode, Place, arms_of, find_setting_changes
from harness.model.values import (
    Amount,
    ArmName,
    Confidence,
    FileValue,
    Name,
    Number,
    PValue,
    RecordValue,
    format_field,
    names_of,
)
from harness.model.workloads import WorkloadTuple
from harness.scenario.scenario import Scenario
from harness.scenario.setups import Group, setups

if TYPE_CHECKING:
    from harness.results.assemble import AssembledRun
    from harness.results.cells import CellRecord
    from harness.results.contrasts import Contrast, Series

_PLACES = tuple(Place)


@dataclass(frozen=True, slots=True)
class Decomposition(FileValue):
    """Splits the latency between the bare host and another arm into steps. `steps` are ids of arms, `host` first.

    Each step changes one thing. If `workloads` is None, all workloads of the scenario are decomposed.
    """

    steps: Annotated[tuple[str, ...], Field(min_length=2)]
    """The arms in order, from `host` on. Each step changes one thing."""
    workloads: WorkloadTuple | None = None
    """Workloads of the scenario; without them, every workload."""

    def covers(self, job: Job) -> bool:
        """Whether this job is decomposed."""
        return self.workloads is None or job.workload in self.workloads


def rename_arms(decomposition: Decomposition, names: Mapping[str, str]) -> Decomposition:
    """The decomposition of a scenario whose arms have these other names."""
    return replace(decomposition, steps=tuple(names.get(step, step) for step in decomposition.steps))


@dataclass(frozen=True, slots=True)
class StepDifference:
    """One difference between two arms: its key in a scenario file, and both values in words."""

    key: str
    words: str


def list_steps(scenario: Scenario, decomposition: Decomposition) -> list[tuple[Arm, str]]:
    """The arms of a decomposition that has passed `find_step_problems`, each with its difference from the one before.

    The first one has none.
    """
    by_id = {arm.id: arm for arm in _list_arms(scenario)}
    arms = [by_id[step] for step in decomposition.steps]
    words = ["; ".join(change.words for change in compare_arms(*pair)) for pair in pairwise(arms)]
    return list(zip(arms, ["", *words], strict=True))


def find_step_problems(scenario: Scenario) -> Iterator[str]:
    """One line for each step that is not an arm of the scenario, changes nothing, or changes more than one thing.

    The lines have the form of the schema's messages: `decompose.attach.steps[2] = "guest:lvm": ...; allowed: ...`.
    """
    arms = {arm.id: arm for arm in _list_arms(scenario)}
    for name, decomposition in scenario.requests_of(Decomposition).items():
        key = f"decompose.{name}"
        yield from _find_workload_problems(f"{key}.workloads", decomposition, scenario)
        unknown = [
            f"{_format_place(key, decomposition, number)}: not an arm of this scenario; {choices(step, arms)}"
            for number, step in enumerate(decomposition.steps)
            if step not in arms
        ]
        if unknown:
            yield from unknown
            continue
        steps = [arms[step] for step in decomposition.steps]
        yield from _find_single_step_problems(key, decomposition, steps)
        yield from _find_setup_problems(key, steps, scenario)


def compare_arms(before: Arm, after: Arm) -> list[StepDifference]:
    """All differences between two arms. Empty for the same arm, and for modes that differ only in their names."""
    return [
        *_compare_layouts(_find_layout(before), _find_layout(after)),
        *_compare_attachments(before, after),
        *_compare_guests(before, after),
    ]


def _list_arms(scenario: Scenario) -> list[Arm]:
    """Every arm of the scenario's cells, the host first."""
    arms = [Arm(Place.HOST)]
    for mode in scenario.modes:
        arms += arms_of(mode).values()
    return list(dict.fromkeys(arms))


def _find_workload_problems(key: str, decomposition: Decomposition, scenario: Scenario) -> Iterator[str]:
    measured = [workload.name for workload in scenario.workloads]
    for number, workload in enumerate(decomposition.workloads or ()):
        if workload.name not in measured:
            known = choices(workload.name, measured)
            yield f"{key}[{number}] = {shown(workload.name)}: not a workload of this scenario; {known}"


def _find_single_step_problems(key: str, decomposition: Decomposition, arms: Sequence[Arm]) -> Iterator[str]:
    if arms[0].place is not Place.HOST:
        yield f'{_format_place(key, decomposition, 0)}: not the bare host; allowed: "host" as the first step'
    for number, (before, after) in enumerate(pairwise(arms), start=1):
        at, against = _format_place(key, decomposition, number), f'against "{before.id}"'
        changes = compare_arms(before, after)
        if after.mode is not None and after.mode.cached:
            yield f"{at}: memory serves this arm; allowed: arms of modes without cached = true"
        elif _PLACES.index(after.place) < _PLACES.index(before.place):
            yield f"{at}: goes back from {before.place} to {after.place}; allowed: host, then twins, then guests"
        elif not changes and before != after:
            yield f"{at}: changes nothing {against}; allowed: one change per step"
        elif len(changes) > 1:
            all_of_them = ", ".join(f"{change.key} ({change.words})" for change in changes)
            yield f"{at}: changes {len(changes)} things {against}: {all_of_them}; allowed: one change per step"


def _find_setup_problems(key: str, arms: Sequence[Arm], scenario: Scenario) -> Iterator[str]:
    """Arms of different setups share no rounds, so their values cannot be paired."""
    modes = {arm.mode for arm in arms if arm.mode is not None}
    together = [setup for setup in setups(scenario.modes) if modes.intersection(setup)]
    if len(together) > 1:
        apart = " and ".join(", ".join(mode.name for mode in setup if mode in modes) for setup in together)
        yield (
            f"{key}.steps: the modes of these steps are in different setups ({apart}) and share no rounds; "
            "allowed: modes of one setup; list them next to each other in modes"
        )


def _format_place(key: str, decomposition: Decomposition, number: int) -> str:
    return f"{key}.steps[{number}] = {shown(decomposition.steps[number])}"


def _find_layout(arm: Arm) -> Kind:
    if arm.mode is None:
        return Device()
    return arm.mode.layout.twin if arm.place is Place.TWIN else arm.mode.layout


def _compare_layouts(before: Kind, after: Kind) -> Iterator[StepDifference]:
    """Compares the bases, then the layers on them. A different kind is one change, else each option is one change."""
    if type(before.base) is not type(after.base):
        yield StepDifference("layout.on", f"{before.base.words} -> {after.base.words}")
    else:
        yield from _compare_options("layout.on", before.base, after.base)
    if before.is_base and after.is_base:
        return
    if type(before) is type(after):
        yield from _compare_options("layout", before, after)
    else:
        yield StepDifference("layout.kind", f"{before.words} -> {after.words}")


def _compare_attachments(before: Arm, after: Arm) -> Iterator[StepDifference]:
    one, other = _find_attachment(before), _find_attachment(after)
    if isinstance(one, Attach) and isinstance(other, Attach):
        yield from _compare_options("attach", one, other)
        return
    if one is None and other is not None:
        yield StepDifference("guest", f"virtualisation ({other.words})")
    elif one is not None and other is not None and type(one) is not type(other):
        yield StepDifference("attach", f"{one.words} -> {other.words}")
    # The twin of a cached mode also uses the page cache, so only its own guest is comparable with it.
    if _is_direct(before) != _is_direct(after):
        one_cache, other_cache = (_format_switch(not _is_direct(arm)) for arm in (before, after))
        yield StepDifference("attach.cache", f"page cache {one_cache} -> {other_cache}")


def _compare_guests(before: Arm, after: Arm) -> Iterator[StepDifference]:
    """The options in which the guests of two arms differ."""
    if before.place is Place.GUEST is after.place and before.mode is not None and after.mode is not None:
        guests = before.mode.guest, after.mode.guest
        unpinned = (replace(guest, pin_vcpus=(), pin_iothreads=None, pin_emulator=None) for guest in guests)
        yield from _compare_options("guest", *unpinned)
        one, other = map(_describe_pins, guests)
        if one != other:
            yield StepDifference("guest.pin", f"{one} -> {other}")
        yield from (StepDifference(*change) for change in find_setting_changes(before.mode, after.mode))
        yield from _compare_other_guests(before.mode, after.mode)


def _describe_pins(guest: GuestOptions) -> str:
    """The CPUs of the host for its threads: all pins together place it there."""
    pins = {"iothreads": guest.pin_iothreads, "emulator": guest.pin_emulator}
    pins = {"vCPUs": "/".join(compress_lists(guest.pin_vcpus)), **pins}
    words = ", ".join(f"{what} on {cpus}" for what, cpus in pins.items() if cpus)
    return f"pinning {words}" if words else "no pinning"


def _compare_other_guests(before: Mode, after: Mode) -> Iterator[StepDifference]:
    """The other guests that run at the same time."""
    if before.guests != after.guests:
        yield StepDifference("guests", f"guests {before.guests} -> {after.guests}")
    if before.neighbour != after.neighbour:
        one, other = (mode.neighbour.id if mode.neighbour else "none" for mode in (before, after))
        yield StepDifference("neighbour", f"neighbour {one} -> {other}")
    if before.backup != after.backup:
        yield StepDifference("backup", f"backup {_format_switch(before.backup)} -> {_format_switch(after.backup)}")


def _find_attachment(arm: Arm) -> Attachment | None:
    return arm.mode.attach if arm.mode is not None and arm.place is Place.GUEST else None


def _is_direct(arm: Arm) -> bool:
    attach = arm.mode.attach if arm.mode is not None else None
    return attach.direct if attach is not None else True


def _compare_options(table: str, before: Any, after: Any) -> Iterator[StepDifference]:
    """The options in which two values of one type differ."""
    for name in names_of(before):
        if name != "on" and getattr(before, name) != getattr(after, name):
            words = name.replace("_", " ")
            yield StepDifference(
                f"{table}.{name}", f"{words} {_format_option(before, name)} -> {_format_option(after, name)}"
            )


def _format_option(value: Any, name: str) -> str:
    content = getattr(value, name)
    if content is None:
        return "default"
    return _format_switch(content) if isinstance(content, bool) else format_field(value, name).strip('"')


def _format_switch(on: bool) -> str:
    return "on" if on else "off"


METRIC = "lat_mean"
"""From the call to completion. `clat_mean` leaves out the cost of submitting, which includes a guest's exit to the
host."""


@dataclass(frozen=True, slots=True)
class StepRecord(RecordValue):
    """One arm of a decomposition, against the arm before it."""

    arm: ArmName
    """`host`, `twin:MODE` or `guest:MODE`."""
    change: str
    """The one thing that it changes against the arm before, in words; empty for the first arm."""
    values: tuple[Amount, ...]
    """Its values in the order of the decomposition's rounds, in seconds, adjusted as those of `metrics`."""
    added: Estimate | None
    """What the step adds, in seconds. These values add up over the steps. Null for the first arm."""
    overhead: Estimate | None
    """What the step adds, as a share of the arm before. The values of 1 + overhead multiply. Null for the first arm."""
    so_far: Estimate | None
    """What this step and all steps before it add, as a share of the host. Null for the first arm."""
    p_value: PValue | None
    """The p value of "the step changes nothing", not corrected; null for the first arm and after one round."""
    shown: bool
    """Whether the step changes anything at all, corrected for the number of steps (Holm)."""
    doubt: str
    """The failed checks because of which the arm's values are not a result; empty if no check failed."""


@dataclass(frozen=True, slots=True)
class DecompositionRecord(RecordValue):
    """The latency of one job from the bare host to another arm, step by step."""

    id: str
    """`SCENARIO-NAME-JOB`, for example `decompose-attach-randread-4k-qd1`."""
    scenario: Name
    """Name of the scenario."""
    name: str
    """Name of the decomposition in the scenario."""
    host: str
    """Name of the host in the lab file; empty if nothing was measured."""
    disk: Name
    """Name of the disk under test."""
    job: Name
    """The job's id."""
    metric: MetricName
    """The metric of all values: `lat_mean`."""
    rounds: tuple[Number, ...]
    """The rounds in which every arm of the decomposition was measured. The estimates use only these."""
    left_out: tuple[Number, ...]
    """Rounds that have only some of the arms. They are not used."""
    confidence: Confidence
    """The confidence of each interval alone."""
    steps: tuple[StepRecord, ...]
    """One entry per arm, beginning with the bare host; empty if the decomposition was skipped."""
    added: Estimate | None
    """The last arm minus the first, in seconds, from the same rounds. Its point is the sum of the steps' points."""
    overhead: Estimate | None
    """The last arm against the first, as a share of the host."""
    skipped: str | None
    """Why there is no decomposition, or null."""


def decompose_run(run: AssembledRun) -> Iterator[DecompositionRecord]:
    """One record per decomposition and job with any measurement, in the order of the scenarios and groups.

    Only rounds in which every arm was measured count, so the steps add up in each of them. All arms must be measured in
    one group, because they share its rounds. If an arm is missing there, no step replaces it: the record names the
    missing arm and the reason.
    """
    for scenario in run.scenarios:
        decompositions = scenario.requests_of(Decomposition)
        groups = [group for group in run.groups if group.scenario == scenario.name]
        by_job = _group_by_job(groups, run.records) if decompositions else {}
        for name, decomposition in decompositions.items():
            steps = list_steps(scenario, decomposition)
            for job, by_mode in by_job.items():
                if not decomposition.covers(job):
                    continue
                arms = max((_find_values(steps, cells) for cells in by_mode), key=_count_cells)
                if _count_cells(arms):
                    yield _make_record(scenario, name, job, arms)


@dataclass(frozen=True, slots=True)
class _StepValues:
    """One step's arm, what it changes, the cell that has its values, and the values."""

    arm: Arm
    change: str
    cell: CellRecord | None
    series: Series | None

    @property
    def keys(self) -> Collection[object]:
        """The blocks that have a value."""
        return self.series.keys if self.series is not None else ()

    @property
    def missing(self) -> str:
        """Why there is no value; empty if there is one."""
        if self.series is not None:
            return ""
        if self.cell is None:
            return f"{self.arm.id} was not measured, or was measured in another setup"
        return f"{self.arm.id}: {self.cell.skipped or f'no block has {METRIC}'}"


def _group_by_job(groups: Iterable[Group], records: Mapping[str, CellRecord]) -> dict[Job, list[dict[str, CellRecord]]]:
    """For each job, the cells of each group that has it, by the name of the mode."""
    jobs: dict[Job, list[dict[str, CellRecord]]] = {}
    for group in groups:
        of_group: dict[Job, dict[str, CellRecord]] = {}
        for cell in group.cells:
            by_mode = of_group.setdefault(cell.job, {})
            if cell.id in records:
                by_mode[cell.mode.name] = records[cell.id]
                by_mode.setdefault(cell.mode.twin.name, records[cell.id])
        for job, by_mode in of_group.items():
            jobs.setdefault(job, []).append(by_mode)
    return jobs


def _count_cells(arms: Sequence[_StepValues]) -> int:
    """How many of the arms have a cell."""
    return sum(arm.cell is not None for arm in arms)


def _find_values(steps: Sequence[tuple[Arm, str]], cells: Mapping[str, CellRecord]) -> list[_StepValues]:
    """The arms with their values. `cells` are those of the job, by the name of the mode.

    Every cell has the host's values; they come from the cell with the most blocks.
    """
    modes = [arm.mode.name for arm, _ in steps if arm.mode is not None]
    any_cell = max((cells[mode] for mode in modes if mode in cells), key=lambda cell: len(cell.rounds), default=None)
    values = []
    for arm, change in steps:
        cell = cells.get(arm.mode.name) if arm.mode is not None else any_cell
        series = cell.series(METRIC, arm.place) if cell is not None and cell.skipped is None else None
        values.append(_StepValues(arm, change, cell, series))
    return values


def _make_record(scenario: Scenario, name: str, job: Job, steps: Sequence[_StepValues]) -> DecompositionRecord:
    skipped = "; ".join(filter(None, (step.missing for step in steps))) or None
    cells = [step.cell for step in steps if step.cell is not None]
    every = {key for cell in cells for key in cell.samples}
    blocks = sorted(key for key in every if all(key in step.keys for step in steps))
    measured = sorted(key for key in every if any(key in step.keys for step in steps))
    if skipped is None and not blocks:
        skipped = "no block has every arm"
    record = DecompositionRecord(
        id=f"{scenario.name}-{name}-{job.id}",
        scenario=scenario.name,
        name=name,
        host=cells[0].host,
        disk=scenario.disk,
        job=job.id,
        metric=METRIC,
        rounds=tuple(number for number, _ in blocks),
        left_out=tuple(sorted({key[0] for key in measured if key not in blocks})),
        # Cells may differ in their looks. The waterfall uses the look of the strictest cell.
        confidence=max(cell.confidence for cell in cells),
        steps=(),
        added=None,
        overhead=None,
        skipped=skipped,
    )
    series = [step.series.only(blocks) for step in steps if step.series is not None]
    if skipped is not None:
        return record
    waterfall = decompose(series, confidence=record.confidence)
    costs, so_far, shown = [None, *waterfall.steps], [None, *waterfall.so_far], [False, *waterfall.shown]
    return replace(
        record,
        steps=tuple(
            StepRecord(
                arm=step.arm.id,
                change=step.change,
                values=of_arm.values,
                added=cost.added if cost else None,
                overhead=cost.loss if cost else None,
                so_far=total.loss if total else None,
                p_value=cost.p_value if cost else None,
                shown=is_shown,
                doubt=step.cell.doubt_about(step.arm) if step.cell is not None else "",
            )
            for step, of_arm, cost, total, is_shown in zip(steps, series, costs, so_far, shown, strict=True)
        ),
        added=waterfall.so_far[-1].added,
        overhead=waterfall.so_far[-1].loss,
    )


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Each arm but the first against the arm before it (`steps`), and against the first (`so_far`).

    Differences add up over the steps, and 1 + loss multiplies. `shown` says of each step whether "it changes nothing"
    is rejected, corrected for the number of steps (Holm).
    """

    steps: tuple[Contrast, ...]
    so_far: tuple[Contrast, ...]
    shown: tuple[bool, ...]


def decompose(arms: Sequence[Series], *, confidence: float) -> Waterfall:
    """The difference between the first arm and the last, step by step. All arms have the same blocks.

    So within each block the differences telescope, and their means add up to the mean of last minus first, whatever
    the values. The interval of the total is not the sum of the steps' intervals, because errors cancel.
    """

    from harness.results.contrasts import contrast  # noqa: PLC0415 - nothing that reads a scenario waits for it

    def against(left: Series, right: Series) -> Contrast:
        contrast_ = contrast(left, right, confidence=confidence)
        assert contrast_ is not None
        return contrast_

    steps = tuple(against(left, right) for left, right in pairwise(arms))
    shown = holm([step.p_value for step in steps], 1 - confidence)
    return Waterfall(steps, tuple(against(arms[0], arm) for arm in arms[1:]), tuple(shown))
