"""Interim looks at the rounds: when they take place, and how much error each look may spend."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


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
    while (following := _grown(planned[-1])) < most and _grown(following) <= most:
        planned.append(following)
    return (*planned, most)


def _grown(rounds: int) -> int:
    return rounds + math.ceil(rounds / 2)


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the rounds so far, and its part of the error that all looks share."""

    rounds: int
    alpha: float
    """The probability with which this look's interval may miss the true value."""
    alpha_of_all: float
    """How often any look's interval may: 0.05 for 95 %."""

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
        return min(1.0, p_value * self.alpha_of_all / self.alpha)


@dataclass(frozen=True, slots=True)
class Sequential:
    """Looks at 3, 5, 8 ... rounds. Their intervals hold together with the stated confidence, whenever measuring stops.

    Method: an alpha-spending function (Lan & DeMets 1983) of the power family (Kim & DeMets 1987):
    after n of `most` rounds, alpha * (n / most) ** `exponent` is spent. Each look gets the alpha that became available
    since the look before, and makes Student's t interval at that level. By the union bound, all intervals hold together
    at least as often as `confidence` says, for any number of rounds. The method uses no normal approximation, which is
    not valid for 3 rounds, and makes no assumption about the dependence between looks. In return, it is conservative.

    The exponent 0.5 spends early, so that a quiet cell can end after 3 or 5 rounds. 1 spends evenly. With
    `first` = `most`, one look has all of alpha: the fixed design. ValueError for impossible values.
    """

    first: int
    most: int
    confidence: float = 0.95
    exponent: float = 0.5

    def __post_init__(self) -> None:
        looks(self.first, self.most)
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must be a share between 0 and 1, for example 0.95, not {self.confidence}")
        if not 0 < self.exponent < math.inf:
            raise ValueError(
                f"the exponent of the spending function must be a finite number above 0, not {self.exponent}"
            )

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
        this look, planned or not, may spend everything that the looks at fewer rounds left. The last planned look is
        always final. ValueError for fewer than one or more than `most` rounds.
        """
        if not 1 <= rounds <= self.most:
            raise ValueError(f"this plan has 1 to {self.most} rounds, not {rounds}")
        if rounds not in self.looks and not final:
            return None
        alpha = 1 - self.confidence
        before = max((self._spent(earlier) for earlier in self.looks if earlier < rounds), default=0.0)
        until = 1.0 if final else self._spent(rounds)
        return Look(rounds, alpha * (until - before), alpha)

    def _spent(self, rounds: int) -> float:
        """The share of alpha that may be spent after `rounds` rounds."""
        return math.pow(rounds / self.most, self.exponent)
