"""The smallest overhead that samples can show, and how many samples a decision needs, from their scatter."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from statistics import fmean

from harness.analysis.correlation import inflation
from harness.analysis.exponential import finite_expm1
from harness.analysis.student import noncentrality, t_quantile

MOST_SAMPLES = 200
"""More blocks or boots than this are not practical."""


def samples_to_show(distance: float, sd: float, confidence: float = 0.95) -> int | None:
    """How many samples give an interval that does not reach `distance` from its mean; None above `MOST_SAMPLES`.

    `sd` is the standard deviation of the samples, in the unit of `distance`. This is an expectation and not a promise:
    it takes the scatter so far as the true one, and samples as independent.
    """

    def shows(n: int) -> bool:
        return t_quantile((1 + confidence) / 2, n - 1) * sd / math.sqrt(n) < abs(distance)

    numbers = range(2, MOST_SAMPLES + 1)
    place = bisect_left(numbers, True, key=shows)
    return numbers[place] if place < len(numbers) else None


def pooled_sd(groups: Iterable[Iterable[float]]) -> float:
    """The pooled standard deviation of log ratios within groups: each group has its own mean, all share the spread.

    `groups` are the log ratios of each group's samples; in an A/A calibration, those of a device against itself. The
    result is the root of the summed squares over the summed degrees of freedom. ValueError if no group has two rounds.
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
    sd_log_ratio: float,
    n: int,
    *,
    confidence: float = 0.95,
    power: float = 0.8,
    higher_is_better: bool = True,
    boots: int = 1,
    sd_of_boots: float = 0.0,
    correlation: float = 0.0,
) -> float:
    """The smallest overhead, as a share of the host, that `n` samples in each of `boots` show with probability `power`.

    `sd_log_ratio` is the standard deviation of log(guest/host) between the samples of a boot, see `pooled_sd`;
    `sd_of_boots` that of the true means of boots, see `boot_variance`. With several boots, the samples are their means.
    With one, the result is about this boot, and `sd_of_boots` does not matter. `correlation` is that of neighbouring
    samples. Samples show an overhead if the interval of `confidence` lies above 0, that is, if Student's t is beyond
    its critical value. Under a true overhead, t has the noncentral t distribution (Owen 1968). An overhead is
    1 - guest/host if higher is better, else guest/host - 1. ValueError unless n >= 2 or boots >= 2, n >= 1, sd >= 0,
    -1 < correlation < 1, 0 < confidence < 1 and (1 - confidence) / 2 < power < 1.
    """
    if n < 1 or boots < 1 or (n < 2 and boots < 2):
        raise ValueError(f"one sample has no interval: use two samples or more, not {n} in {boots} boots")
    for sd in (sd_log_ratio, sd_of_boots):
        if not 0 <= sd < math.inf:
            raise ValueError(f"a standard deviation must be a finite number of at least 0, not {sd}")
    if not -1 < correlation < 1:
        raise ValueError(f"a correlation must be between -1 and 1, not {correlation}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a share between 0 and 1, for example 0.95, not {confidence}")
    if not (1 - confidence) / 2 < power < 1:
        raise ValueError(
            f"power must be a share above {(1 - confidence) / 2:g} and below 1, for example 0.8, not {power}"
        )
    variance = sd_log_ratio**2 * inflation(correlation, n) / n
    freedom = n - 1
    if boots > 1:
        variance, freedom = (variance + sd_of_boots**2) / boots, boots - 1
    critical = t_quantile((1 + confidence) / 2, freedom)
    change = noncentrality(critical, freedom, power) * math.sqrt(variance)
    return -finite_expm1(-change) if higher_is_better else finite_expm1(change)
