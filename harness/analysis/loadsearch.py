"""Which rates to measure next, to find the highest load that keeps a latency below a bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.loadcurve import FEWEST_SAMPLES, Load, load_curve

FIRST_STEPS = (1 / 8, 1 / 4, 1 / 2)
"""The first rates, as shares of the fastest one."""
STEP_DOWN = 1 / 4
"""If the latency exceeds the bound at all rates, the next one is this share of the lowest."""
CLOSE = 1.03
"""The rates on both sides of the bound are close enough if they differ by this factor or less."""
ENOUGH_SAMPLES = 8
"""The number of samples of each of the two rates that the result is between."""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """The rates that can be measured, in I/Os per second: from `lowest` to `highest`, or to full speed.

    `speed` is about as much as the arm completes at full speed. `step` is the smallest difference of two rates.
    """

    speed: float
    lowest: float
    highest: int | None = None
    step: int = 1

    @property
    def top(self) -> int | None:
        """The fastest rate to measure; None is full speed."""
        return self.highest // self.step * self.step if self.highest is not None and self.highest < self.speed else None

    def rate(self, iops: float) -> int | None:
        """The rate nearest to `iops` with three digits; None if it is below `lowest`."""
        if iops < self.lowest:
            return None
        digits = float(10 ** max(math.floor(math.log10(iops)) - 2, 0))
        return max(round(round(iops / digits) * digits / self.step), 1) * self.step


def next_rates(loads: Sequence[Load], bound: float, limits: SearchLimits) -> tuple[int | None, ...]:
    """The rates to measure next on one arm; None among them is full speed. Empty: the search has ended.

    First the fastest rate and geometric steps below it. Then the middle between the fastest rate that keeps `bound`
    (seconds) and the slowest one that does not, until the two are close. Then both again, until they have enough
    samples. A rate without two samples is measured again first. Each call takes all `loads` of the arm so far into
    account.
    """
    if not loads:
        fastest = limits.top or limits.speed
        steps = dict.fromkeys(rate for share in FIRST_STEPS if (rate := limits.rate(share * fastest)) is not None)
        return (*steps, limits.top)
    if again := _again(*(load for load in loads if load.reached and len(load.latencies) < FEWEST_SAMPLES)):
        return again
    below, above = _around(loads, bound)
    if below is None:
        lower = limits.rate(STEP_DOWN * above.achieved) if above is not None else None
        return (lower,) if lower is not None and lower not in _rates(loads) else _again(above)
    if above is None:
        return _again(below)
    middle = limits.rate(math.sqrt(below.achieved * above.achieved))
    if above.achieved > CLOSE * below.achieved and middle is not None and middle not in _rates(loads):
        return (middle,)
    return _again(below, above)


def _around(loads: Sequence[Load], bound: float) -> tuple[Load | None, Load | None]:
    """The fastest rate that keeps the bound, and the slowest one above it that does not; None if there is none."""
    latency = {point.rate: point.latency for point in load_curve(loads, bound)}
    keep = [load for load in loads if load.rate in latency and latency[load.rate] < bound]
    beyond = [load for load in loads if not load.reached or latency.get(load.rate, 0.0) >= bound]

    def by_load(load: Load) -> float:
        return load.achieved

    return max(keep, key=by_load, default=None), min(beyond, key=by_load, default=None)


def _again(*loads: Load | None) -> tuple[int | None, ...]:
    """The rates of these loads that need more samples."""
    return tuple(load.rate for load in loads if load is not None and len(load.iops) < ENOUGH_SAMPLES)


def _rates(loads: Sequence[Load]) -> set[int | None]:
    return {load.rate for load in loads}
