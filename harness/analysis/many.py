"""Verdicts over many cells: with 200 of them, a false alarm in 40 is five a run unless it is corrected for."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.judgement import Judgement
from harness.analysis.verdict import Verdict

_NOT_JUDGED = (Verdict.UNJUDGED, Verdict.VOID)


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


def survivors(judgements: Sequence[Judgement], alpha: float) -> list[Verdict]:
    """The verdicts of a run's cells, in their order: an `exceeds` that does not survive Holm is `inconclusive`.

    `alpha` is the probability of any false `exceeds` in the run: `Sequential.error_rate` of the plan it was judged by.
    All judged cells are the family; `unjudged` and `void` are not in it. `within` needs no correction: a run is fine
    only when every cell is within, and such a claim errs no more often than its parts (intersection-union test,
    Berger 1982); many cells make it harder to reach, not easier. ValueError as for `holm`.
    """
    judged = [number for number, judgement in enumerate(judgements) if judgement.verdict not in _NOT_JUDGED]
    rejected = holm([judgements[number].p_value for number in judged], alpha)
    stands = dict(zip(judged, rejected, strict=True))
    return [
        Verdict.INCONCLUSIVE if judgement.verdict is Verdict.EXCEEDS and not stands[number] else judgement.verdict
        for number, judgement in enumerate(judgements)
    ]
