"""A cell's judgement at a look: its estimates, its verdict, and its p value for the run's correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.estimate import Estimate, estimate_added, estimate_overhead
from harness.analysis.exceedance import exceeds_p_value
from harness.analysis.samples import IN_ORDER, Samples
from harness.analysis.sequential import Look
from harness.analysis.verdict import Limit, Verdict, judge


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of one cell's samples at one look."""

    overhead: Estimate
    """Share of the host, with the look's interval."""
    added: Estimate | None
    """What the guest adds, in the metric's unit, with the look's interval; None if higher is better."""
    verdict: Verdict
    """The verdict of this cell alone. `survivors` gives the verdict of a cell among many."""
    p_value: float | None
    """The p value of "the budget is exceeded", over all looks; None without a budget or without an interval."""


def judge_look(
    host: Sequence[float],
    guest: Sequence[float],
    budget: Limit,
    look: Look,
    *,
    higher_is_better: bool,
    samples: Samples = IN_ORDER,
) -> Judgement:
    """The estimates of one cell's paired samples at `look`'s confidence, their verdict and adjusted p value.

    The verdict is `exceeds` if and only if the p value is at most `look.error_rate`. `samples` as for
    `estimate_overhead`. ValueError as for `estimate_overhead` and `exceeds_p_value`, and if the number of samples (of
    boots, if the plan counts boots) differs from the look's.
    """
    count = samples.count(len(host))
    if count != look.rounds:
        raise ValueError(f"this look needs {look.rounds} {'boots' if samples.by_boot else 'samples'}, not {count}")

    def estimates(confidence: float) -> tuple[Estimate, Estimate | None]:
        overhead = estimate_overhead(
            host, guest, higher_is_better=higher_is_better, confidence=confidence, samples=samples
        )
        return overhead, None if higher_is_better else estimate_added(
            host, guest, confidence=confidence, samples=samples
        )

    overhead, added = estimates(look.confidence)
    judged, judged_added = estimates(budget.interval_confidence(look.confidence))
    p_value = exceeds_p_value(host, guest, budget, higher_is_better=higher_is_better, samples=samples)
    return Judgement(
        overhead,
        added,
        judge(judged, budget, judged_added),
        None if p_value is None else look.adjusted(p_value),
    )
