"""The smallest overhead that so many rounds can show, given how much rounds scatter."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean

from harness.analysis.exponential import finite_expm1
from harness.analysis.student import noncentrality, t_quantile


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
    under a true overhead is the noncentral t (Owen 1968). An overhead is 1 - guest/host where higher is better, else
    guest/host - 1. ValueError unless n >= 2, sd >= 0, 0 < confidence < 1 and
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
    change = noncentrality(critical, n - 1, power) * sd_log_ratio / math.sqrt(n)
    return -finite_expm1(-change) if higher_is_better else finite_expm1(change)
