"""Variances of slices and boots, how long a slice should be, and whether a slice depends on the one before it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from harness.analysis.estimate import finite_expm1

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BootVariance:
    """The variance of log ratios, divided into that of boots and that of blocks within a boot."""

    between: float
    """The variance of the boots' true means. 0 if they differ no more than their blocks explain."""
    within: float
    """The variance of blocks within a boot."""
    low: float
    """The lower end of the interval of `share`."""
    high: float
    """Its upper end."""
    boots: int

    @property
    def share(self) -> float:
        """The boots' share of the total variance, the intraclass correlation: 0 to 1."""
        total = self.between + self.within
        return self.between / total if total > 0 else 0.0

    @property
    def shown(self) -> bool:
        """Whether boots differ beyond chance."""
        return self.low > 0


def estimate_boot_variance(ratios: Iterable[Sequence[float]], *, confidence: float = 0.95) -> BootVariance:
    """How much boots differ, from the log ratios of each boot's blocks.

    The components are those of the analysis of variance with random effects (Searle, Casella & McCulloch, Variance
    Components, 1992), also for boots with different numbers of blocks. The interval of the share is the exact one
    of the F distribution (the same book), with the mean size for boots of different sizes. It is for blocks
    that are independent within a boot; correlated blocks look like a variance of boots. ValueError for fewer than two
    boots with blocks, no boot with two blocks, values that are not finite, or an impossible confidence.
    """
    from scipy.special import fdtri  # noqa: PLC0415

    groups = [list(group) for group in ratios if len(group)]
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a share between 0 and 1, for example 0.95, not {confidence}")
    if not all(math.isfinite(ratio) for group in groups for ratio in group):
        raise ValueError("log ratios must be finite")
    count, boots = sum(map(len, groups)), len(groups)
    if boots < 2:
        raise ValueError(f"the variance of boots needs at least two boots, not {boots}")
    if count == boots:
        raise ValueError("the variance of boots needs a boot with at least two blocks")
    mean = fmean(ratio for group in groups for ratio in group)
    means = [fmean(group) for group in groups]
    between_squares = math.fsum(
        len(group) * (group_mean - mean) ** 2 for group, group_mean in zip(groups, means, strict=True)
    )
    within_squares = math.fsum(
        (ratio - group_mean) ** 2 for group, group_mean in zip(groups, means, strict=True) for ratio in group
    )
    among, inside = between_squares / (boots - 1), within_squares / (count - boots)
    size = (count - sum(len(group) ** 2 for group in groups) / count) / (boots - 1)
    if inside == 0:
        share = 1.0 if among > 0 else 0.0
        return BootVariance(among / size, 0.0, share, share, boots)

    def share_at(quantile: float) -> float:
        ratio = among / inside / float(fdtri(boots - 1, count - boots, quantile))
        return min(max((ratio - 1) / (size + ratio - 1), 0.0), 1.0)

    tail = (1 - confidence) / 2
    return BootVariance(max((among - inside) / size, 0.0), inside, share_at(1 - tail), share_at(tail), boots)


SHORTEST_S = 0.2
LONGEST_S = 3.0
LEAST_MEANS = 8
"""A variance needs at least so many means of neighbours."""


@dataclass(frozen=True, slots=True)
class SliceVariance:
    """The variance of a slice's log value against its neighbour's: `between + within / seconds`."""

    within: float
    """The part that a longer slice reduces, in seconds: the variance of a slice of 1 s."""
    between: float
    """The part that stays, however long the slice is."""

    def of(self, seconds: float) -> float:
        """The variance of one slice of this length."""
        return self.between + self.within / seconds


def choose_slice(
    gap: float, within: float, between: float, *, shortest: float = SHORTEST_S, longest: float = LONGEST_S
) -> float:
    """The length of a slice, in seconds, that gives the narrowest interval in a given time.

    A slice of S seconds costs S + `gap` seconds and has the variance `between` + `within` / S, see
    `variance_components`. In a given time, the variance of the mean is proportional to the product, which is smallest
    at S = sqrt(gap * within / between) (Kalibera & Jones, Rigorous benchmarking in reasonable time, ISMM 2013: the
    number of repetitions of a level from its cost and variances). The result is kept between `shortest` and
    `longest`; it is `longest` if nothing is gained by more slices (`between` is 0). ValueError for values that are
    negative or not finite, and for limits that are not 0 < shortest <= longest.
    """
    for value in (gap, within, between):
        if not 0 <= value < math.inf:
            raise ValueError(f"a gap and variances must be finite numbers of at least 0, not {value}")
    if not 0 < shortest <= longest < math.inf:
        raise ValueError(f"the limits of a slice must be 0 < shortest <= longest, not {shortest} and {longest}")
    if between == 0:
        return longest if within > 0 else shortest
    return min(max(math.sqrt(gap * within / between), shortest), longest)


def error_in_time(gap: float, variance: SliceVariance, seconds: float) -> float:
    """The standard error of the mean log value after 1 s of measuring, in slices of this length with these gaps.

    With slices of another length, an interval is wider in proportion to it. `gap` and `seconds` are in seconds.
    """
    return math.sqrt((seconds + gap) * variance.of(seconds))


def estimate_variance_components(log_values: Sequence[float], seconds: float) -> SliceVariance:
    """The variance of a slice, from a series of equally long slices of one job on one arm, in the order of time.

    `log_values` are their logarithms; each slice has `seconds`. The variance of the means of 1, 2, 4, 8 ... neighbours
    is that of longer slices. It is measured between successive means (Allan variance: Allan, Statistics of atomic
    frequency standards, 1966), because the arms of a block are compared with their neighbours in time, and slow changes
    cancel. `between + within / length` is fitted by least squares, weighted by the precision of each variance, with
    both parts at least 0. ValueError for fewer than 16 slices (8 pairs), values that are not finite, or a length that
    is not above 0.
    """
    if not 0 < seconds < math.inf:
        raise ValueError(f"the length of a slice must be above 0 s, not {seconds}")
    if not all(map(math.isfinite, log_values)):
        raise ValueError("the variance of slices needs the finite logarithms of their values")
    if len(log_values) < 2 * LEAST_MEANS:
        raise ValueError(f"variances need at least {2 * LEAST_MEANS} slices, not {len(log_values)}")
    points = []
    count = 1
    while len(log_values) // count >= LEAST_MEANS:
        means = [fmean(log_values[at : at + count]) for at in range(0, len(log_values) - count + 1, count)]
        variance = fmean((one - other) ** 2 for one, other in pairwise(means)) / 2
        points.append((1 / (count * seconds), variance, len(means) - 1))
        count *= 2
    return _fit_variances(points)


def _fit_variances(points: Sequence[tuple[float, float, int]]) -> SliceVariance:
    """Least squares of variance on 1 / length; the weight of a variance is its freedom over its fitted square."""
    if max(variance for _, variance, _ in points) == 0:
        return SliceVariance(0.0, 0.0)
    fitted = [variance for _, variance, _ in points]
    slice_variance = SliceVariance(0.0, 0.0)
    for _ in range(5):
        floor = 1e-9 * max(fitted)
        weights = [freedom / max(value, floor) ** 2 for (_, _, freedom), value in zip(points, fitted, strict=True)]
        total = math.fsum(weights)
        x_mean = math.fsum(w * x for w, (x, _, _) in zip(weights, points, strict=True)) / total
        y_mean = math.fsum(w * y for w, (_, y, _) in zip(weights, points, strict=True)) / total
        x_squares = math.fsum(w * (x - x_mean) ** 2 for w, (x, _, _) in zip(weights, points, strict=True))
        products = math.fsum(w * (x - x_mean) * (y - y_mean) for w, (x, y, _) in zip(weights, points, strict=True))
        within = products / x_squares
        if within <= 0:
            slice_variance = SliceVariance(0.0, y_mean)
        elif y_mean - within * x_mean <= 0:
            proportional = math.fsum(w * x * y for w, (x, y, _) in zip(weights, points, strict=True))
            slice_variance = SliceVariance(
                proportional / math.fsum(w * x * x for w, (x, _, _) in zip(weights, points, strict=True)), 0.0
            )
        else:
            slice_variance = SliceVariance(within, y_mean - within * x_mean)
        fitted = [slice_variance.between + slice_variance.within * x for x, _, _ in points]
    return slice_variance


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

    @property
    def enough(self) -> bool:
        """Whether there are enough slices for a test."""
        return self.p_value is not None

    def shown(self, alpha: float = 0.05) -> bool:
        """Whether there is carry-over. For several jobs, divide `alpha` by their number (Bonferroni)."""
        return self.p_value is not None and self.p_value <= alpha


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
    if len(causes) < 2:
        return CarryOver(None, None, None, len(used))
    return _compare_fits(used, causes)


def _select_usable(observations: Sequence[Observation]) -> list[Observation]:
    """A block that lacks an arm still shows something; an arm or a block with a single slice does not."""
    used = [observation for observation in observations if observation.previous is not None]
    while True:
        after = Counter(observation.previous for observation in used)
        arms, blocks = (
            Counter(observation.arm for observation in used),
            Counter(observation.block for observation in used),
        )
        kept = [
            observation
            for observation in used
            if after[observation.previous] >= LEAST_AFTER
            and arms[observation.arm] >= 2
            and blocks[observation.block] >= 2
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
    weights = _compute_weights(arms, values - _fit_values(without, values))[:, None]
    reduced, full = weights * without, weights * np.hstack([without, after])
    weighted = weights[:, 0] * values
    coefficients, _, more, _ = np.linalg.lstsq(full, weighted, rcond=None)
    simpler, _, fewer, _ = np.linalg.lstsq(reduced, weighted, rcond=None)
    freedom, tested = len(used) - int(more), int(more) - int(fewer)
    if freedom < LEAST_FREEDOM or tested < 1:
        return CarryOver(None, None, None, len(used))
    error = float(((weighted - full @ coefficients) ** 2).sum())
    gain = max(float(((weighted - reduced @ simpler) ** 2).sum()) - error, 0.0)
    *effects, of_other_job = coefficients[-len(causes) - 1 :].tolist()
    effect, cause = _find_largest(effects, causes)
    if abs(of_other_job) > abs(effect):
        effect, cause = of_other_job, OTHER_JOB
    if error <= 1e-20 * float((weighted**2).sum()):
        # Without any noise, only an effect beyond rounding counts.
        p_value = 0.0 if abs(effect) > 1e-9 else 1.0
    else:
        p_value = float(fdtrc(tested, freedom, gain / tested / (error / freedom)))
    return CarryOver(p_value, finite_expm1(effect), cause, len(used))


def _find_largest(effects: Sequence[float], causes: Sequence[str]) -> tuple[float, str]:
    """The largest difference between one previous arm and the mean of the others; of equal ones, the negative one."""
    total, count = math.fsum(effects), len(effects)
    against = [(effect - (total - effect) / (count - 1), cause) for effect, cause in zip(effects, causes, strict=True)]
    return max(against, key=lambda effect: (round(abs(effect[0]), 9), effect[0] < 0))


def _make_indicators(labels: Sequence[object]) -> Floats:
    import numpy as np  # noqa: PLC0415

    columns = {label: column for column, label in enumerate(sorted(set(labels), key=str))}
    matrix = np.zeros((len(labels), len(columns)))
    matrix[range(len(labels)), [columns[label] for label in labels]] = 1
    return matrix


def _fit_values(matrix: Floats, values: Floats) -> Floats:
    import numpy as np  # noqa: PLC0415

    fitted: Floats = matrix @ np.linalg.lstsq(matrix, values, rcond=None)[0]
    return fitted


def _compute_weights(arms: Sequence[str], residuals: Floats) -> Floats:
    """The inverse of the standard deviation of each slice's arm around the fit; 1 if an arm has no spread."""
    import numpy as np  # noqa: PLC0415

    squares = {arm: float(np.mean([r * r for a, r in zip(arms, residuals, strict=True) if a == arm])) for arm in arms}
    if min(squares.values()) <= 1e-12 * max(squares.values()):
        return np.ones(len(arms))
    return np.array([1 / math.sqrt(squares[arm]) for arm in arms])
