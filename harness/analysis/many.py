"""Verdicts over many cells: without a correction, one false alarm in 40 is five in a run of 200 cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from harness.analysis.verdict import Verdict


class Tested(Protocol):
    """A tested hypothesis, "this cell exceeds this budget": its verdict alone, and its p value."""

    @property
    def verdict(self) -> Verdict: ...

    @property
    def p_value(self) -> float | None:
        """Over all looks at the cell; None without evidence: not enough rounds, or a void cell."""


def holm(p_values: Sequence[float | None], alpha: float) -> list[bool]:
    """Which hypotheses are rejected, in their order. The probability of any wrong rejection is at most `alpha`.

    Holm's step-down method (1979), valid for any dependence between the tests. None stands for a cell without a p value
    yet. It is never rejected but it counts, because the size of the family must not depend on the measurements.
    ValueError for a p value or alpha outside of 0 to 1.
    """
    known = _known(p_values, alpha)
    rejected = [False] * len(p_values)
    for step, (p, index) in enumerate(sorted(known)):
        if p * (len(p_values) - step) > alpha:
            break
        rejected[index] = True
    return rejected


def benjamini_hochberg(p_values: Sequence[float | None], alpha: float) -> list[bool]:
    """Which hypotheses are rejected, in their order. Of these, at most the share `alpha` is expected to be wrong.

    The step-up method of Benjamini & Hochberg (1995), valid for tests that are independent or positively dependent.
    None and ValueError as for `holm`.
    """
    known = sorted(_known(p_values, alpha))
    passed = [rank for rank, (p, _) in enumerate(known, start=1) if p * len(p_values) <= alpha * rank]
    rejected = {index for _, index in known[: max(passed, default=0)]}
    return [index in rejected for index in range(len(p_values))]


def _known(p_values: Sequence[float | None], alpha: float) -> list[tuple[float, int]]:
    """The p values that there are, with their positions."""
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be a probability, for example 0.025, not {alpha}")
    known = [(p, index) for index, p in enumerate(p_values) if p is not None]
    for p, _ in known:
        if not 0 <= p <= 1:
            raise ValueError(f"a p value must be a probability between 0 and 1, not {p}")
    return known


def survivors(tested: Sequence[Tested], *, family: int, error_rate: float) -> list[Verdict]:
    """The verdicts of a run's budgets, in their order: an `exceeds` that does not survive Holm is `inconclusive`.

    `family` is the number of hypotheses that the run tests, including those that are not measured yet and those of void
    cells. It is known before the first measurement. So a verdict that stands after the first group stands at the end,
    and a failed check never makes an `exceeds` of another cell easier. A `family` smaller than `tested` counts as
    `len(tested)`. `error_rate` is the probability of any false `exceeds` in the run: `Sequential.error_rate` of the
    plan. `within` needs no correction: a run passes only if every cell is within, and such a claim is wrong no more
    often than its parts (intersection-union test, Berger 1982). Many cells make it harder to reach, not easier.
    ValueError as for `holm`.
    """
    unmeasured = max(family - len(tested), 0)
    rejected = holm([*(each.p_value for each in tested), *[None] * unmeasured], error_rate)
    return [
        Verdict.INCONCLUSIVE if each.verdict is Verdict.EXCEEDS and not stands else each.verdict
        for each, stands in zip(tested, rejected[: len(tested)], strict=True)
    ]
