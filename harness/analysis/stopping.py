"""When a cell has enough samples, and how many it needs: power, futility, and the reasons to stop."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from enum import StrEnum

from harness.analysis.estimate import Estimate, log_ratios, spread_added
from harness.analysis.samples import IN_ORDER, Samples, Spread, t_quantile
from harness.analysis.verdict import Judgement, Limit, Look, Sequential, Verdict, judge_look

FUTILE = 0.05
"""Below this probability, a cell gets no further samples."""


def power_to_decide(
    host: Sequence[float],
    guest: Sequence[float],
    budget: Limit,
    last: Look,
    *,
    higher_is_better: bool,
    cells: int = 1,
    samples: Samples = IN_ORDER,
) -> float:
    """The probability that the look `last`, with more samples than now, decides the budget on either side.

    This is the predictive power (Spiegelhalter, Freedman & Blackburn 1986), the mean of the conditional power of
    stochastic curtailment (Lan, Simon & Halperin 1982) over what the samples so far say about the true mean: the mean
    of all N samples differs from that of the first n by Student's t times the error now times sqrt(1 - n / N). The
    spread is the observed one. `exceeds` must pass the correction for `cells` judgements. For two limits, it is the sum
    of theirs, at most 1: never too small. 1 while there is no interval, because nothing can be predicted. Stopping for
    futility leaves the budget inconclusive, so no false verdict becomes more frequent. ValueError as for `judge_look`,
    without a budget, and if `last` has fewer samples than there are.
    """
    now = samples.count(len(host))
    if not budget.is_set:
        raise ValueError("the power to decide needs a budget")
    if last.rounds < now:
        raise ValueError(f"the last look must have at least the {now} samples of now, not {last.rounds}")
    confidence, total = budget.interval_confidence(last.confidence), 0.0
    for spread, limit in _list_tested(host, guest, budget, higher_is_better, samples):
        if not spread.has_interval:
            return 1.0
        total += _compute_power(spread, limit, now=now, last=last, confidence=confidence, cells=cells)
    return min(1.0, total)


def power_to_narrow(estimate: Estimate, target: float, look: Look, last: Look) -> float:
    """The probability that the interval of the look `last` has a half width of at most `target`.

    `estimate` has the interval of `look`, in the unit of `target`. The samples to come have a variance that relates to
    the one so far as the F distribution says. 1 without an interval. ValueError unless `last` has more samples.
    """
    from scipy.special import fdtr  # noqa: PLC0415

    now, more = look.rounds, last.rounds - look.rounds
    if more < 1:
        raise ValueError(f"the last look must have more than the {now} samples of now, not {last.rounds}")
    if estimate.half_width is None or estimate.half_width <= 0 or now < 2:
        return 1.0
    quantiles = [t_quantile((1 + at_look.confidence) / 2, at_look.rounds - 1) for at_look in (look, last)]
    expected = estimate.half_width * math.sqrt(now / last.rounds) * quantiles[1] / quantiles[0]
    allowed = ((target / expected) ** 2 * (last.rounds - 1) - (now - 1)) / more
    return float(fdtr(more, now - 1, allowed)) if allowed > 0 else 0.0


def _list_tested(
    host: Sequence[float], guest: Sequence[float], budget: Limit, higher_is_better: bool, samples: Samples
) -> Iterator[tuple[Spread, float]]:
    """What is compared with each limit: a mean that grows with the overhead."""
    if budget.share is not None:
        ratios = log_ratios(host, guest)
        if not higher_is_better:
            yield samples.spread(ratios), math.log1p(budget.share)
        else:
            most = -math.log1p(-budget.share) if budget.share < 1 else math.inf
            yield samples.spread([-ratio for ratio in ratios]), most
    if budget.absolute is not None:
        yield spread_added(host, guest, samples), budget.absolute


def _compute_power(spread: Spread, limit: float, *, now: int, last: Look, confidence: float, cells: int) -> float:
    above = spread.mean - limit
    changes = math.sqrt(1 - now / last.rounds)

    def half_width(level: float) -> float:
        """Of all samples, at the observed spread: more of them, and more degrees of freedom."""
        tail = (1 + level) / 2
        more = t_quantile(tail, spread.freedom + last.rounds - now) / t_quantile(tail, spread.freedom)
        error = spread.half_width(level) - spread.resolution
        return error * more * math.sqrt(now / last.rounds) + spread.resolution

    # `exceeds` at the level at which it passes the correction for all cells.
    margins = (above - half_width(1 - (1 - confidence) / cells), -above - half_width(confidence))
    if changes == 0 or spread.error == 0:
        return 1.0 if max(margins) >= 0 else 0.0
    return math.fsum(spread.survival(-margin / changes) for margin in margins)


MOST_SAMPLES = 200
"""More blocks or boots than this are not practical."""


def count_samples_to_show(distance: float, sd: float, confidence: float = 0.95) -> int | None:
    """How many samples give an interval that does not reach `distance` from its mean; None above `MOST_SAMPLES`.

    `sd` is the standard deviation of the samples, in the unit of `distance`. This is an expectation and not a promise:
    it takes the scatter so far as the true one, and samples as independent.
    """

    def shows(n: int) -> bool:
        return t_quantile((1 + confidence) / 2, n - 1) * sd / math.sqrt(n) < abs(distance)

    numbers = range(2, MOST_SAMPLES + 1)
    place = bisect_left(numbers, True, key=shows)
    return numbers[place] if place < len(numbers) else None


class Reason(StrEnum):
    """Why a cell needs no further sample."""

    BUDGET = "budget decided"
    NARROW = "narrow enough"
    FUTILE = "cannot be decided in the time left"
    FEW_IOS = "too few I/Os for a percentile"
    """The rounds or the time left do not give it enough, so it has no interval."""
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
    no sample will follow, whatever was measured. `samples` as for `estimate_overhead`. `reachable` is how many samples
    (boots, if the plan counts boots) there can be when the time is spent; None if the time is not limited. If they
    decide the budget with a probability below 5 % (`power_to_decide`), and do not reach
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
    if _is_settled(judgement, look, cells):
        return Reason.BUDGET
    half_width = judgement.overhead.half_width
    if target is not None and half_width is not None and half_width <= target:
        return Reason.NARROW
    if look.rounds == plan.most or time_spent:
        return Reason.MOST if look.rounds == plan.most else Reason.TIME
    last = None if reachable is None else plan.look(min(max(reachable, look.rounds), plan.most), final=True)
    if last is None or last.rounds == look.rounds or not budget.is_set:
        return None
    chance = power_to_decide(host, guest, budget, last, higher_is_better=higher_is_better, cells=cells, samples=samples)
    if target is not None:
        chance = max(chance, power_to_narrow(judgement.overhead, target, look, last))
    return Reason.FUTILE if chance < FUTILE else None


def _is_settled(judgement: Judgement, look: Look, cells: int) -> bool:
    if judgement.verdict is Verdict.EXCEEDS:
        return judgement.p_value is not None and judgement.p_value * cells <= look.error_rate
    return judgement.verdict is Verdict.WITHIN
