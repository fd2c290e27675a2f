"""The highest load that keeps a latency below a bound: a monotone curve through measured rates, and its crossing.

And which rates to measure next to find it. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from statistics import fmean, variance

from harness.analysis.estimate import Estimate, estimate_mean
from harness.analysis.samples import t_quantile

REACHED = 0.95
"""The share of a requested rate that an arm must complete. With less, the rate counts as above the bound."""
FEWEST_SAMPLES = 2
"""The fewest samples of a rate in the curve."""
_NEAR = 2
"""The rates on each side of the bound whose samples show the scatter of the latency."""

FIRST_STEPS = (1 / 8, 1 / 4, 1 / 2)
"""The first rates, as shares of the fastest one."""
STEP_DOWN = 1 / 4
"""If the latency exceeds the bound at all rates, the next one is this share of the lowest."""
CLOSE = 1.03
"""The rates on both sides of the bound are close enough if they differ by this factor or less."""
ENOUGH_SAMPLES = 8
"""The number of samples of each of the two rates that the result is between."""


@dataclass(frozen=True, slots=True)
class Load:
    """One rate, as measured on one arm. A sample is a block.

    `rate` is the requested number of I/Os per second; None for as many as possible. `iops` has the I/Os per second of
    each block, `latencies` the latency in seconds of each block that had enough I/Os for it.
    """

    rate: int | None
    iops: tuple[float, ...]
    latencies: tuple[float, ...]

    @property
    def achieved(self) -> float:
        """The mean I/Os per second."""
        return fmean(self.iops)

    @property
    def reached(self) -> bool:
        """Whether the arm completed the requested rate. True for full speed."""
        return self.rate is None or self.achieved >= REACHED * self.rate


class LimitedBy(StrEnum):
    """What ends the loads that keep the bound."""

    BOUND = "bound"
    """The latency exceeds the bound at higher loads."""
    FULL_SPEED = "full speed"
    """Even at full speed, the latency keeps the bound."""
    HIGHEST = "highest rate"
    """The highest rate that was allowed keeps the bound. Higher ones were not measured."""
    LOWEST = "lowest rate"
    """The latency exceeds the bound even at the lowest rate that was measured."""


@dataclass(frozen=True, slots=True)
class Sustained:
    """The highest load that keeps the bound, in I/Os per second, and its interval.

    `point` is None if no measured load keeps it. `low` is None if the interval has no lower end above the lowest
    measured load, `high` is None if higher loads were not measured.
    """

    limited_by: LimitedBy
    point: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point of the curve: the rate, its achieved I/Os per second, and the latency in seconds with its interval."""

    rate: int | None
    load: float
    latency: float
    low: float
    high: float


def load_curve(loads: Sequence[Load], bound: float, *, confidence: float = 0.95) -> tuple[CurvePoint, ...]:
    """The latency over the load, by load: isotonic regression of the mean logarithms, because more load is not faster.

    Neighbours that contradict this get their common mean (pool adjacent violators: Barlow, Bartholomew, Bremner &
    Brunk, Statistical Inference under Order Restrictions, 1972), weighted by their numbers of samples. Each interval is
    Student's t, with the scatter of the samples of the rates next to the `bound` (seconds): the scatter grows with the
    load, and the intervals matter there. Rates that the arm did not reach, and those with fewer than two samples, are
    left out. ValueError for values that are not positive.
    """
    known = [load for load in loads if load.reached and len(load.latencies) >= FEWEST_SAMPLES]
    known.sort(key=lambda load: load.achieved)
    if not known:
        return ()
    logs = [[math.log(latency) for latency in load.latencies] for load in known]
    fitted = _isotonic([fmean(log) for log in logs], [len(log) for log in logs])
    crossing = bisect_left(fitted, math.log(bound))
    near = logs[max(crossing - _NEAR, 0) : crossing + _NEAR]
    freedom = sum(len(each) - 1 for each in near)
    scatter = math.sqrt(sum((len(each) - 1) * variance(each) for each in near) / freedom)
    reach = t_quantile((1 + confidence) / 2, freedom) * scatter
    halves = [reach / math.sqrt(len(log)) for log in logs]
    return tuple(
        CurvePoint(load.rate, load.achieved, math.exp(log), math.exp(log - half), math.exp(log + half))
        for load, log, half in zip(known, fitted, halves, strict=True)
    )


def sustained(loads: Sequence[Load], bound: float, *, confidence: float = 0.95) -> Sustained | None:
    """The highest load at which the latency stays below `bound` (seconds); None if too little was measured.

    It is where `load_curve` reaches the bound. Between its points, 1 / latency is a line: the latency of a queue grows
    as 1 / (1 - utilisation) (Kingman, The single server queue in heavy traffic, 1961). The interval has all loads at
    which the curve's interval contains the bound, as in the inverse estimation of a dose (Oron & Flournoy, Centered
    isotonic regression, 2017). If no load exceeds the bound, the arm's full speed is the answer, because the arm cannot
    do more. The result is never below a rate that was measured and kept the bound. ValueError as for `load_curve`.
    """
    curve = load_curve(loads, bound, confidence=confidence)
    if not curve:
        return None
    speed = _full_speed(loads, confidence)
    proven = _crossing(curve, [curve_point.high for curve_point in curve], bound)
    point = _crossing(curve, [each.latency for each in curve], bound)
    excluded = _crossing(curve, [each.low for each in curve], bound)
    low = None if curve[0].high >= bound else proven
    high = excluded if excluded is not None or speed is None else speed.high
    kept = _find_fastest_kept(loads, bound)
    if curve[0].latency >= bound and not kept:
        return Sustained(LimitedBy.LOWEST, None, None, high)
    if point is not None:
        point = max(point, kept)
        return Sustained(LimitedBy.BOUND, point, low, None if high is None else max(high, point))
    if speed is not None:
        point = max(speed.point, kept)
        high = None if speed.high is None else max(speed.high, point)
        return Sustained(LimitedBy.FULL_SPEED, point, speed.low if proven is None else low, high)
    highest = curve[-1].load
    return Sustained(LimitedBy.HIGHEST, highest, highest if proven is None else low, None)


def _find_fastest_kept(loads: Sequence[Load], bound: float) -> float:
    """The highest load that the arm reached and whose own mean latency keeps the bound; 0 without one.

    The curve may exceed the bound there, because a slower rate that does is averaged with it.
    """
    enough = (load for load in loads if load.reached and len(load.latencies) >= FEWEST_SAMPLES)
    kept = (load.achieved for load in enough if fmean(map(math.log, load.latencies)) < math.log(bound))
    return max(kept, default=0.0)


def _full_speed(loads: Sequence[Load], confidence: float) -> Estimate | None:
    """What the arm completes at most: at full speed, else at rates that it did not reach; None if it reached all."""
    limited = [load for load in loads if load.rate is None] or [load for load in loads if not load.reached]
    if not limited:
        return None
    fastest = max(limited, key=lambda load: load.achieved)
    return estimate_mean(fastest.iops, confidence=confidence)


def _crossing(curve: Sequence[CurvePoint], latencies: Sequence[float], bound: float) -> float | None:
    """The load from which on these latencies of the curve's points reach the bound; None if they never do.

    Latencies that do not rise everywhere count with the largest one up to each load.
    """
    reached = list(accumulate(latencies, max))
    if reached[-1] < bound:
        return None
    at = bisect_left(reached, bound)
    if at == 0:
        return curve[0].load
    before, after = curve[at - 1].load, curve[at].load
    share = (1 / reached[at - 1] - 1 / bound) / (1 / reached[at - 1] - 1 / reached[at])
    return before + (after - before) * share


def _isotonic(values: Sequence[float], weights: Sequence[int]) -> list[float]:
    """The nearest values that never fall, by weighted squares."""
    from scipy.optimize import isotonic_regression  # noqa: PLC0415 - it takes longer to load than this package

    return [float(value) for value in isotonic_regression(values, weights=weights).x]


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
