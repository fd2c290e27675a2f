"""The smallest overhead that so many rounds can show, given how much rounds scatter."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean

from harness.analysis.exponential import finite_expm1
from harness.analysis.student import t_quantile

_PANELS = 1000
_SPREADS = 8


def pooled_sd(groups: Iterable[Iterable[float]]) -> float:
    """The standard deviation of log ratios within groups, pooled: each group's mean is its own, their spread shared.

    `groups` are the log ratios of each group's rounds, in an A/A calibration those of a device against itself. The
    root of the summed squares over the summed degrees of freedom. ValueError where no group has two rounds.
    """
    squares, freedom = 0.0, 0
    for group in groups:
        ratios = list(group)
        if ratios:
            mean = fmean(ratios)
            squares += math.fsum((ratio - mean) ** 2 for ratio in ratios)
            freedom += len(ratios) - 1
    if freedom == 0:
        raise ValueError("a standard deviation needs a group of at least two rounds")
    return math.sqrt(squares / freedom)


def smallest_detectable(
    sd_log_ratio: float, n: int, *, confidence: float = 0.95, power: float = 0.8, higher_is_better: bool = True
) -> float:
    """The smallest overhead, as a share of the host, that `n` rounds show with probability `power`.

    `sd_log_ratio` is the standard deviation of log(guest/host) between rounds, see `pooled_sd`. To show an overhead is
    to have an interval of `confidence` that lies above 0: Student's t beyond its critical value, whose distribution
    under a true overhead is the noncentral t (Owen 1968). Solved by bisection. An overhead is 1 - guest/host
    where higher is better, else guest/host - 1. ValueError unless n >= 2, sd >= 0, 0 < confidence < 1 and
    confidence's own error (1 - confidence) / 2 < power < 1.
    """
    if n < 2:
        raise ValueError(f"one round has no interval and shows nothing: two or more, not {n}")
    if not 0 <= sd_log_ratio < math.inf:
        raise ValueError(f"a standard deviation is a finite number of at least 0, not {sd_log_ratio}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is a share between 0 and 1, for example 0.95, not {confidence}")
    if not (1 - confidence) / 2 < power < 1:
        raise ValueError(f"power is a share above {(1 - confidence) / 2:g} and below 1, for example 0.8, not {power}")
    critical = t_quantile((1 + confidence) / 2, n - 1)
    change = _noncentrality(critical, n - 1, power) * sd_log_ratio / math.sqrt(n)
    return -finite_expm1(-change) if higher_is_better else finite_expm1(change)


def _noncentrality(critical: float, df: int, power: float) -> float:
    """The noncentrality at which the noncentral t exceeds `critical` with probability `power`."""
    low, high = 0.0, 1.0
    while noncentral_t_survival(critical, df, high) < power:
        low, high = high, high * 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if noncentral_t_survival(critical, df, middle) < power:
            low = middle
        else:
            high = middle
    return high


def noncentral_t_survival(t: float, df: int, noncentrality: float) -> float:
    """P(T' > `t`) of the noncentral t, (Z + noncentrality) / S with Z normal and S = sqrt(chi squared / df).

    Given S = s it is the normal distribution's P(Z > t s - noncentrality); this is integrated over the density of S by
    Simpson's rule, to about six digits. No underflow for large noncentrality, where the usual series has it.
    """
    start = max(0.0, 1 - _SPREADS / math.sqrt(df))
    step = (1 + _SPREADS / math.sqrt(df) - start) / _PANELS
    log_scale = math.log(2) + df / 2 * math.log(df / 2) - math.lgamma(df / 2)

    def integrand(s: float) -> float:
        if s == 0:
            # The density is 0 there but for df = 1, where it is that of |Z|.
            density = math.sqrt(2 / math.pi) if df == 1 else 0.0
        else:
            density = math.exp(log_scale + (df - 1) * math.log(s) - df * s * s / 2)
        return density * math.erfc((t * s - noncentrality) / math.sqrt(2)) / 2

    weights = (1, *(4 if panel % 2 else 2 for panel in range(1, _PANELS)), 1)
    return step / 3 * math.fsum(weight * integrand(start + panel * step) for panel, weight in enumerate(weights))
