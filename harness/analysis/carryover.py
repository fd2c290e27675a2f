"""Carry-over: whether the value of an arm depends on the arm that ran before it, as in crossover trials."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.analysis.exponential import finite_expm1

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

    @property
    def enough(self) -> bool:
        """Whether there are enough slices for a test."""
        return self.p_value is not None

    def shown(self, alpha: float = 0.05) -> bool:
        """Whether there is carry-over. For several jobs, divide `alpha` by their number (Bonferroni)."""
        return self.p_value is not None and self.p_value <= alpha


def carry_over(observations: Sequence[Observation]) -> CarryOver:
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
    used = _usable(observations)
    causes = sorted({each.previous for each in used if each.previous is not None})
    if len(causes) < 2:
        return CarryOver(None, None, None, len(used))
    return _tested(used, causes)


def _usable(observations: Sequence[Observation]) -> list[Observation]:
    """A block that lacks an arm still shows something; an arm or a block with a single slice does not."""
    used = [observation for observation in observations if observation.previous is not None]
    while True:
        after = Counter(each.previous for each in used)
        arms, blocks = Counter(each.arm for each in used), Counter(each.block for each in used)
        kept = [
            each
            for each in used
            if after[each.previous] >= LEAST_AFTER and arms[each.arm] >= 2 and blocks[each.block] >= 2
        ]
        if len(kept) == len(used):
            return used
        used = kept


def _tested(used: Sequence[Observation], causes: Sequence[str]) -> CarryOver:
    import numpy as np  # noqa: PLC0415
    from scipy.special import fdtrc  # noqa: PLC0415

    values = np.array([each.log_value for each in used])
    arms = [observation.arm for observation in used]
    without = np.hstack([_indicators([each.block for each in used]), _indicators(arms)])
    others = np.array([each.after_other_job for each in used], dtype=float)[:, None]
    after = np.hstack([_indicators([each.previous for each in used]), others])
    weights = _weights(arms, values - _fitted(without, values))[:, None]
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
    effect, cause = _largest(effects, causes)
    if abs(of_other_job) > abs(effect):
        effect, cause = of_other_job, OTHER_JOB
    if error <= 1e-20 * float((weighted**2).sum()):
        # Without any noise, only an effect beyond rounding counts.
        p_value = 0.0 if abs(effect) > 1e-9 else 1.0
    else:
        p_value = float(fdtrc(tested, freedom, gain / tested / (error / freedom)))
    return CarryOver(p_value, finite_expm1(effect), cause, len(used))


def _largest(effects: Sequence[float], causes: Sequence[str]) -> tuple[float, str]:
    """The largest difference between one previous arm and the mean of the others; of equal ones, the negative one."""
    total, count = math.fsum(effects), len(effects)
    against = [(effect - (total - effect) / (count - 1), cause) for effect, cause in zip(effects, causes, strict=True)]
    return max(against, key=lambda each: (round(abs(each[0]), 9), each[0] < 0))


def _indicators(labels: Sequence[object]) -> Floats:
    import numpy as np  # noqa: PLC0415

    columns = {label: column for column, label in enumerate(sorted(set(labels), key=str))}
    matrix = np.zeros((len(labels), len(columns)))
    matrix[range(len(labels)), [columns[label] for label in labels]] = 1
    return matrix


def _fitted(matrix: Floats, values: Floats) -> Floats:
    import numpy as np  # noqa: PLC0415

    found: Floats = matrix @ np.linalg.lstsq(matrix, values, rcond=None)[0]
    return found


def _weights(arms: Sequence[str], residuals: Floats) -> Floats:
    """The inverse of the standard deviation of each slice's arm around the fit; 1 if an arm has no spread."""
    import numpy as np  # noqa: PLC0415

    squares = {arm: float(np.mean([r * r for a, r in zip(arms, residuals, strict=True) if a == arm])) for arm in arms}
    if min(squares.values()) <= 1e-12 * max(squares.values()):
        return np.ones(len(arms))
    return np.array([1 / math.sqrt(squares[arm]) for arm in arms])
