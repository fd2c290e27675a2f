"""Histograms of completion latency: percentiles from fio's bins, and whole distributions in few bins. Pure."""

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
    total = _count_ios(bins, q)
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
    total = _count_ios(bins, q)
    if total is None or total < FEWEST_FOR_INTERVAL:
        return None
    half = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(total * q * (1 - q))
    middle = total * q + 0.5
    lowest, highest = math.floor(middle - half), math.ceil(middle + half)
    if lowest < 1 or highest > total:
        return None
    low, point, high = _order_statistics(bins, [lowest, math.ceil(q * total - _ROUNDING), highest])
    return PercentileInterval(point, low, high, total)


def _count_ios(bins: Mapping[int, int], q: float) -> int | None:
    """How many I/Os the histogram has, or None if they are too few for p(q)."""
    total = sum(bins.values())
    return None if total < fewest_ios(q) else total


def _order_statistics(bins: Mapping[int, int], ranks: Iterable[int]) -> list[float]:
    """The latencies in seconds of the I/Os with these ranks; rank 1 is the fastest."""
    latencies = sorted(bins)
    reached = list(accumulate(bins[latency] for latency in latencies))
    return [latencies[bisect_left(reached, rank)] / _NS for rank in ranks]


MOST_BINS = 80
"""A stored histogram has at most so many bins with I/Os."""

FINEST = 64
"""fio's own bins within a factor of two."""


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """Completions by latency, in bins like those of fio and HdrHistogram: each factor of two has equal bins."""

    per_octave: int
    """The number of bins from one power of two (in ns) to the next: a power of two, 64 as in fio or fewer."""
    bins: dict[int, int]
    """Completions by the lower end of the bin in nanoseconds; without empty bins."""

    def __post_init__(self) -> None:
        """ValueError for bins that there cannot be."""
        if self.per_octave not in (1, 2, 4, 8, 16, 32, FINEST):
            raise ValueError(f"{self.per_octave} bins in each factor of two: it must be a power of two up to {FINEST}")
        if any(low < 0 or number < 1 for low, number in self.bins.items()):
            raise ValueError("each bin begins at 0 ns or later, and has at least one I/O")

    @property
    def ios(self) -> int:
        """How many completions it has."""
        return sum(self.bins.values())


def reduce_bins(histogram: Mapping[int, int], most: float = MOST_BINS, per_octave: int = FINEST) -> LatencyHistogram:
    """The histogram (completions by latency in ns) with the narrowest bins of which at most `most` have I/Os.

    A narrow distribution keeps `per_octave` bins, or fio's own: 1.6 % wide or less. ValueError for `most` below 1.
    """
    if most < 1:
        raise ValueError(f"a histogram needs at least one bin, not {most}")
    found = _merge_bins(histogram, per_octave)
    while len(found) > most and per_octave > 1:
        per_octave //= 2
        found = _merge_bins(found, per_octave)
    return LatencyHistogram(per_octave, dict(sorted(found.items())))


def find_bin(latency: int) -> tuple[int, int]:
    """Where fio's bin with this latency begins and ends, in ns."""
    width = _width(latency, FINEST)
    low = latency - latency % width
    return low, low + width


def upper_end(low: int, per_octave: int) -> int:
    """Where the bin ends that begins at `low`, in ns."""
    return low + _width(low, per_octave)


def _merge_bins(bins: Mapping[int, int], per_octave: int) -> Counter[int]:
    merged: Counter[int] = Counter()
    for latency, number in bins.items():
        if number:
            merged[latency - latency % _width(latency, per_octave)] += number
    return merged


def _width(latency: int, per_octave: int) -> int:
    """The width of the bin with this latency; at least 1 ns."""
    return max((1 << max(latency.bit_length() - 1, 0)) >> (per_octave.bit_length() - 1), 1)
