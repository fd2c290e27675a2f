"""The position of a point and its interval on a small drawing, in percent of its width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis import Estimate


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear scale for overheads from `low` to `high`, as shares. It always contains 0."""

    low: float
    high: float

    @classmethod
    def around(cls, estimates: Sequence[Estimate], limits: Sequence[float] = ()) -> Scale:
        """From 0 (or the largest gain, down to -100 %) to the next 10 % above the largest overhead or limit."""
        points = [*(estimate.point for estimate in estimates), *limits]
        high = max([0.1, *points])
        low = min([0.0, *points])
        return cls(max(-1.0, -_up(-low)), _up(high * 1.08))

    @property
    def ticks(self) -> tuple[float, ...]:
        """Shares at steps of 10, 20, 50 % or more, at most seven."""
        step = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 1e9) if (self.high - self.low) / step <= 6.001)
        first = round(self.low / step + 0.499)
        return tuple(number * step for number in range(first, int(self.high / step + 1e-9) + 1))

    def at(self, share: float | None) -> float:
        """The position in percent of the width, limited to the drawing."""
        place = ((share or 0.0) - self.low) / (self.high - self.low) * 100
        return round(max(0.0, min(100.0, place)), 2)


def _up(share: float) -> float:
    """The next multiple of 10 %."""
    return round(-(-share * 10 // 1) / 10, 1)
