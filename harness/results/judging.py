"""The verdicts of cells: each budget alone by the rounds of its cell, then all budgets of a run together. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from harness.analysis import (
    IN_ORDER,
    MARGIN,
    METRICS,
    Limit,
    Look,
    Samples,
    Verdict,
    correct_verdicts,
    exceeds_p_value,
    holm,
    judge_look,
)
from harness.feature import features
from harness.model.mode import Budget, ModeDetail, Place
from harness.results.cells import BudgetRecord, CellRecord, MetricRecord, Outcome
from harness.results.records import JudgedRecord


def explain_faster(cell: CellRecord) -> str:
    """Why a guest without a failed check is faster than its host, or that the reason is not known."""
    reasons = (feature.explain_faster(cell) for feature in features())
    attach = cell.mode_detail.attach
    cached = "its disk has a cache in the memory of the host, and the host's own I/Os went to the disk"
    buffered = attach is not None and not attach.direct
    return next(filter(None, reasons), cached if buffered else "no check explains it: find out why")


SKIPPED = "skipped"
ERROR_RATE = 0.025
"""The probability of any false claim of one kind in a run: one side of a confidence of 95 %."""
_GRAVEST_FIRST = (Verdict.EXCEEDS, Verdict.INCONCLUSIVE, Verdict.WITHIN)


def judge_budgets(
    rules: Mapping[str, Budget], metrics: Mapping[str, MetricRecord], look: Look | None, samples: Samples = IN_ORDER
) -> tuple[BudgetRecord, ...]:
    """The verdict of each budget of the cell alone. Without a look, or without the metric, it is inconclusive.

    `samples` are the blocks of the cell.
    """
    return tuple(_judge_budget(rule, metrics.get(rule.metric), look, samples) for rule in rules.values())


def find_gravest(budgets: Iterable[BudgetRecord]) -> Verdict:
    """The verdict of a cell with these budgets: the worst of their verdicts, or unjudged without a budget."""
    verdicts = {budget.verdict for budget in budgets}
    return next((verdict for verdict in _GRAVEST_FIRST if verdict in verdicts), Verdict.UNJUDGED)


def correct_records(
    records: Iterable[CellRecord], *, family: int, error_rate: float, only: Collection[str] | None = None
) -> list[CellRecord]:
    """The records after the correction over the run: an `exceeds` that does not survive it becomes `inconclusive`.

    Every budget of every cell counts, see `correct_verdicts`. The budgets of a void cell count as without evidence.
    `family` and `error_rate` as there. With `only`, ids of cells, the other cells count but are not returned.
    """
    records = mark_better(records, error_rate=error_rate)
    tested = [
        replace(budget, p_value=None) if record.verdict is Verdict.VOID else budget
        for record in records
        for budget in record.budget
    ]
    verdicts = iter(correct_verdicts(tested, family=family, error_rate=error_rate))
    judged_records = ((record, [next(verdicts) for _ in record.budget]) for record in records)
    return [
        _correct_record(record, of_record) for record, of_record in judged_records if only is None or record.id in only
    ]


def compute_better_p(
    metric: MetricRecord | None, detail: ModeDetail, look: Look | None, samples: Samples
) -> float | None:
    """The p value of "the guest is better than the host on the same disks by more than `MARGIN`"; None if unknown."""
    if metric is None or look is None or not metric.samples(Place.GUEST):
        return None
    host, guest = metric.samples(Place.TWIN if detail.on_array else Place.HOST), metric.samples(Place.GUEST)
    if not host or samples.count(len(host)) != look.rounds:
        return None
    # The host is worse than the guest by more than the margin: the same test as that of a budget, with places changed.
    p_value = exceeds_p_value(guest, host, Limit(MARGIN), higher_is_better=metric.better == "higher", samples=samples)
    return None if p_value is None else look.adjusted(p_value)


def mark_better(records: Iterable[CellRecord], *, error_rate: float = ERROR_RATE) -> tuple[CellRecord, ...]:
    """The records with `better`, and a note where it is true. All cells with a guest are one family (Holm)."""
    records = tuple(records)
    guests = [record for record in records if record.mode_detail.attach is not None]
    rejected = holm([record.better_p for record in guests], error_rate)
    shown = {record.id: better for record, better in zip(guests, rejected, strict=True)}
    return tuple(_mark_better(record, shown.get(record.id)) for record in records)


def _mark_better(record: CellRecord, better: bool | None) -> CellRecord:
    notes = (*record.notes, _note_better(record)) if better else record.notes
    return replace(record, better=better, notes=notes)


def _note_better(record: CellRecord) -> str:
    """A guest that is better than its host needs an explanation and is never a gain."""
    failed = [check.check for check in record.validity if not check.ok]
    why = explain_faster(record)
    if failed:
        why = f"the failed check {', '.join(failed)} explains it"
    return f"the guest is better than its host by more than {MARGIN * 100:g} % in {record.job.headline}; {why}"


def make_judged_record(cells: Iterable[CellRecord], lab_kind: str | None, *, planned: int) -> JudgedRecord:
    """Whether anything was judged, and if not, why. `lab_kind` is the kind of lab; None if it is not known.

    `planned` is the number of cells with a guest, also of those without a record, which were not measured. A cell of
    the mode `host` has no verdict, because it is the baseline.
    """
    guests = [cell for cell in cells if cell.mode_detail.attach is not None]
    unmeasured = (Outcome.SKIPPED, Outcome.NOT_MEASURED)
    outcomes = Counter(SKIPPED if cell.outcome in unmeasured else str(cell.verdict) for cell in guests)
    outcomes[SKIPPED] += max(planned - len(guests), 0)
    decided = any(
        budget.verdict in (Verdict.WITHIN, Verdict.EXCEEDS)
        for cell in guests
        if cell.skipped is None and cell.verdict is not Verdict.VOID
        for budget in cell.budget
    )
    return JudgedRecord(
        decided=decided,
        within=outcomes[Verdict.WITHIN],
        exceeds=outcomes[Verdict.EXCEEDS],
        inconclusive=outcomes[Verdict.INCONCLUSIVE],
        unjudged=outcomes[Verdict.UNJUDGED],
        void=outcomes[Verdict.VOID],
        skipped=outcomes[SKIPPED],
        why=None if decided else _explain_nothing(outcomes, lab_kind),
    )


def _explain_nothing(outcomes: Mapping[str, int], lab_kind: str | None) -> str:
    if not any(outcomes.values()):
        return "No cell with a guest was measured, so there is nothing to judge. Select cells of modes with a guest."
    lab = f'lab = ["{lab_kind}"]' if lab_kind is not None else "the kind of this lab in `lab`"
    words = {
        Verdict.INCONCLUSIVE: ("inconclusive", "measure longer (--time)"),
        Verdict.UNJUDGED: (
            f"without a budget{f' for {lab_kind} labs' if lab_kind else ''}",
            f"add a [[budget]] with {lab} to the scenario",
        ),
        Verdict.VOID: ("void", "see why under each cell"),
        SKIPPED: ("not measured", "see why under each cell"),
    }
    outcomes_left = [(outcomes[kind], *text) for kind, text in words.items() if outcomes[kind]]
    cells = sum(number for number, *_ in outcomes_left)
    counts = ", ".join(f"{number} {what}" for number, what, _ in outcomes_left)
    remedies = "; ".join(dict.fromkeys(remedy for *_, remedy in outcomes_left))
    of = f"{cells} cell{'s' * (cells != 1)} with a guest"
    return f"No budget was decided. Of {of}: {counts}. To get a verdict: {remedies}."


def _judge_budget(rule: Budget, metric: MetricRecord | None, look: Look | None, samples: Samples) -> BudgetRecord:
    record = BudgetRecord(
        rule.metric, rule.share, rule.absolute, rule.both, Verdict.INCONCLUSIVE, None, difference=rule.difference
    )
    baseline, guest = (record.baseline(metric), metric.samples(Place.GUEST)) if metric is not None else ((), ())
    if look is None or not guest or not baseline:
        return record
    better, resolution = METRICS[rule.metric].higher_is_better, METRICS[rule.metric].resolution
    at_resolution = replace(samples, resolution=resolution)
    judgement = judge_look(baseline, guest, rule.limit, look, higher_is_better=better, samples=at_resolution)
    return replace(record, verdict=judgement.verdict, p_value=judgement.p_value)


def _correct_record(record: CellRecord, verdicts: Sequence[Verdict]) -> CellRecord:
    budgets = tuple(replace(budget, verdict=verdict) for budget, verdict in zip(record.budget, verdicts, strict=True))
    verdict = record.verdict if record.verdict in (Verdict.VOID, Verdict.UNJUDGED) else find_gravest(budgets)
    return replace(record, budget=budgets, verdict=verdict)
