"""Verdicts: intervals against a budget at planned looks, and the correction for many cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal, Protocol

from harness.analysis.estimate import (
    Estimate,
    benjamini_hochberg,
    estimate_overhead,
    log_ratios,
    make_estimate,
    spread_added,
)
from harness.analysis.samples import IN_ORDER, Samples, Spread

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

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
        _judge_limit(estimate, limit)
        for estimate, limit in ((overhead, budget.share), (added, budget.absolute))
        if limit is not None
    ]
    if not parts:
        return Verdict.UNJUDGED
    return _combine(parts, budget.both)


def is_above(value: float, limit: float) -> bool:
    """Whether `value` is above `limit` by more than the rounding of the arithmetic that led to it."""
    return value > limit and not math.isclose(value, limit, rel_tol=_ROUNDING)


def _judge_limit(estimate: Estimate | None, limit: float) -> Verdict:
    if estimate is None or estimate.low is None or estimate.high is None:
        return Verdict.INCONCLUSIVE
    if is_above(estimate.low, limit):
        return Verdict.EXCEEDS
    return Verdict.INCONCLUSIVE if is_above(estimate.high, limit) else Verdict.WITHIN


def _combine(parts: Collection[Verdict], both: Both | None) -> Verdict:
    """The verdict of one limit or of two. `both` says which verdict of a single limit is enough."""
    suffices, needs_all = Verdict.EXCEEDS, Verdict.WITHIN
    if both == "looser":
        suffices, needs_all = needs_all, suffices
    if suffices in parts:
        return suffices
    return needs_all if all(part is needs_all for part in parts) else Verdict.INCONCLUSIVE


class Tested(Protocol):
    """A tested hypothesis, "this cell exceeds this budget": its verdict alone, and its p value."""

    @property
    def verdict(self) -> Verdict: ...

    @property
    def p_value(self) -> float | None:
        """Over all looks at the cell; None without evidence: not enough rounds, or a void cell."""


def correct_verdicts(tested: Sequence[Tested], *, family: int, error_rate: float) -> list[Verdict]:
    """The verdicts of a run's budgets, in their order: an `exceeds` that does not stand among them is `inconclusive`.

    Benjamini & Hochberg (1995): of the budgets that are called exceeded, at most the share `error_rate` is expected to
    be kept in truth. If none is exceeded, this is the probability of any false `exceeds` in the run.

    `family` is the number of hypotheses that the run tests, including those that are not measured yet and those of void
    cells. It is known before the first measurement. So a verdict that stands after the first group stands at the end,
    and a failed check never makes an `exceeds` of another cell easier. A `family` smaller than `tested` counts as
    `len(tested)`. `error_rate` is `Sequential.error_rate` of the plan. `within` needs no correction: a run passes only
    if every cell is within, and such a claim is wrong no more often than its parts (intersection-union test, Berger
    1982). Many cells make it harder to reach, not easier.
    ValueError as for `benjamini_hochberg`.
    """
    unmeasured = max(family - len(tested), 0)
    rejected = benjamini_hochberg([*(hypothesis.p_value for hypothesis in tested), *[None] * unmeasured], error_rate)
    return [
        Verdict.INCONCLUSIVE if hypothesis.verdict is Verdict.EXCEEDS and not stands else hypothesis.verdict
        for hypothesis, stands in zip(tested, rejected[: len(tested)], strict=True)
    ]


def exceeds_p_value(
    host: Iterable[float],
    guest: Iterable[float],
    budget: Limit,
    *,
    higher_is_better: bool,
    samples: Samples = IN_ORDER,
) -> float | None:
    """The p value of "the budget is exceeded": how often a guest that just keeps the budget gives samples like these.

    `host[i]` and `guest[i]` are one block's pair; `samples` as for `estimate_overhead`. None without a budget, and
    where there is no interval: for one sample, for example. Student's paired t test, one-sided: for a share, on
    log(guest/host) against the log of the allowed ratio; for an absolute amount, on guest - host against the amount. A
    `looser` budget is exceeded if both limits are exceeded, so the larger p counts (intersection-union test, Berger
    1982). A `stricter` budget is exceeded if either limit is, so twice the smaller p counts (Bonferroni). Samples
    without any spread give 0 above the limit and 1 at or below it.

    It agrees with `judge`: p <= (1 - c) / 2 if and only if `judge` gives `exceeds` for intervals at
    `budget.interval_confidence(c)`. ValueError as for `estimate_overhead`, and for an absolute amount if higher is
    better: a loss of IOPS is judged as a share.
    """
    if budget.absolute is not None and higher_is_better:
        raise ValueError("an absolute budget needs a metric for which lower is better, such as a latency")
    hosts, guests = list(host), list(guest)
    spreads, p_values = [], []
    if budget.share is not None:
        spreads.append(samples.spread(log_ratios(hosts, guests)))
        p_values.append(_compute_share_p_value(spreads[-1], budget.share, higher_is_better))
    if budget.absolute is not None:
        spreads.append(spread_added(hosts, guests, samples))
        p_values.append(_compute_p_value(spreads[-1], budget.absolute))
    if not any(spread.has_interval for spread in spreads):
        return None
    if budget.both == "stricter":
        return min(1.0, 2 * min(p_values))
    return max(p_values)


def _compute_share_p_value(spread: Spread, share: float, higher_is_better: bool) -> float:
    if not higher_is_better:
        return _compute_p_value(spread, math.log1p(share))
    if share >= 1:
        # A guest cannot lose more than everything.
        return 1.0
    return _compute_p_value(replace(spread, mean=-spread.mean), -math.log1p(-share))


def _compute_p_value(spread: Spread, limit: float) -> float:
    """The one-sided test of a mean above the limit, with the error that the interval has."""
    above = is_above(spread.mean, limit)
    distance = spread.mean - limit
    return spread.p_above(distance if above else min(distance, 0.0))


def looks(first: int, most: int) -> tuple[int, ...]:
    """The numbers of rounds at which the data is looked at: each is half as large again as the one before.

    The first look is at `first` rounds, the last at `most`: 3 and 27 give 3, 5, 8, 12, 18, 27. A look is left out if
    `most` is less than half as large again: it would spend error for almost no gain. ValueError unless
    1 <= first <= most.
    """
    if not 1 <= first <= most:
        raise ValueError(f"the first look must be at 1 to {most} rounds (the most), not {first}")
    if first == most:
        return (most,)
    planned = [first]
    while (following := _grow(planned[-1])) < most and _grow(following) <= most:
        planned.append(following)
    return (*planned, most)


def _grow(rounds: int) -> int:
    return rounds + math.ceil(rounds / 2)


_PATHS = 50_000
"""Simulated series behind a boundary. The error of the probability of 5 % is 2 % of it, for which `_RESERVE` allows."""
_RESERVE = 1.03
_ANCHOR, _RARE = 0.05, 0.001
"""Levels between which the share of the union bound that looks really spend rises to 1, on a logarithmic scale."""
_STANDARD = NormalDist()


def _find_root(rises: Callable[[float], bool], low: float, high: float) -> float:
    """Where `rises` becomes true between `low` and `high`, by bisection."""
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if rises(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class Boundary:
    """The levels of planned looks, which hold together: the family of Wang & Tsiatis (1987) for Student's t.

    A look after the share w of the rounds rejects if the normal quantile of its p value is at least
    c w ** (shape - 1/2). `shape` 0.5 is Pocock's boundary and 0 that of O'Brien & Fleming. The sum of the looks' levels
    is the union bound. Neighbouring looks mostly reject together, so they spend only a share of it, which is simulated
    at the level of 5 % (`_measure_share`) and rises to 1 at rare levels, where the bound is nearly exact.
    """

    looks: tuple[int, ...]
    shape: float

    def level(self, alpha: float, rounds: int) -> float:
        """The two-sided level of the look at `rounds` if all looks together have the level `alpha`."""
        return self._at(self._solve(alpha), rounds) if len(self.looks) > 1 else alpha

    def final_level(self, alpha: float, rounds: int) -> float:
        """The level of a last look at `rounds`, which is not planned, or is one of fewer rounds than planned."""
        earlier = tuple(look for look in self.looks if look < rounds)
        if not earlier:
            return alpha
        return _measure_final_level((*earlier, rounds), tuple(self.level(alpha, look) for look in earlier), alpha)

    def adjust(self, p_value: float, rounds: int) -> float:
        """A one-sided p value of the look at `rounds` as one over all looks."""
        if len(self.looks) == 1 or p_value <= 0:
            return p_value
        if p_value >= 0.5:
            return 1.0
        bound = self._sum_levels(-_STANDARD.inv_cdf(p_value) * self._weight(rounds))
        # The level of which this is the union bound. Rare and frequent ones have the same share.
        if bound <= _RARE:
            return bound / 2
        if (frequent := bound * _measure_share(self)) >= _ANCHOR:
            return min(1.0, frequent / 2)
        return _find_root(lambda level: level / self._share(level) >= bound, _RARE, _ANCHOR) / 2

    def _weight(self, rounds: int) -> float:
        return math.pow(rounds / self.looks[-1], 0.5 - self.shape)

    def _at(self, constant: float, rounds: int) -> float:
        return math.erfc(constant / self._weight(rounds) / math.sqrt(2))

    def _sum_levels(self, constant: float) -> float:
        return math.fsum(self._at(constant, look) for look in self.looks)

    def _solve(self, alpha: float) -> float:
        bound = alpha / self._share(alpha)
        return _find_root(lambda constant: self._sum_levels(constant) <= bound, 0.0, 40.0)

    def _share(self, alpha: float) -> float:
        if alpha <= _RARE:
            return 1.0
        least = _measure_share(self)
        return least + (1 - least) * max(math.log(_ANCHOR / alpha), 0.0) / math.log(_ANCHOR / _RARE)


@cache
def _simulate_looks(looks: tuple[int, ...]) -> Floats:
    """The absolute normal quantiles of paired t tests at these numbers of samples, of shape (series, looks).

    The truth is that nothing differs. A look at one sample is taken as one of a known variance.
    """
    import numpy as np  # noqa: PLC0415
    from scipy.special import ndtri, stdtr  # noqa: PLC0415

    chance = np.random.default_rng(0)
    total, squares, before = np.zeros(_PATHS), np.zeros(_PATHS), 0
    quantiles = []
    for n in looks:
        more = n - before
        step = chance.normal(0, math.sqrt(more), _PATHS)
        total, before = total + step, n
        squares = squares + step**2 / more + (chance.chisquare(more - 1, _PATHS) if more > 1 else 0.0)
        if n == 1:
            quantiles.append(abs(total))
            continue
        t = abs(total) / np.sqrt(n * np.maximum(squares - total**2 / n, 1e-300) / (n - 1))
        quantiles.append(-ndtri(stdtr(n - 1, -t)))
    return np.stack(quantiles, axis=1)


@cache
def _measure_share(boundary: Boundary) -> float:
    """What looks with the level of 5 % together really spend, as a share of the sum of their levels."""
    import numpy as np  # noqa: PLC0415

    weights = np.array([boundary._weight(look) for look in boundary.looks])
    constant = float(np.quantile((_simulate_looks(boundary.looks) * weights).max(axis=1), 1 - _ANCHOR))
    return min(1.0, _RESERVE * _ANCHOR / boundary._sum_levels(constant))


@cache
def _measure_final_level(looks: tuple[int, ...], levels: tuple[float, ...], alpha: float) -> float:
    """The level that the last of these looks may have if those before it have `levels`."""
    import numpy as np  # noqa: PLC0415

    quantiles = _simulate_looks(looks)
    crossed = (quantiles[:, :-1] >= [-_STANDARD.inv_cdf(level / 2) for level in levels]).any(axis=1)
    left = round(max(alpha / _RESERVE * _PATHS - int(crossed.sum()), 1))
    last = np.sort(quantiles[~crossed, -1])[-left]
    return min(alpha, math.erfc(float(last) / math.sqrt(2)))


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the rounds so far, and its part of the error that all looks share."""

    rounds: int
    alpha: float
    """The probability with which this look's interval may miss the true value."""
    alpha_of_all: float
    """How often any look's interval may: 0.05 for 95 %."""
    boundary: Boundary | None = None
    """Of the planned looks, of which this is one; None for another last look."""

    @property
    def confidence(self) -> float:
        """What this look's intervals are made at, so that the intervals of all looks hold together as stated."""
        return 1 - self.alpha

    @property
    def error_rate(self) -> float:
        """The probability of a wrong one-sided verdict over all looks: 0.025 for 95 %."""
        return self.alpha_of_all / 2

    def adjusted(self, p_value: float) -> float:
        """`p_value` of this look as a p value over all looks, for comparison with `error_rate`; at most 1."""
        if self.boundary is not None:
            return self.boundary.adjust(p_value, self.rounds)
        return min(1.0, p_value * self.alpha_of_all / self.alpha)


@dataclass(frozen=True, slots=True)
class Sequential:
    """Looks at 3, 5, 8 ... rounds. Their intervals hold together with the stated confidence, whenever measuring stops.

    Each look makes Student's t interval at its own level, see `Boundary`. With `shape` 0.4, the levels rise slowly from
    look to look: a quiet cell can end after few rounds, and the last look has nearly half of alpha. With `first` =
    `most`, one look has all of alpha: the fixed design. ValueError for impossible values.
    """

    first: int
    most: int
    confidence: float = 0.95
    shape: float = 0.4

    def __post_init__(self) -> None:
        looks(self.first, self.most)
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must be a share between 0 and 1, for example 0.95, not {self.confidence}")
        if not 0 <= self.shape <= 0.5:
            raise ValueError(f"the shape of the boundary must be a number from 0 to 0.5, not {self.shape}")

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of rounds at which the data is looked at."""
        return looks(self.first, self.most)

    @property
    def error_rate(self) -> float:
        """The probability of a wrong one-sided verdict, whenever measuring stops: 0.025 for 95 %."""
        return (1 - self.confidence) / 2

    def reaching(self, rounds: int) -> Sequential:
        """The plan of a cell that has so many rounds: more than planned if its job was measured again."""
        return replace(self, most=rounds) if rounds > self.most else self

    def look(self, rounds: int, *, final: bool = False) -> Look | None:
        """The look at `rounds` rounds, or None if no look is planned there.

        `final` means that no round will follow because the time is spent. That does not depend on the measurements, so
        this look, planned or not, may spend everything that the looks at fewer rounds left. ValueError for fewer than
        one or more than `most` rounds.
        """
        if not 1 <= rounds <= self.most:
            raise ValueError(f"this plan has 1 to {self.most} rounds, not {rounds}")
        alpha, boundary = 1 - self.confidence, Boundary(self.looks, self.shape)
        if final and rounds < self.most:
            return Look(rounds, boundary.final_level(alpha, rounds), alpha)
        if rounds not in self.looks:
            return None
        return Look(rounds, boundary.level(alpha, rounds), alpha, boundary)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of one cell's samples at one look."""

    overhead: Estimate
    """Share of the host, with the look's interval."""
    added: Estimate | None
    """What the guest adds, in the metric's unit, with the look's interval; None if higher is better."""
    verdict: Verdict
    """The verdict of this cell alone. `correct_verdicts` gives the verdict of a cell among many."""
    p_value: float | None
    """The p value of "the budget is exceeded", over all looks; None without a budget or without an interval."""


def judge_look(
    host: Sequence[float],
    guest: Sequence[float],
    budget: Limit,
    look: Look,
    *,
    higher_is_better: bool,
    samples: Samples = IN_ORDER,
) -> Judgement:
    """The estimates of one cell's paired samples at `look`'s confidence, their verdict and adjusted p value.

    The verdict is `exceeds` if and only if the p value is at most `look.error_rate`. `samples` as for
    `estimate_overhead`. ValueError as for `estimate_overhead` and `exceeds_p_value`, and if the number of samples
    differs from the look's.
    """
    count = samples.count(len(host))
    if count != look.rounds:
        raise ValueError(f"this look needs {look.rounds} samples, not {count}")

    def estimates(confidence: float) -> tuple[Estimate, Estimate | None]:
        overhead = estimate_overhead(
            host, guest, higher_is_better=higher_is_better, confidence=confidence, samples=samples
        )
        if higher_is_better:
            return overhead, None
        return overhead, make_estimate(spread_added(host, guest, samples), overhead.n, confidence)

    overhead, added = estimates(look.confidence)
    judged, judged_added = estimates(budget.interval_confidence(look.confidence))
    p_value = exceeds_p_value(host, guest, budget, higher_is_better=higher_is_better, samples=samples)
    return Judgement(
        overhead,
        added,
        judge(judged, budget, judged_added),
        None if p_value is None else look.adjusted(p_value),
    )
