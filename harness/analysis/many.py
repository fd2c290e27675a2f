"""Verdicts over many cells: with 200 of them, a false alarm in 40 is five a run unless it is corrected for."""

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
        """Over all looks at the cell; None where there is no evidence: not enough rounds, or a void cell."""


def holm(p_values: Sequence[float | None], alpha: float) -> list[bool]:
    """Which hypotheses are rejected, in their order, so that any is rejected wrongly with probability <= `alpha`.

    Holm's step-down method (1979), whatever the dependence between the tests. None, a cell that has no p value yet,
    is never rejected and still counts: how large the family is must not depend on what was measured.
    ValueError for a p value or alpha outside of 0 to 1.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is a probability, for example 0.025, not {alpha}")
    known = [(p, index) for index, p in enumerate(p_values) if p is not None]
    rejected = [False] * len(p_values)
    for p, _ in known:
        if not 0 <= p <= 1:
            raise ValueError(f"a p value is a probability, not {p}")
    for step, (p, index) in enumerate(sorted(known)):
        if p * (len(p_values) - step) > alpha:
            break
        rejected[index] = True
    return rejected


def survivors(tested: Sequence[Tested], *, family: int, error_rate: float) -> list[Verdict]:
    """The verdicts of a run's budgets, in their order: an `exceeds` that does not survive Holm is `inconclusive`.

    `family` is how many hypotheses the run tests, those that are not measured yet and those of void cells included, and
    is known before anything is measured: so a verdict that stands after the first group stands at the end, and no
    failed check makes it easier for the others. Fewer than `tested` count as many as these. `error_rate` is the
    probability of any false `exceeds` in the run: `Sequential.error_rate` of the plan that it was judged by. `within`
    needs no correction: a run is fine only when every cell is within, and such a claim errs no more often than its
    parts (intersection-union test, Berger 1982); many cells make it harder to reach, not easier. ValueError as for
    `holm`.
    """
    unmeasured = max(family - len(tested), 0)
    rejected = holm([*(each.p_value for each in tested), *[None] * unmeasured], error_rate)
    return [
        Verdict.INCONCLUSIVE if each.verdict is Verdict.EXCEEDS and not stands else each.verdict
        for each, stands in zip(tested, rejected[: len(tested)], strict=True)
    ]
