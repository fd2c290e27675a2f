"""Bringing a disk to its steady state before it is measured: `conditioning = "steady"` of a profile.

A new SSD writes faster than it will later. So each region is written twice at 128 KiB, then the job with the highest
load runs on it in rounds of 10 s until the last five rounds keep SNIA's criteria, at most 25 times (`measuring.py`). A
disk that does not become steady is measured too: `regions.py` warns, and draws the rounds. Without this feature,
profiles fill the regions once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, linear_regression
from typing import TYPE_CHECKING

from harness.feature import Conditioner, Feature, import_later

if TYPE_CHECKING:
    from harness.features.steady import measuring, regions
else:
    measuring, regions = import_later(__name__, "measuring", "regions")

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


FEATURE = Feature(
    name="steady",
    # SNIA SSS PTS v2, workload-independent preconditioning.
    brings=(
        Conditioner(
            name="steady",
            fills=2,
            block=128 * 1024,
            rounds=(5, 25),
            seconds=10.0,
            run=lambda filled: measuring.make_steady(filled),
            contents=lambda disk, record, key: regions.region_blocks(disk, record, key),
            banners=lambda run: regions.warn_of_unsteady_disks(run),
        ),
    ),
)
