"""Change points of a series: where its distribution changed, by energy distances and permutations (E-divisive)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LEAST = 3
"""The fewest values on each side of a change: two could be chance even if they are far away."""
PERMUTATIONS = 999
ERROR_RATE = 0.001
"""The probability that a series without a change has one. A history has many cells, and each is tested alone."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A place in a series where the values after it differ from those before it, up to the next change point."""

    at: int
    """The index of the first value after the change."""
    before: float
    """The mean since the change point before."""
    after: float
    """The mean up to the next change point."""
    p_value: float
    """The share of random orders of the segment with a clearer change, by permutation."""


def change_points(values: Sequence[float], *, error_rate: float = ERROR_RATE) -> list[ChangePoint]:
    """The change points of the series, in order; empty for fewer than twice `LEAST` values.

    E-divisive (Matteson & James, A nonparametric approach for multiple change point analysis, 2014) with Euclidean
    distances: the split with the largest energy statistic divides a segment if fewer than `error_rate` of the random
    orders of that segment have a larger one, and both parts are examined in turn. So a change must be clearer than what
    this series has shown itself. Values that follow each other are assumed to be independent. The random orders depend
    only on the values, so the result is reproducible. ValueError for values that are not finite.
    """
    import numpy as np  # noqa: PLC0415 - it takes long to load

    series = np.asarray(values, dtype=np.float64)
    if not np.isfinite(series).all():
        raise ValueError("the values of a series must be finite")
    chance = np.random.default_rng(zlib.crc32(series.tobytes()))
    found = dict(_divide(series, 0, len(series), chance, error_rate))
    ends = [0, *sorted(found), len(series)]
    means = [fmean(values[start:end]) for start, end in pairwise(ends) if end > start]
    return [
        ChangePoint(at, before, after, found[at])
        for at, (before, after) in zip(sorted(found), pairwise(means), strict=False)
    ]


def _divide(
    series: npt.NDArray[np.float64], start: int, end: int, chance: np.random.Generator, error_rate: float
) -> Iterator[tuple[int, float]]:
    """The change points within a segment, with their p values."""
    segment = series[start:end]
    n = len(segment)
    if n < 2 * LEAST or (segment == segment[0]).all():
        return
    distances = abs(segment[:, None] - segment[None, :])
    energies = _energies(distances)
    best, at = energies.max(), int(energies.argmax()) + LEAST
    # The result of all permutations is known as soon as so many of them are clearer.
    most = int(error_rate * (PERMUTATIONS + 1)) - 1
    clearer = 0
    for _ in range(PERMUTATIONS):
        order = chance.permutation(n)
        clearer += bool(_energies(distances[order[:, None], order]).max() >= best)
        if clearer > most:
            return
    yield start + at, (clearer + 1) / (PERMUTATIONS + 1)
    yield from _divide(series, start, start + at, chance, error_rate)
    yield from _divide(series, start + at, end, chance, error_rate)


def _energies(distances: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The energy statistic of the split before each value that has `LEAST` values on both sides.

    It is mn / (m + n) times twice the mean distance between the parts minus the mean distances within each.
    """
    import numpy as np  # noqa: PLC0415

    total = len(distances)
    # Sums of the distances to earlier values. All sums within the first or the last values follow from them.
    to_earlier = np.tril(distances).sum(axis=1)
    whole = to_earlier.sum()
    to_later = distances.sum(axis=1) - to_earlier
    first = np.cumsum(to_earlier)[LEAST - 1 : total - LEAST]
    last = whole - np.cumsum(to_later)[LEAST - 1 : total - LEAST]
    m = np.arange(LEAST, total - LEAST + 1, dtype=np.float64)
    n = total - m
    between = (whole - first - last) / (m * n)
    energies: npt.NDArray[np.float64] = m * n / total * (2 * between - 2 * first / (m * m) - 2 * last / (n * n))
    return energies
