"""When a cell has enough samples, and why."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from harness.analysis.estimate import Estimate
from harness.analysis.futility import FUTILE, power_to_decide, power_to_narrow
from harness.analysis.judgement import Judgement, judge_look
from harness.analysis.samples import IN_ORDER, Caveat, Samples
from harness.analysis.sequential import Look, Sequential
from harness.analysis.verdict import Limit, Verdict

_UNRELIABLE = (Caveat.NOT_ESTIMATED, Caveat.ROUGH)
"""Intervals that may cover less than 92 % if neighbours are correlated."""


class Reason(StrEnum):
    """Why a cell needs no further sample."""

    BUDGET = "budget decided"
    NARROW = "narrow enough"
    FUTILE = "cannot be decided in the time left"
    FEW_IOS = "too few I/Os for a percentile"
    """The rounds or the time left do not give it two samples, without which it has no interval."""
    MOST = "most rounds"
    TIME = "time spent"
    BYTES = "promised bytes written"
    WRITES = "limit of the bytes written"
    CARRY_OVER = "longer slices are necessary"


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
    samples: Samples = IN_ORDER,
    reachable: int | None = None,
) -> Reason | None:
    """Why one cell's paired samples are enough. None means that another follows; it is also None between looks.

    `target` is the half width of the overhead's interval that is narrow enough, as a share (0.05 is +-5 percentage
    points); with None, no width is. `cells` is the number of judgements that the run's correction covers; this is more
    than the cells if some have several budgets. `exceeds` decides only if it would stand although no other cell shows
    anything (Bonferroni), so the correction cannot revoke it. `within` decides by its interval. `time_spent` means that
    no sample will follow, whatever was measured. `samples` as for `estimate_overhead`. If they are too few to estimate
    their correlation well, their interval cannot be relied on, and nothing is decided while more can follow.
    `reachable` is how many samples (boots, if the plan counts boots) there can be when the time is spent; None if the
    time is not limited. If they decide the budget with a probability below 5 % (`power_to_decide`), and do not reach
    the target either, it is futile to go on. ValueError as for `judge_look` and `Sequential.look`, and for `cells`
    below 1.
    """
    if cells < 1:
        raise ValueError(f"a run judges at least one cell, not {cells}")
    count = samples.count(len(host))
    plan = plan.reaching(count)
    look = plan.look(count, final=time_spent)
    if look is None:
        return None
    judgement = judge_look(host, guest, budget, look, higher_is_better=higher_is_better, samples=samples)
    last_look = look.rounds == plan.most or time_spent
    if judgement.overhead.caveat not in _UNRELIABLE or last_look:
        if _settled(judgement, look, cells):
            return Reason.BUDGET
        if target is not None and _is_narrow(judgement.overhead, target):
            return Reason.NARROW
    if last_look:
        return Reason.MOST if look.rounds == plan.most else Reason.TIME
    last = None if reachable is None else plan.look(min(max(reachable, look.rounds), plan.most), final=True)
    if last is None or last.rounds == look.rounds or not budget.is_set:
        return None
    chance = power_to_decide(host, guest, budget, last, higher_is_better=higher_is_better, cells=cells, samples=samples)
    if target is not None:
        chance = max(chance, power_to_narrow(judgement.overhead, target, look, last))
    return Reason.FUTILE if chance < FUTILE else None


def _settled(judgement: Judgement, look: Look, cells: int) -> bool:
    if judgement.verdict is Verdict.EXCEEDS:
        return judgement.p_value is not None and judgement.p_value * cells <= look.error_rate
    return judgement.verdict is Verdict.WITHIN


def _is_narrow(estimate: Estimate, target: float) -> bool:
    return estimate.half_width is not None and estimate.half_width <= target
