"""What each of several steps costs, from paired samples: differences that add up, and ratios that multiply."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.analysis.estimate import Estimate, differences, estimate_added, estimate_overhead, positive
from harness.analysis.many import holm
from harness.analysis.samples import IN_ORDER, Samples


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step: an arm against the arm before it."""

    added: Estimate
    """The mean of the samples' differences, in the values' unit. These values add up over the steps."""
    overhead: Estimate
    """As a share of the arm before, from the log ratios. The values of 1 + overhead multiply over the steps."""
    so_far: Estimate
    """This arm against the first, as a share of the first: all steps up to this one."""
    p_value: float | None
    """The p value of "this step changes nothing", two-sided and not corrected; None without an interval."""
    shown: bool
    """Whether "this step changes nothing" is rejected, corrected for the number of steps (Holm)."""


@dataclass(frozen=True, slots=True)
class Costs:
    """All steps, and the last arm against the first from the same samples."""

    steps: tuple[StepCost, ...]
    added: Estimate
    """Its point is the sum of the steps' points. Its interval is not the sum of their intervals: errors cancel."""
    overhead: Estimate


def decompose(arms: Iterable[Iterable[float]], *, confidence: float = 0.95, samples: Samples = IN_ORDER) -> Costs:
    """The difference between the first arm and the last, step by step.

    `arms[i][r]` is the latency of arm i in block r, in any one unit, all greater than 0: lower is better. Every arm has
    the same blocks. So within each block the differences telescope, and their means add up to the mean of last minus
    first, whatever the values. The logarithms of the ratios add up in the same way, so percentages multiply.

    Each interval is Student's t on the blocks at `confidence`, for its step alone; `samples` as for
    `estimate_overhead`. `shown` is corrected for the number
    of steps by Holm's method at 1 - `confidence`. ValueError for fewer than two arms, arms of different length, no
    round, or values that are not positive and finite.
    """
    values = [positive(arm, f"arm {number}'s") for number, arm in enumerate(arms)]
    if len(values) < 2:
        raise ValueError(f"a decomposition needs at least two arms, not {len(values)}")
    rounds = [len(arm) for arm in values]
    if len(set(rounds)) > 1:
        raise ValueError(
            f"the arms of a decomposition must have the same number of rounds, not {', '.join(map(str, rounds))}"
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a share between 0 and 1, for example 0.95, not {confidence}")

    def worse(of: Sequence[float], than: Sequence[float]) -> Estimate:
        return estimate_overhead(than, of, higher_is_better=False, confidence=confidence, samples=samples)

    first, last = values[0], values[-1]
    p_values = [_p_value(differences(before, after), samples) for before, after in pairwise(values)]
    shown = holm(p_values, 1 - confidence)
    steps = tuple(
        StepCost(
            added=estimate_added(before, after, confidence=confidence, samples=samples),
            overhead=worse(after, than=before),
            so_far=worse(after, than=first),
            p_value=p_value,
            shown=stands,
        )
        for (before, after), p_value, stands in zip(pairwise(values), p_values, shown, strict=True)
    )
    return Costs(steps, estimate_added(first, last, confidence=confidence, samples=samples), worse(last, than=first))


def _p_value(differences: Sequence[float], samples: Samples) -> float | None:
    """Two-sided p value of a mean of 0, with the error that the interval has."""
    spread = samples.spread(differences)
    return min(1.0, 2 * spread.p_above(abs(spread.mean))) if spread.has_interval else None
