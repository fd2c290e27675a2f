"""When a cell has seen enough rounds, and why."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from harness.analysis.estimate import Estimate
from harness.analysis.judgement import Judgement, judge_look
from harness.analysis.sequential import Look, Sequential
from harness.analysis.verdict import Limit, Verdict


class Reason(StrEnum):
    """Why a cell needs no further round."""

    BUDGET = "budget decided"
    NARROW = "narrow enough"
    MOST = "most rounds"
    TIME = "time spent"


def decided(
    host: Sequence[float],
    guest: Sequence[float],
    plan: Sequential,
    *,
    higher_is_better: bool,
    budget: Limit,
    target: float | None,
    cells: int,
    time_spent: bool = False,
) -> Reason | None:
    """Why one cell's paired rounds are enough, or None: go on, which is also the answer between two looks.

    `target` is the half width of the overhead's interval that is narrow enough, as a share (0.05 is +-5 percentage
    points); None is never. `cells` is how many judgements the run's correction is over, more than the cells where some
    have several budgets: `exceeds` decides only where it would stand if all others had nothing to show (Bonferroni),
    so that the correction cannot take it back. `within` decides by its interval. `time_spent` says that no round will
    follow, whatever was measured. ValueError as for `judge_look` and `Sequential.look`, and for `cells` below 1.
    """
    if cells < 1:
        raise ValueError(f"a run judges at least the cell at hand, not {cells} cells")
    look = plan.look(len(host), final=time_spent)
    if look is None:
        return None
    judgement = judge_look(host, guest, budget, look, higher_is_better=higher_is_better)
    if _settled(judgement, look, cells):
        return Reason.BUDGET
    if target is not None and _is_narrow(judgement.overhead, target):
        return Reason.NARROW
    if look.rounds == plan.most:
        return Reason.MOST
    return Reason.TIME if time_spent else None


def _settled(judgement: Judgement, look: Look, cells: int) -> bool:
    if judgement.verdict is Verdict.EXCEEDS:
        return judgement.p_value is not None and judgement.p_value * cells <= look.error_rate
    return judgement.verdict is Verdict.WITHIN


def _is_narrow(estimate: Estimate, target: float) -> bool:
    return estimate.half_width is not None and estimate.half_width <= target
