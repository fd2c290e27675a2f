"""One-sided p values of "the budget is exceeded", from paired samples."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from harness.analysis.estimate import differences, log_ratios
from harness.analysis.samples import IN_ORDER, Samples, Spread
from harness.analysis.verdict import Limit, is_above


def exceeds_p_value(
    host: Iterable[float],
    guest: Iterable[float],
    budget: Limit,
    *,
    higher_is_better: bool,
    samples: Samples = IN_ORDER,
) -> float | None:
    """The p value of "the budget is exceeded": how often a guest that just keeps the budget gives samples like these.

    `host[i]` and `guest[i]` are one block's pair; `samples` as for `estimate_overhead`. None without a budget, and
    where there is no interval: for one sample, for example. Student's paired t test, one-sided: for a share, on
    log(guest/host) against the log of the allowed ratio; for an absolute amount, on guest - host against the amount. A
    `looser` budget is exceeded if both limits are exceeded, so the larger p counts (intersection-union test, Berger
    1982). A `stricter` budget is exceeded if either limit is, so twice the smaller p counts (Bonferroni). Samples
    without any spread give 0 above the limit and 1 at or below it.

    It agrees with `judge`: p <= (1 - c) / 2 if and only if `judge` gives `exceeds` for intervals at
    `budget.interval_confidence(c)`. ValueError as for `estimate_overhead`, and for an absolute amount if higher is
    better: a loss of IOPS is judged as a share.
    """
    if budget.absolute is not None and higher_is_better:
        raise ValueError("an absolute budget needs a metric for which lower is better, such as a latency")
    hosts, guests = list(host), list(guest)
    spreads, p_values = [], []
    if budget.share is not None:
        spreads.append(samples.spread(log_ratios(hosts, guests)))
        p_values.append(_share_p_value(spreads[-1], budget.share, higher_is_better))
    if budget.absolute is not None:
        spreads.append(samples.spread(differences(hosts, guests)))
        p_values.append(_p_value(spreads[-1], budget.absolute))
    if not any(spread.has_interval for spread in spreads):
        return None
    if budget.both == "stricter":
        return min(1.0, 2 * min(p_values))
    return max(p_values)


def _share_p_value(spread: Spread, share: float, higher_is_better: bool) -> float:
    if not higher_is_better:
        return _p_value(spread, math.log1p(share))
    if share >= 1:
        # A guest cannot lose more than everything.
        return 1.0
    return _p_value(replace(spread, mean=-spread.mean), -math.log1p(-share))


def _p_value(spread: Spread, limit: float) -> float:
    """The one-sided test of a mean above the limit, with the error that the interval has."""
    above = is_above(spread.mean, limit)
    distance = spread.mean - limit
    return spread.p_above(distance if above else min(distance, 0.0))
