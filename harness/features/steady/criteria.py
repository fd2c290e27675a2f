"""Whether a disk reached its steady state: SNIA Solid State Storage Performance Test Specification, version 2."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, linear_regression

WINDOW = 5
"""The number of rounds in the window: the last five."""
LARGEST_RANGE = 0.20
"""Largest minus smallest value, as a share of the mean."""
LARGEST_EXCURSION = 0.10
"""Rise or fall of the fitted line over the window, as a share of the mean."""


@dataclass(frozen=True, slots=True)
class SteadyState:
    """The last rounds of conditioning, with SNIA's criteria."""

    window: tuple[float, ...]
    """The last five values, or fewer if there are fewer, in their unit."""
    mean: float
    """The mean of the window, in the values' unit."""
    slope: float
    """The slope of the least-squares line, in the values' unit per round. The line passes through the mean in the
    middle of the window."""

    @property
    def range_share(self) -> float:
        """Largest minus smallest value of the window, as a share of the mean."""
        return (max(self.window) - min(self.window)) / self.mean

    @property
    def excursion_share(self) -> float:
        """The rise (above 0) or fall (below 0) of the line over the window, as a share of the mean."""
        return self.slope * (len(self.window) - 1) / self.mean

    @property
    def is_steady(self) -> bool:
        """Whether there are five rounds and they keep both limits."""
        return (
            len(self.window) == WINDOW
            and self.range_share <= LARGEST_RANGE
            and abs(self.excursion_share) <= LARGEST_EXCURSION
        )


def judge_steadiness(values: Iterable[float]) -> SteadyState:
    """The state of the disk from the last five of `values`: one value per round, in order and in one unit.

    Steady state as the SNIA's SSS PTS v2 defines it: over five rounds, largest minus smallest is at most 20 % of the
    mean, and the fitted line changes by at most 10 % of the mean. ValueError without values, or for values that are
    not positive and finite.
    """
    rounds = list(values)
    if not rounds:
        raise ValueError("a steady state needs at least one round")
    for value in rounds:
        if not 0 < value < math.inf:
            raise ValueError(f"the value of a round must be finite and greater than 0, not {value}")
    window = tuple(map(float, rounds[-WINDOW:]))
    slope = linear_regression(range(len(window)), window).slope if len(window) > 1 else 0.0
    return SteadyState(window, fmean(window), slope)
