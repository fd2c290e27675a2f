"""Which mode to use for what, and what single options do: guest against guest, by intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Any

from harness.analysis import (
    IN_ORDER,
    METRICS,
    PRACTICAL,
    Estimate,
    Relation,
    Samples,
    count_samples_to_show,
    estimate_mean,
    find_shown_changes,
    t_quantile,
)
from harness.feature import CPU_TIME
from harness.features.answers.uses import (
    USES,
    Judge,
    Use,
    explain_preference,
    find_caution,
    rank_by_needs,
    rank_by_simplicity,
    unfit,
)
from harness.model.attach import Attach
from harness.model.base import Kind
from harness.model.job import Job
from harness.model.layout import OnZfs
from harness.model.mode import ModeDetail
from harness.model.values import format_field, names_of
from harness.report.section import Section
from harness.results.cells import CellRecord
from harness.results.contrasts import ModeChange, compare_guests, loss_over_jobs, most_comparable
from harness.units import format_size


@dataclass(frozen=True, slots=True)
class Factor:
    """One option in which two modes differ. `before` and `after` are its values in words."""

    name: str
    before: str
    after: str
    attached: bool
    """Whether it is an option of how the guest gets the disk, and not of the layout or of the guest."""

    @property
    def words(self) -> str:
        """The option as it is afterwards: "iothread off", "bus sata", "layout qcow2"."""
        return f"{self.name} {self.after}"


def factors(before: ModeDetail, after: ModeDetail) -> tuple[Factor, ...]:
    """Every option in which the modes differ. Another kind of layout, or of attachment, is one option."""
    return (
        *_compare_layouts(before.layout, after.layout),
        *_compare_attachments(before, after),
        *_compare_fields(before.guest, after.guest),
    )


def _compare_layouts(before: Kind, after: Kind) -> Iterator[Factor]:
    if before == after:
        return
    if before.kind != after.kind:
        yield Factor("layout", before.kind, after.kind, attached=False)
        if isinstance(before, OnZfs) and isinstance(after, OnZfs):
            # A zvol and a file have the same properties, and their records have a size each.
            if before.record_bytes != after.record_bytes:
                yield Factor(
                    "record", format_size(before.record_bytes), format_size(after.record_bytes), attached=False
                )
            yield from _compare_fields(before, after, sorted({*names_of(before)} & {*names_of(after)} - {"kind"}))
    else:
        yield from _compare_fields(before, after)


def _compare_attachments(before: ModeDetail, after: ModeDetail) -> Iterator[Factor]:
    one, other = before.attach, after.attach
    if isinstance(one, Attach) and isinstance(other, Attach):
        yield from _compare_fields(one, other, attached=True)
    elif one != other:
        before_words, after_words = (layer.words if layer is not None else "host" for layer in (one, other))
        yield Factor("attachment", before_words, after_words, attached=True)


def _compare_fields(
    before: Any, after: Any, names: Iterable[str] | None = None, *, attached: bool = False
) -> Iterator[Factor]:
    for name in names_of(before) if names is None else names:
        if (value_before := getattr(before, name)) != (value_after := getattr(after, name)):
            words = _format_option(before, name, value_before), _format_option(after, name, value_after)
            yield Factor(name.replace("_", " "), words[0], words[1], attached)


def _format_option(side: object, name: str, value: object) -> str:
    if value is None or value == ():
        return "by default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return value.words if isinstance(value, Kind) else format_field(side, name).strip('"')


Cells = Sequence[CellRecord]


@dataclass(frozen=True, slots=True)
class Rival:
    """A mode beside the recommended one."""

    mode: str
    than: ModeChange
    """Its guest as a multiple of the recommended mode's."""
    shown: Relation
    seconds: float | None
    """More measuring that would decide between the two; None if they are decided, or if it is not practical."""
    unfit: str | None
    """Why it is never recommended."""
    factors: tuple[Factor, ...]
    """What changes from it to the recommended mode."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The mode to use for one use of a disk."""

    use: Use
    judge: Judge | None
    """How the use is judged; None if no job represents it. Then there is no mode."""
    jobs: tuple[Job, ...] = ()
    metric: str = ""
    mode: str | None = None
    """The mode to use; None if none can be recommended."""
    why: str = ""
    """Why this one of several equal modes, or why none."""
    alike: tuple[str, ...] = ()
    """Equal modes for which there is no reason against them either."""
    equals: tuple[Rival, ...] = ()
    """Modes that no interval shows to be worse than the best. In the order of the plan, which is no ranking."""
    worse: tuple[Rival, ...] = ()
    """Modes that are worse, the best first."""
    never: tuple[Rival, ...] = ()
    """Modes that are never recommended."""
    loss: Estimate | None = None
    """What the mode loses against the host in the metric."""
    cpu: Estimate | None = None
    """CPU time of the host for an I/O of its guest, in seconds."""
    cautions: tuple[tuple[str, str], ...] = ()
    """What to know about the mode and its equals before using them: mode and words."""

    @property
    def higher_is_better(self) -> bool:
        return METRICS[self.metric].higher_is_better

    @property
    def step(self) -> Rival | None:
        """The mode from which a change of one option of the attachment gains most, of those that it is shown for."""
        near = [rival for rival in (*self.worse, *self.never) if len(rival.factors) == 1 and rival.factors[0].attached]
        shown = [
            rival for rival in near if rival.shown is Relation.SHOWN and self._is_better(1 / rival.than.change.ratio)
        ]
        return max(shown, key=lambda rival: abs(math.log(rival.than.change.ratio)), default=None)

    def _is_better(self, ratio: float) -> bool:
        return (ratio > 1) == self.higher_is_better


def answer_uses(cells: Cells, slice_seconds: float) -> tuple[Answer, ...]:
    """An answer for each use. `cells` are those of one disk with a guest that are results.

    `slice_seconds` as `estimate_slice_seconds` gives it.

    A mode is worse if its interval against the best mean is beyond it. The intervals of all pairs of modes hold
    together (Bonferroni), because the data choose the pairs that are compared. So if all modes are equal, none is
    called worse with the confidence of the run. Among the modes that are not worse, the one that meets the needs of the
    use best is recommended, and then the simplest.
    """
    return tuple(_answer(use, cells, slice_seconds) for use in USES)


def estimate_slice_seconds(cells: Iterable[CellRecord], wall_s: float) -> float:
    """The seconds that a slice of this run took, with all that is between slices. 0 if nothing was measured."""
    slices, hosts = 0, dict[tuple[str, str, str, str], int]()
    for cell in cells:
        blocks = len(cell.rounds)
        key = (cell.host, cell.disk, cell.scenario, cell.job.id)
        hosts[key] = max(hosts.get(key, 0), blocks)
        slices += blocks * count_arms(cell.mode_detail)
    slices += sum(hosts.values())
    return wall_s / slices if slices else 0.0


def count_arms(mode: ModeDetail) -> int:
    """Arms of a mode beside the bare host."""
    return int(mode.attach is not None) + int(mode.layout.kind != "device")


def _answer(use: Use, cells: Cells, slice_seconds: float) -> Answer:
    judged = use.judge_of(list({cell.job.id: cell.job for cell in cells}.values()))
    if judged is None:
        return Answer(use, None)
    judge, jobs = judged
    names = {job.id for job in jobs}
    cells_of_use = [cell for cell in cells if cell.job.id in names]
    metric = _choose_metric(judge, cells_of_use)
    if metric is None:
        return Answer(use, None)
    by_mode: dict[str, dict[str, CellRecord]] = {}
    for cell in cells_of_use:
        if metric in cell.metrics:
            by_mode.setdefault(cell.mode, {})[cell.job.id] = cell
    modes, common = most_comparable({mode: set(of_job) for mode, of_job in by_mode.items()})
    order = [mode for mode in by_mode if mode in modes]
    ids = [job.id for job in jobs if job.id in common]
    candidates = {mode: [by_mode[mode][job] for job in ids] for mode in order}
    decision = _Decision(use, candidates, metric, slice_seconds)
    return decision.answer(Answer(use, judge, tuple(job for job in jobs if job.id in common), metric))


def _choose_metric(judge: Judge, cells: Cells) -> str | None:
    """The first of the judge's metrics that all of these cells have with an interval; else one that some have."""

    def has(cell: CellRecord, metric: str, least: int) -> bool:
        return metric in cell.metrics and len(cell.metrics[metric].samples("guest")) >= least

    for least, test in ((2, all), (1, any)):
        for metric in judge.metrics:
            if test(has(cell, metric, least) for cell in cells):
                return metric
    return None


class _Decision:
    """The choice between modes that have these cells of the same jobs."""

    def __init__(self, use: Use, cells: Mapping[str, Cells], metric: str, slice_seconds: float) -> None:
        self._needs = use.needs
        self._cells = cells
        self._metric = metric
        self._slice_seconds = slice_seconds
        self._details = {mode: mode_cells[0].mode_detail for mode, mode_cells in cells.items()}
        self._alone = max(cell.confidence for mode_cells in cells.values() for cell in mode_cells)
        self._fit = [mode for mode, detail in self._details.items() if unfit(detail) is None]
        self._confidence = 1 - (1 - self._alone) / max(1, _count_pairs(len(self._fit), len(cells)))

    def answer(self, empty: Answer) -> Answer:
        losses = {
            mode: loss_over_jobs(mode_cells, metric=self._metric, confidence=self._alone)
            for mode, mode_cells in self._cells.items()
        }
        if not self._fit:
            reasons = "; ".join(f"`{mode}`: {unfit(detail)}" for mode, detail in self._details.items())
            return replace(empty, why=f"no measured mode is safe: {reasons}")
        if len(self._fit) > 1 and any(losses[mode].n < 2 for mode in self._fit):
            return replace(empty, why="one block has no interval, so no mode is ranked: measure at least ten")
        best = min(self._fit, key=lambda mode: losses[mode].point)
        than_best = self._compare_with(best)
        equal = [mode for mode in self._fit if mode == best or not self._is_worse(than_best[mode])]
        chosen = min(equal, key=lambda mode: (*self._rank(mode), equal.index(mode)))
        than_chosen = than_best if chosen == best else self._compare_with(chosen)
        rivals = {mode: self._make_rival(mode, chosen, change) for mode, change in than_chosen.items()}
        rest = sorted(set(self._fit) - set(equal), key=lambda mode: losses[mode].point)
        return replace(
            empty,
            mode=chosen,
            why=self._explain_choice(chosen, [mode for mode in equal if mode != chosen]),
            alike=tuple(mode for mode in equal if mode != chosen and not self._explain_choice(chosen, [mode])),
            equals=tuple(rivals[mode] for mode in equal if mode != chosen),
            worse=tuple(rivals[mode] for mode in rest),
            never=tuple(rivals[mode] for mode in self._cells if mode not in self._fit),
            loss=losses[chosen],
            cpu=_estimate_cpu(self._cells[chosen]),
            cautions=tuple((mode, words) for mode in equal for words in self._list_cautions(mode)),
        )

    def _list_cautions(self, mode: str) -> Iterator[str]:
        if (words := find_caution(self._details[mode])) is not None:
            yield words
        cells = self._cells[mode]
        if jobs := [cell.job.id for cell in cells if cell.better_than_host]:
            yield f"better than its host in {', '.join(jobs[:3])}{' and others' * (len(jobs) > 3)}: find out why"

    def _rank(self, mode: str) -> tuple[int, ...]:
        return rank_by_needs(self._details[mode], self._needs)

    def _compare_with(self, other: str) -> dict[str, ModeChange]:
        """Every other mode as a multiple of `other`."""
        cells = {mode: mode_cells for mode, mode_cells in self._cells.items() if mode != other}
        pairs = {mode: list(zip(self._cells[other], mode_cells, strict=True)) for mode, mode_cells in cells.items()}
        return compare_guests(pairs, self._metric, self._confidence)

    def _is_worse(self, mode_change: ModeChange) -> bool:
        change = mode_change.change
        return change.excludes_one and (change.ratio < 1) == METRICS[self._metric].higher_is_better

    def _make_rival(self, mode: str, chosen: str, mode_change: ModeChange) -> Rival:
        shown, seconds = mode_change.change.relation, None
        if shown is Relation.UNDECIDED and (blocks := _count_blocks_to_decide(mode_change)) is not None:
            arms = 1 + sum(count_arms(self._details[name]) for name in (mode, chosen))
            seconds = blocks * len(self._cells[mode]) * arms * self._slice_seconds
        change = factors(self._details[mode], self._details[chosen])
        return Rival(mode, mode_change, shown, seconds, unfit(self._details[mode]), change)

    def _explain_choice(self, chosen: str, others: Sequence[str]) -> str:
        """Why the chosen one and not the others, each reason once; empty if there is no reason."""
        ranked = sorted(others, key=self._rank, reverse=True)
        reasons = [explain_preference(self._details[chosen], self._details[mode], self._needs) for mode in ranked]
        return " and ".join(dict.fromkeys(filter(None, reasons)))


def _count_pairs(fit: int, modes: int) -> int:
    """The pairs of modes that can be compared: every fit mode with every other mode, fit or not."""
    return math.comb(fit, 2) + fit * (modes - fit)


def _estimate_cpu(cells: Cells) -> Estimate | None:
    """The mean over the jobs. Not every block has counters, so those of each job are taken in order of time."""
    costs = [cell.accounting.get(CPU_TIME) for cell in cells]
    values = [cost.guest for cost in costs if cost is not None and cost.guest]
    if len(values) < len(cells):
        return None
    means = [fmean(together) for together in zip(*values, strict=False)]
    counted = all(len(of_cell) == len(cell.boots) for cell, of_cell in zip(cells, values, strict=True))
    samples = Samples(cells[0].boots[: len(means)]) if counted else IN_ORDER
    return estimate_mean(means, confidence=max(cell.confidence for cell in cells), samples=samples)


THROUGHPUT = "iops"
"""The ratio of two arms in I/Os per second is also that of their bandwidths."""


@dataclass(frozen=True, slots=True)
class OptionEffect:
    """One mode against the mode from which it differs in one option, over the jobs that both have."""

    mode: str
    reference: str
    factor: Factor
    jobs: int
    effect: ModeChange
    shown: bool
    """Whether it changes anything, also as one of all options (Benjamini-Hochberg)."""

    @property
    def relation(self) -> Relation:
        relation = self.effect.change.relation
        return Relation.UNDECIDED if relation is Relation.SHOWN and not self.shown else relation


@dataclass(frozen=True, slots=True)
class OptionMatrix:
    """The effects of single options. `default` is the mode with which most others are compared."""

    default: str
    effects: tuple[OptionEffect, ...]
    apart: tuple[str, ...]
    """Modes that differ from every other mode in more than one option."""


def compare_options(cells: Sequence[CellRecord]) -> OptionMatrix | None:
    """The effect of each option that the modes of these cells differ in; None without such an option or an interval.

    The cells are those of one disk with a guest that are results. Each mode is compared with the default, or with the
    mode nearest to it that differs in one option only.
    """
    by_mode: dict[str, dict[str, CellRecord]] = {}
    for cell in cells:
        if cell.job.is_saturating and THROUGHPUT in cell.metrics:
            by_mode.setdefault(cell.mode, {})[cell.job.id] = cell
    details = {mode: next(iter(cells_of_mode.values())).mode_detail for mode, cells_of_mode in by_mode.items()}
    near = _find_neighbours(details)
    if not any(near.values()):
        return None
    default = max(near, key=lambda mode: (len(near[mode]), [-place for place in rank_by_simplicity(details[mode])]))
    references = _find_references(default, near)
    pairs = {}
    for mode in (mode for mode in by_mode if mode in references):
        before, after = by_mode[references[mode]], by_mode[mode]
        if both := [(before[job], after[job]) for job in after if job in before]:
            pairs[mode] = both
    confidence = max((cell.confidence for cell in cells), default=0.95)
    effects = []
    for mode, effect in compare_guests(pairs, THROUGHPUT, confidence).items():
        (factor,) = factors(details[references[mode]], details[mode])
        effects.append(OptionEffect(mode, references[mode], factor, len(pairs[mode]), effect, shown=False))
    if all(effect.effect.change.low is None for effect in effects):
        return None
    shown = find_shown_changes([effect.effect.change for effect in effects])
    return OptionMatrix(
        default,
        tuple(replace(effect, shown=is_shown) for effect, is_shown in zip(effects, shown, strict=True)),
        tuple(mode for mode in by_mode if mode != default and mode not in references),
    )


def _find_neighbours(details: dict[str, ModeDetail]) -> dict[str, list[str]]:
    """The modes that differ from each mode in one option."""
    near: dict[str, list[str]] = {mode: [] for mode in details}
    for one, other in combinations(details, 2):
        if len(factors(details[one], details[other])) == 1:
            near[one].append(other)
            near[other].append(one)
    return near


def _find_references(default: str, near: dict[str, list[str]]) -> dict[str, str]:
    """The mode with which each mode is compared: the one before it on the shortest way from the default."""
    names: dict[str, str] = {}
    ahead = [default]
    for mode in ahead:
        for other in near[mode]:
            if other != default and other not in names:
                names[other] = mode
                ahead.append(other)
    return names


def get_answers(section: Section) -> tuple[Answer, ...]:
    """Which mode to use for what; empty without a result, and for arrays that the run builds."""
    return section.once(_answer_section)


def select_results(section: Section) -> tuple[CellRecord, ...]:
    """The cells that answer for their modes. The answer about arrays that a run builds is how they scale."""
    if section.special is not None:
        return ()
    return tuple(cell for cell in section.alone if cell.usable and not cell.is_baseline)


def _answer_section(section: Section) -> tuple[Answer, ...]:
    results, run = select_results(section), section.run
    return answer_uses(results, estimate_slice_seconds(run.cells, run.run.efficiency.wall_s)) if results else ()


def _count_blocks_to_decide(mode_change: ModeChange) -> float | None:
    """How many more blocks of each job would show a change, or that it is negligible.

    None without an interval, and if it would take more than `MOST_SAMPLES`.
    An expectation from the mean and the scatter of the samples so far, as for `count_samples_to_show`.
    """
    change = mode_change.change
    if change.low is None or change.high is None:
        return None
    n = min(change.n_before, change.n_after)
    half = math.log(change.high / change.low) / 2
    sd = half * math.sqrt(n) / t_quantile((1 + mode_change.confidence) / 2, n - 1)
    mean = abs(math.log(change.ratio))
    needed = count_samples_to_show(max(mean, math.log(PRACTICAL) - mean), sd, mode_change.confidence)
    return None if needed is None else max(needed - n, 1) * mode_change.blocks
