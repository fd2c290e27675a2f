"""What slices show beside the overhead: carry-over from slice to slice, and drift."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.analysis.estimate import Estimate, finite_expm1
from harness.analysis.samples import t_quantile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]


LEAST_AFTER = 3
"""An arm must have run before at least so many slices. Its effect is not estimated from fewer."""
OTHER_JOB = "another job"
"""The cause, if slices after one of another job differ from those after one of the same job."""
LEAST_FREEDOM = 8
"""The fewest degrees of freedom of the error for a test."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One slice of a job."""

    block: int
    arm: str
    previous: str | None
    """The arm of the slice before it in time, of any job; None for the first slice of a run."""
    log_value: float
    """The logarithm of its value, in any one unit."""
    after_other_job: bool = False
    """Whether the slice before it was one of another job."""


@dataclass(frozen=True, slots=True)
class CarryOver:
    """What one job's slices show about carry-over."""

    p_value: float | None
    """Of "it does not matter which arm ran before"; None if there are too few slices to test it."""
    effect: float | None
    """The largest effect, as a share: -0.1 means 10 % smaller values after `cause` than after the other arms."""
    cause: str | None
    """The previous arm that has this effect, or OTHER_JOB. Of two arms, both have it with opposite signs: the one with
    the smaller values after it."""
    n: int
    """The number of slices that the test used."""
    error: float = 0.0
    """The standard error of the effect's logarithm."""
    freedom: int = 0
    """Degrees of freedom of the error."""
    candidates: int = 1
    """The number of effects of which this is the largest."""

    @property
    def enough(self) -> bool:
        """Whether there are enough slices for a test."""
        return self.p_value is not None

    def shown(self, alpha: float = 0.05) -> bool:
        """Whether there is carry-over. For several jobs, divide `alpha` by their number (Bonferroni)."""
        return self.p_value is not None and self.p_value <= alpha

    def at_least(self, alpha: float = 0.05) -> float:
        """The end nearer to 0 of the effect's interval, without its sign; 0 if the interval includes 0.

        The intervals of all candidates hold together with 1 - `alpha` (Bonferroni). ValueError without a test.
        """
        if self.effect is None:
            raise ValueError("too few slices to estimate an effect")
        size = abs(math.log1p(self.effect))
        reach = -t_quantile(alpha / 2 / self.candidates, self.freedom) * self.error
        return abs(math.expm1(math.copysign(max(size - reach, 0.0), self.effect)))


def find_carry_over(observations: Sequence[Observation]) -> CarryOver:
    """Whether the values of one job's slices depend on the slice before them: on its arm, or on whether it was of the
    same job.

    The model of a crossover trial with first-order carry-over (Jones & Kenward, Design and Analysis of Cross-Over
    Trials, 2014): log value = block + arm + effect of the previous arm + effect of another job + error. Blocks and arms
    are fixed effects, so neither drift nor a slow arm looks like carry-over. The effect of another job shows a cache
    that drains while the other jobs run. The F test compares the least-squares fits with and without both effects. Each
    arm's slices are weighted by the inverse of their variance around the fit without them, because a guest is often
    noisier than its host.

    Slices without a previous arm, and those after an arm that ran before fewer than three slices, are left out. There
    is no p value if fewer than two previous arms or fewer than eight degrees of freedom are left. ValueError for
    logarithms that are not finite.
    """
    if not all(math.isfinite(observation.log_value) for observation in observations):
        raise ValueError("carry-over needs the finite logarithms of values")
    used = _select_usable(observations)
    causes = sorted({observation.previous for observation in used if observation.previous is not None})
    return _compare_fits(used, causes) if len(causes) >= 2 else CarryOver(None, None, None, len(used))


def _select_usable(observations: Sequence[Observation]) -> list[Observation]:
    """A block that lacks an arm still shows something; an arm or a block with a single slice does not."""
    used = [observation for observation in observations if observation.previous is not None]
    while True:
        after = Counter(observation.previous for observation in used)
        arms, blocks = Counter(slice_.arm for slice_ in used), Counter(slice_.block for slice_ in used)
        kept = [
            slice_
            for slice_ in used
            if after[slice_.previous] >= LEAST_AFTER and arms[slice_.arm] >= 2 and blocks[slice_.block] >= 2
        ]
        if len(kept) == len(used):
            return used
        used = kept


def _compare_fits(used: Sequence[Observation], causes: Sequence[str]) -> CarryOver:
    import numpy as np  # noqa: PLC0415
    from scipy.special import fdtrc  # noqa: PLC0415

    values = np.array([observation.log_value for observation in used])
    arms = [observation.arm for observation in used]
    without = np.hstack([_make_indicators([observation.block for observation in used]), _make_indicators(arms)])
    others = np.array([observation.after_other_job for observation in used], dtype=float)[:, None]
    after = np.hstack([_make_indicators([observation.previous for observation in used]), others])
    residuals = values - without @ np.linalg.lstsq(without, values, rcond=None)[0]
    weights = _compute_weights(arms, residuals)[:, None]
    # The values and the indicators of what ran before, both without what blocks and arms explain.
    columns = weights * np.hstack([values[:, None], after])
    fit, _, fewer, _ = np.linalg.lstsq(weights * without, columns, rcond=None)
    rest = columns - weights * without @ fit
    values_left, after_left = rest[:, 0], rest[:, 1:]
    coefficients, _, tested, _ = np.linalg.lstsq(after_left, values_left, rcond=1e-9)
    freedom = len(used) - int(fewer) - int(tested)
    if freedom < LEAST_FREEDOM or tested < 1:
        return CarryOver(None, None, None, len(used))
    squares = float(((values_left - after_left @ coefficients) ** 2).sum())
    gain = max(float((values_left**2).sum()) - squares, 0.0)
    # A row for each candidate: one previous arm against the mean of the others, and another job.
    count = len(causes)
    contrasts = np.zeros((count + 1, count + 1))
    contrasts[:count, :count] = (count * np.eye(count) - 1) / (count - 1)
    contrasts[count, count] = 1
    effects = contrasts @ coefficients
    largest = max(range(count + 1), key=lambda row: (round(abs(effects[row]), 9), effects[row] < 0))
    spread = np.linalg.pinv(after_left.T @ after_left, rcond=1e-9, hermitian=True)
    error = math.sqrt(max(float(contrasts[largest] @ spread @ contrasts[largest]), 0.0) * squares / freedom)
    effect = float(effects[largest])
    if squares <= 1e-20 * float((columns[:, 0] ** 2).sum()):
        # Without any noise, only an effect beyond rounding counts.
        p_value, error = 0.0 if abs(effect) > 1e-9 else 1.0, 0.0
    else:
        p_value = float(fdtrc(tested, freedom, gain / int(tested) / (squares / freedom)))
    cause = [*causes, OTHER_JOB][largest]
    return CarryOver(p_value, finite_expm1(effect), cause, len(used), error, freedom, count + 1)


def _make_indicators(labels: Sequence[object]) -> Floats:
    import numpy as np  # noqa: PLC0415

    columns = {label: column for column, label in enumerate(sorted(set(labels), key=str))}
    matrix = np.zeros((len(labels), len(columns)))
    matrix[range(len(labels)), [columns[label] for label in labels]] = 1
    return matrix


def _compute_weights(arms: Sequence[str], residuals: Floats) -> Floats:
    """The inverse of the standard deviation of each slice's arm around the fit; 1 if an arm has no spread."""
    import numpy as np  # noqa: PLC0415

    squares = {
        arm: float(np.mean([r * r for a, r in zip(arms, residuals, strict=True) if a == arm])) for arm in set(arms)
    }
    if min(squares.values()) <= 1e-12 * max(squares.values()):
        return np.ones(len(arms))
    return np.array([1 / math.sqrt(squares[arm]) for arm in arms])


_CORRELATIONS = 24
"""How many correlations of neighbours are considered, from -0.5 to 0.995."""


@dataclass(frozen=True, slots=True)
class Slope:
    """By how much a series changes with a regressor, and the distribution of the error: a mixture of Student's t.

    Part i is the least-squares slope if neighbouring errors have the i-th correlation.
    """

    slopes: Floats
    errors: Floats
    weights: Floats
    freedom: int

    @property
    def point(self) -> float:
        return float(self.weights @ self.slopes)

    @property
    def p_value(self) -> float:
        """Two-sided, of "the series does not change with it"."""
        below = float(self._compute_share_below(0.0))
        return min(1.0, 2 * min(below, 1 - below))

    def interval(self, confidence: float) -> tuple[float, float]:
        """The ends between which the slope lies with this confidence."""
        import numpy as np  # noqa: PLC0415
        from scipy.special import stdtrit  # noqa: PLC0415

        n, tails = self.freedom, np.array([(1 - confidence) / 2, (1 + confidence) / 2])
        peak = math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2)) / math.sqrt(n * math.pi)
        reach = float(stdtrit(n, tails[1])) * self.errors
        low, high = np.full(2, (self.slopes - reach).min()), np.full(2, (self.slopes + reach).max())
        ends = self.point + np.array([-1, 1]) * (self.weights @ reach)
        # Newton's method, for both ends at once; bisection where it leads out of what is known.
        for _ in range(45 if self.errors.any() else 0):
            excess = self._compute_share_below(ends[:, None]) - tails
            low, high = np.where(excess > 0, low, ends), np.where(excess > 0, ends, high)
            densities = (1 + ((ends[:, None] - self.slopes) / self.errors) ** 2 / n) ** (-(n + 1) / 2) / self.errors
            before, ends = ends, ends - excess / np.maximum(peak * densities @ self.weights, 1e-300)
            ends = np.where((low <= ends) & (ends <= high), ends, (low + high) / 2)
            if (abs(ends - before) <= 1e-13 * reach.min()).all():
                break
        return min(float(ends[0]), self.point), max(float(ends[1]), self.point)

    def _compute_share_below(self, values: float | Floats) -> Floats:
        """Of a value, or of each row of a column of values."""
        from scipy.special import stdtr  # noqa: PLC0415

        below = stdtr(self.freedom, (values - self.slopes) / self.errors) if self.errors.any() else self.slopes < values
        shares: Floats = below @ self.weights
        return shares


def fit_slope(regressor: Sequence[float], values: Sequence[float] | Floats) -> Slope:
    """The slope of `values`, which are in the order of time, on `regressor`, with errors that may be correlated.

    Generalised least squares for each correlation of neighbouring errors, an AR(1). The weight of a correlation is the
    likelihood of what depends neither on level, slope and spread (marginal likelihood: Levenbach 1972; Tunnicliffe
    Wilson 1989), with a prior that is flat in arcsin(correlation), which is Jeffreys' (Berger & Yang 1994). So a slope
    is shown only by more than what the series does by itself. Values on a line have no error. It needs at least three
    values, and two different ones of the regressor.
    """
    import numpy as np  # noqa: PLC0415

    given, x = np.asarray(values, dtype=float), np.asarray(regressor, dtype=float)
    n, centred = len(given), x - x.mean()
    y = given - given.mean()
    slope = float(centred @ y / (centred @ centred))
    if float(((y - slope * centred) ** 2).sum()) <= 1e-20 * max(float(given @ given), 1e-300):
        return Slope(np.array([slope]), np.zeros(1), np.ones(1), n - 2)
    rho = np.sin(np.linspace(-math.pi / 6, math.asin(0.995), _CORRELATIONS))[:, None]

    def whiten(series: Floats) -> Floats:
        first = np.broadcast_to(series[:1], rho.shape)
        return np.hstack([first, (series[1:] - rho * series[:-1]) / np.sqrt(1 - rho**2)])

    level, trend, data = whiten(np.ones(n)), whiten(centred), whiten(y)
    level_squares, trend_squares, products = (level**2).sum(1), (trend**2).sum(1), (level * trend).sum(1)
    of_level, of_trend = (level * data).sum(1), (trend * data).sum(1)
    determinant = level_squares * trend_squares - products**2
    slopes = (level_squares * of_trend - products * of_level) / determinant
    levels = (trend_squares * of_level - products * of_trend) / determinant
    squares = ((data - levels[:, None] * level - slopes[:, None] * trend) ** 2).sum(1)
    likelihood = -(n - 1) / 2 * np.log1p(-(rho[:, 0] ** 2)) - np.log(determinant) / 2 - (n - 2) / 2 * np.log(squares)
    weights = np.exp(likelihood - likelihood.max())
    errors = np.sqrt(squares / (n - 2) * level_squares / determinant)
    return Slope(slopes, errors, weights / weights.sum(), n - 2)


def estimate_drift(times: Iterable[float], values: Iterable[float], *, confidence: float = 0.95) -> Estimate:
    """The relative change of the host's value from its first moment to its last: 0.1 is 10 % more, -0.1 10 % less.

    `times[i]` is when `values[i]` was measured, in any unit and order; the values are positive, in any unit. This is
    the slope of log(value) over time, transformed (`fit_slope`): what a disk does only for a while makes neighbouring
    values alike, but is not a drift. Fewer than three points have no spread, so they give no interval. One point shows
    no drift. ValueError for lists of different length, no points, the same time for all, or impossible values.
    """
    times, values = list(times), list(values)
    if len(times) != len(values):
        raise ValueError(f"each value needs a time: {len(times)} times, {len(values)} values")
    if not values:
        raise ValueError("a drift needs at least one value")
    for time in times:
        if not math.isfinite(time):
            raise ValueError(f"a time must be a finite number, not {time}")
    for value in values:
        if not 0 < value < math.inf:
            raise ValueError(f"values for a drift must be finite and greater than 0, not {value}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a share between 0 and 1, for example 0.95, not {confidence}")
    n = len(values)
    if n == 1:
        return Estimate(0.0, None, None, n)
    span = max(times) - min(times)
    if span == 0:
        raise ValueError(f"a drift needs different times: all {n} values have the same time")
    several = sorted((time, math.log(value)) for time, value in zip(times, values, strict=True))
    if n == 2:
        return Estimate(finite_expm1(several[1][1] - several[0][1]), None, None, n)
    slope = fit_slope([(time - several[0][0]) / span for time, _ in several], [value for _, value in several])
    low, high = slope.interval(confidence)
    return Estimate(finite_expm1(slope.point), finite_expm1(low), finite_expm1(high), n)


def has_drifted(drift: Estimate, bound: float) -> bool:
    """Whether the group is void: the drift in either direction is larger than `bound`, a share, and its interval
    excludes 0.

    Each condition alone gives false alarms: three noisy rounds can have a large point by chance, and thirty quiet
    rounds can prove a harmless drift. Without an interval (fewer than three points), nothing is proven. ValueError for
    a bound below 0.
    """
    if not bound >= 0:
        raise ValueError(f"the bound of a drift must be a share of at least 0, not {bound}")
    if drift.low is None or drift.high is None:
        return False
    return abs(drift.point) > bound and (drift.low > 0 or drift.high < 0)
