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
    """What one cell's rounds say at one look."""

    overhead: Estimate
    """Share of the host, with the look's interval."""
    added: Estimate | None
    """What the guest adds, in the metric's unit, with the look's interval; None where higher is better."""
    verdict: Verdict
    """Of this cell alone: see `survivors` for the verdict of a cell among many."""
    p_value: float | None
    """Of "the budget is exceeded", over all looks; None without a budget or with one round."""


def judge_look(
    host: Sequence[float], guest: Sequence[float], budget: Limit, look: Look, *, higher_is_better: bool
) -> Judgement:
    """The estimates of one cell's paired rounds at `look`'s confidence, their verdict and adjusted p value.

    `exceeds` and a p value of at most `look.error_rate` are the same thing. ValueError as for `estimate_overhead` and
    `exceeds_p_value`, and where the rounds are not as many as the look's.
    """
    if len(host) != look.rounds:
        raise ValueError(f"this look is at {look.rounds} rounds, not {len(host)}")

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
