"""A cell's judgement at a look: its estimates, its verdict, and its p value for the run's correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.estimate import Estimate, estimate_added, estimate_overhead
from harness.analysis.exceedance import exceeds_p_value
from harness.analysis.sequential import Look
from harness.analysis.verdict import Limit, Verdict, judge


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of one cell's rounds at one look."""

    overhead: Estimate
    """Share of the host, with the look's interval."""
    added: Estimate | None
    """What the guest adds, in the metric's unit, with the look's interval; None if higher is better."""
    verdict: Verdict
    """The verdict of this cell alone. `survivors` gives the verdict of a cell among many."""
    p_value: float | None
    """The p value of "the budget is exceeded", over all looks; None without a budget or with one round."""


def judge_look(
    host: Sequence[float], guest: Sequence[float], budget: Limit, look: Look, *, higher_is_better: bool
) -> Judgement:
    """The estimates of one cell's paired rounds at `look`'s confidence, their verdict and adjusted p value.

    The verdict is `exceeds` if and only if the p value is at most `look.error_rate`. ValueError as for
    `estimate_overhead` and `exceeds_p_value`, and if the number of rounds differs from the look's.
    """
    if len(host) != look.rounds:
        raise ValueError(f"this look needs {look.rounds} rounds, not {len(host)}")

    def estimates(confidence: float) -> tuple[Estimate, Estimate | None]:
        overhead = estimate_overhead(host, guest, higher_is_better=higher_is_better, confidence=confidence)
        return overhead, None if higher_is_better else estimate_added(host, guest, confidence=confidence)

    overhead, added = estimates(look.confidence)
    judged, judged_added = estimates(budget.interval_confidence(look.confidence))
    p_value = exceeds_p_value(host, guest, budget, higher_is_better=higher_is_better)
    return Judgement(
        overhead,
        added,
        judge(judged, budget, judged_added),
        None if p_value is None else look.adjusted(p_value),
    )
