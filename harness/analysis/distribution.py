"""Latency histograms with few bins, for storing and drawing a whole distribution. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from harness.analysis.histogram import FEWEST_BEYOND

MOST_BINS = 80
"""A stored histogram has at most so many bins with I/Os."""

_FINEST = 64  # fio's own bins within a factor of two
_NS = 1e9


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """Completions by latency, in bins like those of fio and HdrHistogram: each factor of two has equal bins."""

    per_octave: int
    """The number of bins from one power of two (in ns) to the next: a power of two, 64 as in fio or fewer."""
    bins: dict[int, int]
    """Completions by the lower end of the bin in nanoseconds; without empty bins."""

    @property
    def ios(self) -> int:
        """How many completions it has."""
        return sum(self.bins.values())


def few_bins(histogram: Mapping[int, int], most: int = MOST_BINS) -> LatencyHistogram:
    """The histogram (completions by latency in ns) with the narrowest bins of which at most `most` have I/Os.

    A narrow distribution keeps fio's own bins, 1.6 % wide or less. ValueError for `most` below 1.
    """
    if most < 1:
        raise ValueError(f"a histogram needs at least one bin, not {most}")
    per_octave = _FINEST
    found = _rebinned(histogram, per_octave)
    while len(found) > most and per_octave > 1:
        per_octave //= 2
        found = _rebinned(found, per_octave)
    return LatencyHistogram(per_octave, dict(sorted(found.items())))


def wider_bins(histogram: LatencyHistogram, per_octave: int) -> LatencyHistogram:
    """The same completions with at most `per_octave` bins in each factor of two, a power of two."""
    if histogram.per_octave <= per_octave:
        return histogram
    return LatencyHistogram(per_octave, dict(sorted(_rebinned(histogram.bins, per_octave).items())))


def upper_end(low: int, per_octave: int) -> int:
    """Where the bin ends that begins at `low`, in ns."""
    return low + _width(low, per_octave)


def quantiles(histogram: LatencyHistogram, shares: Iterable[float]) -> list[float | None]:
    """The latencies in seconds that these shares of the completions did not exceed, 0 to below 1.

    Completions are spread evenly within a bin, so a value is at most one bin's width off. None where fewer than 10
    completions lie beyond, as for `percentile`.
    """
    lows = sorted(histogram.bins)
    reached = [0, *accumulate(histogram.bins[low] for low in lows)]
    found: list[float | None] = []
    at = 0
    for share, place in sorted((share, place) for place, share in enumerate(shares)):
        rank = share * reached[-1]
        found += [None] * (place + 1 - len(found))
        if reached[-1] - rank < FEWEST_BEYOND - 1e-6:
            continue
        while at < len(lows) - 1 and reached[at + 1] < rank:
            at += 1
        inside = (rank - reached[at]) / histogram.bins[lows[at]]
        found[place] = (lows[at] + inside * _width(lows[at], histogram.per_octave)) / _NS
    return found


def _rebinned(bins: Mapping[int, int], per_octave: int) -> Counter[int]:
    found: Counter[int] = Counter()
    for latency, number in bins.items():
        if number:
            found[latency - latency % _width(latency, per_octave)] += number
    return found


def _width(latency: int, per_octave: int) -> int:
    """The width of the bin with this latency; at least 1 ns."""
    return max((1 << max(latency.bit_length() - 1, 0)) >> int(math.log2(per_octave)), 1)
