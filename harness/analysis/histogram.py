"""Percentiles from fio's histograms of completion latency."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist

FEWEST_BEYOND = 10
"""A percentile is left out if fewer I/Os than this lie beyond it: p(q) needs 10 / (1 - q)."""
FEWEST_FOR_INTERVAL = 1000
"""The normal approximation of the binomial distribution needs at least this many I/Os."""

_NS = 1e9
# 0.55 * 100 is a little more than 55 and would be rounded up to the 56th I/O.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class PercentileInterval:
    """A percentile in seconds, and its interval from the sampling of I/Os alone.

    This is NOT an interval between rounds, and not an `Estimate`. It says how precisely the completed I/Os determine
    the percentile of the measured time. It says nothing about the next round.
    """

    point: float
    low: float
    high: float
    ios: int


def fewest_ios(q: float) -> int:
    """How many I/Os the percentile `q` needs: 10 / (1 - q). ValueError unless 0 < q < 1."""
    if not 0 < q < 1:
        raise ValueError(f"a percentile must be a share between 0 and 1, for example 0.99, not {q}")
    return math.ceil(FEWEST_BEYOND / (1 - q) * (1 - _ROUNDING))


def merged(histograms: Iterable[Mapping[int, int]]) -> Counter[int]:
    """One histogram of all I/Os: completions by latency in ns, summed over rounds, directions or jobs."""
    total: Counter[int] = Counter()
    for histogram in histograms:
        total.update(histogram)
    return total


def percentile(bins: Mapping[int, int], q: float) -> float | None:
    """The latency in seconds that a share `q` of the completions did not exceed; None if fewer than 10 / (1 - q)
    completed.

    `bins` is completions by latency in ns. The value is the bin of the ceil(q n)-th of n completions in order, the
    inverse of the empirical distribution (Hyndman & Fan 1996, definition 1), as in fio. ValueError unless
    0 < q < 1.
    """
    total = _ios(bins, q)
    if total is None:
        return None
    return _order_statistics(bins, [math.ceil(q * total - _ROUNDING)])[0]


def percentile_interval(bins: Mapping[int, int], q: float, *, confidence: float = 0.95) -> PercentileInterval | None:
    """The percentile of a (merged) histogram with the interval that sampling I/Os gives; see `PercentileInterval`.

    Distribution-free, from order statistics: the number of I/Os below the true percentile is binomial (David &
    Nagaraja, Order Statistics, 7.1), here by its normal approximation with continuity correction. I/Os are treated as
    independent. They are not quite independent, so the interval is a little too narrow. None if `percentile` is None,
    for fewer than 1000 I/Os, and if the interval would end beyond the slowest I/O.
    ValueError unless 0 < q < 1 and 0 < confidence < 1.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a share between 0 and 1, for example 0.95, not {confidence}")
    total = _ios(bins, q)
    if total is None or total < FEWEST_FOR_INTERVAL:
        return None
    half = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(total * q * (1 - q))
    middle = total * q + 0.5
    lowest, highest = math.floor(middle - half), math.ceil(middle + half)
    if lowest < 1 or highest > total:
        return None
    low, point, high = _order_statistics(bins, [lowest, math.ceil(q * total - _ROUNDING), highest])
    return PercentileInterval(point, low, high, total)


def _ios(bins: Mapping[int, int], q: float) -> int | None:
    """How many I/Os the histogram has, or None if they are too few for p(q)."""
    total = sum(bins.values())
    return None if total < fewest_ios(q) else total


def _order_statistics(bins: Mapping[int, int], ranks: Iterable[int]) -> list[float]:
    """The latencies in seconds of the I/Os with these ranks; rank 1 is the fastest."""
    latencies = sorted(bins)
    reached = list(accumulate(bins[latency] for latency in latencies))
    return [latencies[bisect_left(reached, rank)] / _NS for rank in ranks]
