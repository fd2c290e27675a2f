"""Verdicts over all cells: budgets in words, what exceeds them, what is void, what would decide the inconclusive."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.analysis import (
    CONFIDENCE,
    METRICS,
    MOST_SAMPLES,
    Estimate,
    Samples,
    Spread,
    Verdict,
    count_samples_to_show,
    log_ratios,
    spread_added,
)
from harness.model.mode import Place
from harness.report.blocks import (
    Aside,
    Block,
    Column,
    Fold,
    Heading,
    Listing,
    Mark,
    Row,
    Scale,
    Table,
    TableCell,
    make_table,
    slug,
)
from harness.report.numbers import count, difference_words, microseconds, microseconds_interval, percent_with_interval
from harness.results import BudgetRecord, CellRecord, MetricRecord, Outcome
from harness.results.judging import explain_faster
from harness.results.metric_records import count_rounds_needed

_GRAVEST_FIRST = (Verdict.VOID, Verdict.EXCEEDS, Verdict.INCONCLUSIVE, Verdict.WITHIN, Verdict.UNJUDGED)
_SMALLEST_P = 0.0001


def gravest_first(budgets: Sequence[BudgetRecord]) -> tuple[BudgetRecord, ...]:
    """The budgets with the exceeded ones first. Budgets of one verdict keep their order."""
    return tuple(sorted(budgets, key=lambda budget: _GRAVEST_FIRST.index(budget.verdict)))


def format_limit(budget: BudgetRecord) -> str:
    """ "30 %", "+50 us", "30 % or +50 us" if one of them must be kept, "30 % and +50 us" if both must be kept."""
    parts = []
    if budget.difference is not None:
        parts.append(f"{budget.difference * 100:.6g} %")
    if budget.share is not None:
        parts.append(f"{budget.share * 100:.6g} %")
    if budget.absolute is not None:
        parts.append(f"{budget.absolute * 1e6:+.6g} us")
    return (" or " if budget.both == "looser" else " and ").join(parts)


def describe_finding(record: CellRecord, budget: BudgetRecord) -> str:
    """ "overhead 38.2 % [35.2, 41.0]"; for an absolute limit "adds 120 us [100, 140]"; or why there is no figure."""
    metric = record.metrics.get(budget.metric)
    estimate = budget.estimate(metric) if metric is not None else None
    if metric is None or estimate is None:
        too_few = METRICS[budget.metric].quantile is not None and record.rounds
        return f"no sample: too few I/Os in {count(len(record.rounds), 'block')}" if too_few else "not measured"
    parts = []
    if budget.absolute is None or budget.share is not None:
        what = "overhead" if budget.difference is None else "difference from the reference"
        parts.append(f"{what} {percent_with_interval(estimate, ' %')}")
    if budget.absolute is not None and metric.added is not None:
        added = microseconds(metric.added.point, grouped="")
        parts.append(f"adds {added} us {microseconds_interval(metric.added)}".rstrip())
    return " and ".join(parts)


def format_p_value(probability: float | None) -> str:
    """ "p = 0.0031", "p < 0.0001"; "no p value" with one block."""
    if probability is None:
        return "no p value"
    return f"p < {_SMALLEST_P}" if probability < _SMALLEST_P else f"p = {probability:.2g}"


def describe_budget(record: CellRecord, budget: BudgetRecord) -> str:
    """For example "iops overhead 79.4 % [77.5, 81.2], budget 60 %, p < 0.0001"."""
    finding = describe_finding(record, budget)
    return f"{budget.metric} {finding}, budget {format_limit(budget)}, {format_p_value(budget.p_value)}"


def judge_difference(cell: CellRecord, difference: Estimate, *, known: str = "") -> str:
    """For example "exceeds 200 % in clat_p99", or "exceeds 200 %" if the metric is `known`; without a budget of the
    difference from the reference, whether one is shown."""
    budgets = gravest_first([budget for budget in cell.budget if budget.difference is not None])
    if not budgets:
        return difference_words(difference)
    in_metric = "" if budgets[0].metric == known else f" in {budgets[0].metric}"
    return f"{budgets[0].verdict} {format_limit(budgets[0])}{in_metric}"


def compact_verdict(record: CellRecord) -> str:
    """The cell's verdict. With several budgets, it has the number of budgets with this verdict: "exceeds 1/3"."""
    if len(record.budget) < 2 or record.verdict in (Verdict.VOID, Verdict.UNJUDGED):
        return record.verdict.value
    same = sum(budget.verdict is record.verdict for budget in record.budget)
    return f"{record.verdict.value} {same}/{len(record.budget)}"


def allowed(host: float, budget: BudgetRecord) -> float:
    """The worst value of a guest that keeps the budget, for a host with this value, in the metric's unit."""
    if METRICS[budget.metric].higher_is_better:
        return host * (1 - (budget.share or 0.0))
    limits = []
    if budget.share is not None:
        limits.append(host * (1 + budget.share))
    if budget.absolute is not None:
        limits.append(host + budget.absolute)
    return max(limits) if budget.both == "looser" else min(limits)


_ERROR_RATE = (1 - CONFIDENCE) / 2


@dataclass(frozen=True, slots=True)
class _Side:
    """One limit of a budget: how far the samples' mean is beyond it (below 0 if it is kept), and their spread."""

    beyond: float
    spread: float

    def samples(self, confidence: float) -> float:
        """The smallest number of samples for which the interval, with this spread, does not contain the limit.

        Infinite beyond `MOST_SAMPLES`.
        """
        return count_samples_to_show(self.beyond, self.spread, confidence) or math.inf


def what_decides(record: CellRecord, budget: BudgetRecord, *, judged: int) -> str:
    """What would decide an inconclusive budget of a cell, in words. `judged` is how many budgets the run judges."""
    metric = record.metrics.get(budget.metric)
    if metric is None or budget.estimate(metric) is None:
        return _what_gives_samples(record, budget.metric)
    boots: Sequence[int] = record.boots if len(set(record.boots)) > 1 else ()
    noun, n = "boots" if boots else "blocks", len(set(boots)) or len(budget.baseline(metric))
    if n < 2:
        return "one block has no interval: measure at least ten"
    if budget.p_value is not None and budget.p_value <= _ERROR_RATE:
        # The budget alone is exceeded, but the correction revokes that. So it needs the confidence of one among all.
        needed = samples_to_decide(metric, budget, 1 - (1 - CONFIDENCE) / judged, boots)
        return f"beyond its budget alone, not as one of {judged} judged: {_words(needed, n, noun)}"
    return _words(samples_to_decide(metric, budget, record.confidence, boots), n, noun)


def _what_gives_samples(record: CellRecord, name: str) -> str:
    """For a percentile without an interval."""
    rounds = count_rounds_needed(record, name, reboot=len(set(record.boots)) > 1)
    if rounds is None:
        return "use longer slices, which complete enough I/Os for a percentile"
    done = len(set(record.rounds))
    return f"an interval takes about {rounds} rounds like these {done}; or use longer slices"


def samples_to_decide(
    metric: MetricRecord, budget: BudgetRecord, confidence: float, boots: Sequence[int] = ()
) -> int | None:
    """How many samples would give an interval without the budget in it; None for more than `MOST_SAMPLES`.

    A sample is a block. With `boots`, the boot of each block, it is the mean of a boot. This is an expectation and not
    a promise: it treats mean and spread of the samples so far as the true values, and blocks as independent.
    ValueError for fewer than two samples.
    """
    confidence = budget.limit.interval_confidence(confidence)
    sides = _sides(metric, budget, boots)
    broken = [side.samples(confidence) for side in sides if side.beyond > 0]
    kept = [side.samples(confidence) for side in sides if side.beyond <= 0]
    suffices, needs_all = (kept, broken) if budget.both == "looser" else (broken, kept)
    needed = min(suffices) if suffices else max(needs_all)
    return None if math.isinf(needed) else max(int(needed), (len(set(boots)) or len(budget.baseline(metric))) + 1)


def _sides(metric: MetricRecord, budget: BudgetRecord, boots: Sequence[int]) -> list[_Side]:
    """As in a verdict: a share on the logarithms of the blocks' ratios, an amount on their differences."""
    sides = []
    baseline, guest = budget.baseline(metric), metric.samples(Place.GUEST)
    samples = Samples(tuple(boots), resolution=METRICS[budget.metric].resolution)
    if (share := budget.limit.share) is not None:
        ratios = log_ratios(baseline, guest)
        if metric.better == "lower":
            sides.append(_make_side(samples.spread(ratios), math.log1p(share)))
        else:
            most = -math.log1p(-share) if share < 1 else math.inf
            sides.append(_make_side(samples.spread([-ratio for ratio in ratios]), most))
    if budget.absolute is not None:
        sides.append(_make_side(spread_added(baseline, guest, samples), budget.absolute))
    return sides


def _make_side(spread: Spread, most: float) -> _Side:
    """ValueError for a single sample."""
    if spread.error is None:
        raise ValueError("one sample has no spread")
    return _Side(spread.mean - most, spread.error * math.sqrt(spread.n))


def _words(needed: int | None, n: int, noun: str) -> str:
    if needed is None:
        return f"more than {MOST_SAMPLES} {noun}: the overhead is too close to the budget"
    return f"about {needed} {noun}, if they scatter like these {n}"


_MOST_OPEN = 12
"""Budgets whose list is open when the page is."""
_LINE = 160
"""Characters of a reason in a list. The page has all of it."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One budget of one cell with its finding. `decides` is empty unless the verdict is inconclusive."""

    cell: CellRecord
    budget: BudgetRecord
    decides: str

    @property
    def overhead(self) -> Estimate | None:
        metric = self.cell.metrics.get(self.budget.metric)
        return self.budget.estimate(metric) if metric else None

    @property
    def sentence(self) -> str:
        """For lists: "CELL: iops overhead 79.4 % [77.5, 81.2], budget 60 %, p < 0.0001"."""
        return f"{self.cell.id}: {describe_budget(self.cell, self.budget)}"


@dataclass(frozen=True, slots=True)
class Verdicts:
    """All verdicts of a run, by kind."""

    exceeds: tuple[Judged, ...]
    """The smallest p value first."""
    inconclusive: tuple[Judged, ...]
    within: tuple[Judged, ...]
    void: tuple[CellRecord, ...]
    faster: tuple[CellRecord, ...]
    """Cells that are not void and whose guest is shown to be faster than its host."""
    not_measured: tuple[CellRecord, ...]

    @property
    def judged(self) -> int:
        """The number of budgets that got a verdict."""
        return len(self.exceeds) + len(self.inconclusive) + len(self.within)

    @property
    def faster_sentences(self) -> tuple[str, ...]:
        """For lists: "CELL: bw overhead -33.5 [-53.2, -16.4] %; no check explains it: find out why"."""
        return tuple(f"{cell.id}: {cell.headline_name} {_gained(cell)}; {explain_faster(cell)}" for cell in self.faster)

    @property
    def void_reasons(self) -> tuple[str, ...]:
        """A line for each mode and kind of failed checks, with the first cell's reason."""
        alike: dict[tuple[str, str], list[CellRecord]] = {}
        for cell in self.void:
            alike.setdefault((cell.mode, " and ".join(_failed(cell))), []).append(cell)
        return tuple(
            f"`{mode}`, {count(len(cells), 'cell')}: {checks} failed, {_example(cells[0])}"
            for (mode, checks), cells in alike.items()
        )

    @property
    def skip_reasons(self) -> tuple[str, ...]:
        """A line for each mode and reason why nothing was measured."""
        alike: dict[tuple[str, str], list[CellRecord]] = {}
        for cell in self.not_measured:
            alike.setdefault((cell.mode, "; ".join(cell.remarks)), []).append(cell)
        return tuple(f"`{mode}`, {count(len(cells), 'cell')}: {reason}" for (mode, reason), cells in alike.items())


def link_cell(cell: CellRecord) -> str:
    """Where the page has the evidence of a cell."""
    return f"#cell-{slug(cell.id)}"


def _failed(cell: CellRecord) -> list[str]:
    """The kinds of the checks that failed: the first word of their names."""
    return list(dict.fromkeys(check.check.partition(" ")[0] for check in cell.validity if not check.ok))


def _example(cell: CellRecord) -> str:
    detail = next((check.detail for check in cell.validity if not check.ok), "no reason was stored")
    return f"for example {cell.job.id}: {textwrap.shorten(detail, _LINE, placeholder=' ...')}"


def _gained(cell: CellRecord) -> str:
    mode = cell.mode_detail
    loss = cell.headline.on_same_disks(mode) if cell.headline is not None else None
    basis = " against the array on the host" if mode.on_array else ""
    return f"overhead{basis} {percent_with_interval(loss)} %"


def verdict_blocks(verdicts: Verdicts) -> Iterator[Block]:
    """What exceeds, what is undecided, what is void and what is faster than its host."""
    yield Heading("Verdicts", level=2)
    if verdicts.judged == 0 and not verdicts.void and not verdicts.faster:
        yield Aside("No budget applies to a cell of this run in this lab, so nothing is judged.")
    for title, kind, rows in (
        ("Exceeds its budget", "exceeds", verdicts.exceeds),
        ("Inconclusive, and what would decide it", "inconclusive", verdicts.inconclusive),
    ):
        if rows:
            yield Heading(f"{title}: {len(rows)} of {verdicts.judged} judged")
            tables = tuple(_judged_table(quantity, judged, kind) for quantity, judged in _by_quantity(rows).items())
            summary = Mark(count(len(rows), "budget"), "tone", kind)
            yield Fold((summary,), tables, open=len(rows) <= _MOST_OPEN, key=f"verdicts-{kind}")
    if verdicts.void:
        yield Heading(f"Void: {count(len(verdicts.void), 'cell')}")
        yield Aside("A check failed, so these are left out of all means and comparisons.")
        yield Listing(verdicts.void_reasons)
        void = tuple(Row((TableCell(cell.id, link=link_cell(cell)), "; ".join(cell.remarks))) for cell in verdicts.void)
        table = Table((Column("cell", "head"), Column("why", "text")), void, "Void cells and why", style="facts")
        yield Fold((Mark("every void cell and why", "tone", "void"),), (table,), key="verdicts-void")
    if verdicts.faster:
        yield Heading(f"Faster than the host: {count(len(verdicts.faster), 'cell')}")
        yield Aside(
            "A virtual machine cannot be faster than its host by itself, so these figures need an explanation. Each is "
            "shown also as one of all cells of the run."
        )
        yield Listing(verdicts.faster_sentences)
    if verdicts.judged:
        yield Aside(
            f"{len(verdicts.within)} of {verdicts.judged} judged budgets are kept with the whole interval. In the "
            "drawings, the dot is the overhead in percent, the bar its interval, and the vertical line its budget."
        )


def _judged_table(quantity: str, judged: Sequence[Judged], kind: str) -> Table:
    """The budgets with one scale for all rows, which has room for the budgets."""
    limits = [share for one in judged if (share := one.budget.limit.share) is not None]
    scale = Scale.around([one.overhead for one in judged if one.overhead is not None], limits)
    return make_table(
        judged,
        quantity,
        (Column("cell", "head"), lambda one: TableCell(one.cell.id, link=link_cell(one.cell))),
        (Column("metric"), lambda one: one.budget.metric),
        (Column("found"), lambda one: describe_finding(one.cell, one.budget)),
        (Column("budget", "strong"), lambda one: format_limit(one.budget)),
        (Column("drawing", "drawing", scale=scale, hidden=True), _draw_judged),
        (Column("p", "why"), lambda one: format_p_value(one.budget.p_value))
        if kind == "exceeds"
        else (Column("what would decide it", "why"), lambda one: one.decides),
        style="glance judged",
        caption_shown=True,
    )


def _draw_judged(judged: Judged) -> TableCell:
    share = judged.budget.limit.share
    return TableCell("", drawn=judged.overhead if share is not None else None, limit=share)


def _by_quantity(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    """Throughput and latency separately: on the scale of a latency that is 400 % worse, a loss of 20 % is invisible."""
    tables: dict[str, list[Judged]] = {}
    for one in sorted(judged, key=lambda one: METRICS[one.budget.metric].is_latency):
        tables.setdefault("Latency" if METRICS[one.budget.metric].is_latency else "Throughput", []).append(one)
    return tables


def find_verdicts(cells: Sequence[CellRecord]) -> Verdicts:
    """The verdicts of these cells. The budgets of a void or skipped cell are not judged."""
    pairs = [(cell, budget) for cell in cells if cell.usable for budget in cell.budget]

    def those(verdict: Verdict) -> list[Judged]:
        return [
            Judged(
                cell,
                budget,
                what_decides(cell, budget, judged=len(pairs)) if verdict is Verdict.INCONCLUSIVE else "",
            )
            for cell, budget in pairs
            if budget.verdict is verdict
        ]

    exceeds = those(Verdict.EXCEEDS)
    exceeds.sort(key=lambda exceed: exceed.budget.p_value if exceed.budget.p_value is not None else 1.0)
    return Verdicts(
        exceeds=tuple(exceeds),
        inconclusive=tuple(those(Verdict.INCONCLUSIVE)),
        within=tuple(those(Verdict.WITHIN)),
        void=tuple(cell for cell in cells if cell.outcome is Outcome.VOID),
        faster=tuple(cell for cell in cells if cell.usable and cell.better_than_host),
        not_measured=tuple(cell for cell in cells if cell.outcome in (Outcome.SKIPPED, Outcome.NOT_MEASURED)),
    )
