"""Verdicts: an overhead's interval against a budget."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harness.analysis.estimate import Estimate


class Verdict(StrEnum):
    """What a cell's measurement says of its budget."""

    WITHIN = "within"
    EXCEEDS = "exceeds"
    INCONCLUSIVE = "inconclusive"
    VOID = "void"
    UNJUDGED = "unjudged"


@dataclass(frozen=True, slots=True)
class Budget:
    """The overhead that is allowed: `share` of the host, 0.1 being 10 %. None is no budget."""

    share: float | None = None


def judge(overhead: Estimate | None, budget: Budget) -> Verdict:
    """`within` or `exceeds` only where the whole interval lies on one side of the budget, else `inconclusive`.

    No budget is `unjudged`. No estimate, or one round and so no interval, is `inconclusive`. `void` is never said
    here: it comes from the validity checks, not from the estimate.
    """
    if budget.share is None:
        return Verdict.UNJUDGED
    if overhead is None or overhead.low is None or overhead.high is None:
        return Verdict.INCONCLUSIVE
    if overhead.high <= budget.share:
        return Verdict.WITHIN
    if overhead.low > budget.share:
        return Verdict.EXCEEDS
    return Verdict.INCONCLUSIVE
