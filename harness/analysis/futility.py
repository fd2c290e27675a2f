"""Whether the rest of the time can still decide a budget: predictive power."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from harness.analysis.estimate import Estimate, differences, log_ratios
from harness.analysis.samples import IN_ORDER, Samples, Spread
from harness.analysis.sequential import Look
from harness.analysis.student import t_quantile
from harness.analysis.verdict import Limit

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
    for spread, limit in _tested(host, guest, budget, higher_is_better, samples):
        if not spread.has_interval:
            return 1.0
        total += _power(spread, limit, now=now, last=last, confidence=confidence, cells=cells)
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
    quantiles = [t_quantile((1 + each.confidence) / 2, each.rounds - 1) for each in (look, last)]
    expected = estimate.half_width * math.sqrt(now / last.rounds) * quantiles[1] / quantiles[0]
    allowed = ((target / expected) ** 2 * (last.rounds - 1) - (now - 1)) / more
    return float(fdtr(more, now - 1, allowed)) if allowed > 0 else 0.0


def _tested(
    host: Sequence[float], guest: Sequence[float], budget: Limit, higher_is_better: bool, samples: Samples
) -> Iterator[tuple[Spread, float]]:
    """What is compared with each limit: a mean that grows with the overhead."""
    if budget.share is not None:
        ratios = log_ratios(host, guest)
        if not higher_is_better:
            yield samples.spread(ratios), math.log1p(budget.share)
        elif budget.share < 1:
            yield samples.spread([-ratio for ratio in ratios]), -math.log1p(-budget.share)
        else:
            yield samples.spread([-ratio for ratio in ratios]), math.inf
    if budget.absolute is not None:
        yield samples.spread(differences(host, guest)), budget.absolute


def _power(spread: Spread, limit: float, *, now: int, last: Look, confidence: float, cells: int) -> float:
    above = spread.mean - limit
    changes = math.sqrt(1 - now / last.rounds)

    def half_width(level: float) -> float:
        """Of all samples, at the observed spread: more of them, and more degrees of freedom."""
        tail = (1 + level) / 2
        more = t_quantile(tail, spread.freedom + last.rounds - now) / t_quantile(tail, spread.freedom)
        return spread.half_width(level) * more * math.sqrt(now / last.rounds)

    # `exceeds` at the level at which it passes the correction for all cells.
    margins = (above - half_width(1 - (1 - confidence) / cells), -above - half_width(confidence))
    if changes == 0 or max(spread.errors) == 0:
        return 1.0 if max(margins) >= 0 else 0.0
    return math.fsum(spread.p_above(-margin / changes) for margin in margins)
