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
"""Relative: a value this close to a limit counts as equal to it. A guest at exactly 90 % of its host keeps 10 %."""


class Verdict(StrEnum):
    """The result of a cell's measurement against its budget."""

    WITHIN = "within"
    EXCEEDS = "exceeds"
    INCONCLUSIVE = "inconclusive"
    VOID = "void"
    UNJUDGED = "unjudged"


@dataclass(frozen=True, slots=True)
class Limit:
    """The allowed overhead; without any limit, there is no budget. ValueError for impossible limits."""

    share: float | None = None
    """As a share of the host: 0.1 is 10 %. Above -1; below 0, the guest must be better than the host."""
    absolute: float | None = None
    """What the guest may add, in the unit of a metric for which lower is better: seconds of latency."""
    both: Both | None = None
    """Needed with two limits: `looser` is kept if either limit is kept, `stricter` if both are."""

    def __post_init__(self) -> None:
        if self.share is not None and not -1 < self.share < math.inf:
            raise ValueError(f"a budget's share must be a finite number above -1, for example 0.1, not {self.share}")
        if self.absolute is not None and not math.isfinite(self.absolute):
            raise ValueError(f"a budget's absolute amount must be a finite number, not {self.absolute}")
        if self.both not in (None, "looser", "stricter"):
            raise ValueError(f'a budget with two limits must be "looser" or "stricter", not "{self.both}"')
        two = self.share is not None and self.absolute is not None
        if two and self.both is None:
            raise ValueError("a budget with a share and an absolute amount must say which holds: looser or stricter")
        if self.both is not None and not two:
            raise ValueError(f"a budget that is {self.both} needs both a share and an absolute amount")

    @property
    def is_set(self) -> bool:
        """Whether there is any limit."""
        return self.share is not None or self.absolute is not None

    def interval_confidence(self, confidence: float) -> float:
        """The confidence of each interval at which `exceeds` is wrong as rarely as with one interval at `confidence`.

        Either of two intervals can break a `stricter` budget, so each gets half of the error (Bonferroni). All other
        budgets need no more than `confidence` itself: only both intervals together break a `looser` budget.
        """
        return (1 + confidence) / 2 if self.both == "stricter" else confidence


def judge(overhead: Estimate | None, budget: Limit, added: Estimate | None = None) -> Verdict:
    """`within` or `exceeds` if the whole interval lies on one side of the budget, else `inconclusive`.

    `overhead` is a share of the host and is compared with `budget.share`; `added` is in the metric's unit and is
    compared with `budget.absolute`. Make both at `budget.interval_confidence(...)`. Without a budget, the verdict is
    `unjudged`. Without an estimate, or with one round and so no interval, it is `inconclusive`. It is never `void`
    here: that comes from the validity checks.

    With intervals at 95 %, `exceeds` is wrong at most once in 40 times, and so is `within`. `within` a `looser` budget
    may be wrong once in 20 times, because either of two intervals is enough.
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
    """The verdict of one limit or of two. `both` says which verdict of a single limit is enough."""
    suffices, needs_all = Verdict.EXCEEDS, Verdict.WITHIN
    if both == "looser":
        suffices, needs_all = needs_all, suffices
    if suffices in parts:
        return suffices
    return needs_all if all(part is needs_all for part in parts) else Verdict.INCONCLUSIVE
