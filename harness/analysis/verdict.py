"""Verdicts: intervals against a budget."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from harness.analysis.estimate import Estimate

Both = Literal["looser", "stricter"]

_ROUNDING = 1e-9
"""Relative: what is this close to a limit is at the limit. A guest at exactly 90 % of its host keeps 10 %."""


class Verdict(StrEnum):
    """What a cell's measurement says of its budget."""

    WITHIN = "within"
    EXCEEDS = "exceeds"
    INCONCLUSIVE = "inconclusive"
    VOID = "void"
    UNJUDGED = "unjudged"


@dataclass(frozen=True, slots=True)
class Limit:
    """The overhead that is allowed; without any limit, no budget. ValueError for limits that cannot be meant."""

    share: float | None = None
    """Of the host: 0.1 is 10 %. Above -1; below 0 the guest has to be better than the host."""
    absolute: float | None = None
    """Added by the guest, in the unit of a metric where lower is better: seconds of latency."""
    both: Both | None = None
    """Needed with two limits: `looser` is kept when either is kept, `stricter` when both are."""

    def __post_init__(self) -> None:
        if self.share is not None and not -1 < self.share < math.inf:
            raise ValueError(f"a budget's share is a finite number above -1, for example 0.1, not {self.share}")
        if self.absolute is not None and not math.isfinite(self.absolute):
            raise ValueError(f"a budget's absolute amount is a finite number, not {self.absolute}")
        if self.both not in (None, "looser", "stricter"):
            raise ValueError(f"of a budget's two limits the looser or the stricter holds, not the {self.both}")
        two = self.share is not None and self.absolute is not None
        if two and self.both is None:
            raise ValueError("a budget with a share and an absolute amount says which holds: looser or stricter")
        if self.both is not None and not two:
            raise ValueError(f"{self.both} compares a budget's share with its absolute amount: it needs both")

    @property
    def is_set(self) -> bool:
        """Whether there is anything to judge by."""
        return self.share is not None or self.absolute is not None

    def interval_confidence(self, confidence: float) -> float:
        """The confidence that intervals need for a verdict to say `exceeds` as rarely as one at `confidence` does.

        Either of two intervals can break a `stricter` budget, so each gets half of the error (Bonferroni). All others
        need no more than `confidence` itself: a `looser` budget is broken only by both.
        """
        return (1 + confidence) / 2 if self.both == "stricter" else confidence


def judge(overhead: Estimate | None, budget: Limit, added: Estimate | None = None) -> Verdict:
    """`within` or `exceeds` only where the whole interval lies on one side of the budget, else `inconclusive`.

    `overhead` is a share of the host and is held against `budget.share`; `added`, in the metric's unit, against
    `budget.absolute`; make both at `budget.interval_confidence(...)`. No budget is `unjudged`. No estimate, or one
    round and so no interval, is `inconclusive`. `void` is never said here: it comes from the validity checks.

    With intervals at 95 %, `exceeds` is wrong at most once in 40 times, and so is `within`; but `within` a `looser`
    budget, for which either of two intervals is enough, up to once in 20.
    """
    parts = [
        _side(estimate, limit)
        for estimate, limit in ((overhead, budget.share), (added, budget.absolute))
        if limit is not None
    ]
    if not parts:
        return Verdict.UNJUDGED
    return _combined(parts, budget.both)


def is_above(value: float, limit: float) -> bool:
    """Whether `value` is above `limit` by more than the rounding of the arithmetic that led to it."""
    return value > limit and not math.isclose(value, limit, rel_tol=_ROUNDING)


def _side(estimate: Estimate | None, limit: float) -> Verdict:
    if estimate is None or estimate.low is None or estimate.high is None:
        return Verdict.INCONCLUSIVE
    if is_above(estimate.low, limit):
        return Verdict.EXCEEDS
    return Verdict.INCONCLUSIVE if is_above(estimate.high, limit) else Verdict.WITHIN


def _combined(parts: Collection[Verdict], both: Both | None) -> Verdict:
    """One limit's verdict, or that of two: which of them suffices alone is what `both` says."""
    suffices, needs_all = Verdict.EXCEEDS, Verdict.WITHIN
    if both == "looser":
        suffices, needs_all = needs_all, suffices
    if suffices in parts:
        return suffices
    return needs_all if all(part is needs_all for part in parts) else Verdict.INCONCLUSIVE
