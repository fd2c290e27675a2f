"""Whether a disk has come to its steady state: SNIA Solid State Storage Performance Test Specification, version 2."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, linear_regression

WINDOW = 5
"""Rounds that are looked at: the last five."""
LARGEST_RANGE = 0.20
"""Largest minus smallest value, as a share of the mean."""
LARGEST_EXCURSION = 0.10
"""Rise or fall of the fitted line over the window, as a share of the mean."""


@dataclass(frozen=True, slots=True)
class SteadyState:
    """The last rounds of conditioning, and what the criteria say of them."""

    window: tuple[float, ...]
    """The values looked at, in their unit: the last five, or as many as there are."""
    mean: float
    """Of the window, in the values' unit."""
    slope: float
    """Of the least-squares line, in the values' unit per round; it passes through the mean in the window's middle."""

    @property
    def range_share(self) -> float:
        """Largest minus smallest value of the window, as a share of the mean."""
        return (max(self.window) - min(self.window)) / self.mean

    @property
    def excursion_share(self) -> float:
        """What the line rises (above 0) or falls (below 0) from the window's first round to its last, by the mean."""
        return self.slope * (len(self.window) - 1) / self.mean

    @property
    def is_steady(self) -> bool:
        """Whether there are five rounds that keep both limits."""
        return (
            len(self.window) == WINDOW
            and self.range_share <= LARGEST_RANGE
            and abs(self.excursion_share) <= LARGEST_EXCURSION
        )


def steady_state(values: Iterable[float]) -> SteadyState:
    """What the last five of `values`, one per round and in one unit, say of the disk. One number per round, in order.

    Steady state as the SNIA's SSS PTS v2 defines it: over five rounds, largest minus smallest at most 20 % of the
    mean, and the fitted line changing by at most 10 % of the mean. ValueError without values, or for values that are
    not positive and finite.
    """
    rounds = list(values)
    if not rounds:
        raise ValueError("a steady state needs at least one round")
    for value in rounds:
        if not 0 < value < math.inf:
            raise ValueError(f"a round's value is finite and greater than 0, not {value}")
    window = tuple(map(float, rounds[-WINDOW:]))
    slope = linear_regression(range(len(window)), window).slope if len(window) > 1 else 0.0
    return SteadyState(window, fmean(window), slope)
