"""One-sided p values of "the budget is exceeded", from paired rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

from harness.analysis.estimate import differences, log_ratios
from harness.analysis.student import t_survival
from harness.analysis.verdict import Limit, is_above


def exceeds_p_value(
    host: Iterable[float], guest: Iterable[float], budget: Limit, *, higher_is_better: bool
) -> float | None:
    """The p value of "the budget is exceeded": how often a guest that just keeps the budget gives rounds like these.

    `host[i]` and `guest[i]` are one round's pair. None without a budget, and for one round. Student's paired t test,
    one-sided: for a share, on log(guest/host) against the log of the allowed ratio; for an absolute amount, on
    guest - host against the amount. A `looser` budget is exceeded if both limits are exceeded, so the larger p counts
    (intersection-union test, Berger 1982). A `stricter` budget is exceeded if either limit is, so twice the smaller p
    counts (Bonferroni). Rounds without any spread give 0 above the limit and 1 at or below it.

    It agrees with `judge`: p <= (1 - c) / 2 if and only if `judge` gives `exceeds` for intervals at
    `budget.interval_confidence(c)`. ValueError as for `estimate_overhead`, and for an absolute amount if higher is
    better: a loss of IOPS is judged as a share.
    """
    if budget.absolute is not None and higher_is_better:
        raise ValueError("an absolute budget needs a metric for which lower is better, such as a latency")
    hosts, guests = list(host), list(guest)
    p_values = []
    if budget.share is not None:
        p_values.append(_share_p_value(log_ratios(hosts, guests), budget.share, higher_is_better))
    if budget.absolute is not None:
        p_values.append(_p_value(differences(hosts, guests), budget.absolute))
    if not p_values or len(hosts) == 1:
        return None
    if budget.both == "stricter":
        return min(1.0, 2 * min(p_values))
    return max(p_values)


def _share_p_value(ratios: Sequence[float], share: float, higher_is_better: bool) -> float:
    if not higher_is_better:
        return _p_value(ratios, math.log1p(share))
    if share >= 1:
        # A guest cannot lose more than everything.
        return 1.0
    return _p_value([-ratio for ratio in ratios], -math.log1p(-share))


def _p_value(samples: Sequence[float], limit: float) -> float:
    """Student's one-sided t test of a mean above the limit; 1 for a single sample, which shows nothing."""
    n = len(samples)
    if n == 1:
        return 1.0
    mean, error = fmean(samples), stdev(samples) / math.sqrt(n)
    above = is_above(mean, limit)
    if error == 0:
        return 0.0 if above else 1.0
    t = (mean - limit) / error
    return t_survival(t if above else min(t, 0.0), n - 1)
