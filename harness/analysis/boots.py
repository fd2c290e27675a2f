"""How much the boots of a guest differ: one-way random effects."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, slots=True)
class BootVariance:
    """The variance of log ratios, divided into that of boots and that of blocks within a boot."""

    between: float
    """The variance of the boots' true means. 0 if they differ no more than their blocks explain."""
    within: float
    """The variance of blocks within a boot."""
    low: float
    """The lower end of the interval of `share`."""
    high: float
    """Its upper end."""
    boots: int

    @property
    def share(self) -> float:
        """The boots' share of the total variance, the intraclass correlation: 0 to 1."""
        total = self.between + self.within
        return self.between / total if total > 0 else 0.0

    @property
    def shown(self) -> bool:
        """Whether boots differ beyond chance."""
        return self.low > 0


def boot_variance(ratios: Iterable[Sequence[float]], *, confidence: float = 0.95) -> BootVariance:
    """How much boots differ, from the log ratios of each boot's blocks.

    The components are those of the analysis of variance with random effects (Searle, Casella & McCulloch, Variance
    Components, 1992), also for boots with different numbers of blocks. The interval of the share is the exact one
    of the F distribution (the same book), with the mean size for boots of different sizes. It is for blocks
    that are independent within a boot; correlated blocks look like a variance of boots. ValueError for fewer than two
    boots with blocks, no boot with two blocks, values that are not finite, or an impossible confidence.
    """
    from scipy.special import fdtri  # noqa: PLC0415

    groups = [list(group) for group in ratios if len(group)]
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a share between 0 and 1, for example 0.95, not {confidence}")
    if not all(math.isfinite(each) for group in groups for each in group):
        raise ValueError("log ratios must be finite")
    count, boots = sum(map(len, groups)), len(groups)
    if boots < 2:
        raise ValueError(f"the variance of boots needs at least two boots, not {boots}")
    if count == boots:
        raise ValueError("the variance of boots needs a boot with at least two blocks")
    mean = fmean(each for group in groups for each in group)
    means = [fmean(group) for group in groups]
    between_squares = math.fsum(len(group) * (own - mean) ** 2 for group, own in zip(groups, means, strict=True))
    within_squares = math.fsum((each - own) ** 2 for group, own in zip(groups, means, strict=True) for each in group)
    among, inside = between_squares / (boots - 1), within_squares / (count - boots)
    size = (count - sum(len(group) ** 2 for group in groups) / count) / (boots - 1)
    if inside == 0:
        share = 1.0 if among > 0 else 0.0
        return BootVariance(among / size, 0.0, share, share, boots)

    def share_at(quantile: float) -> float:
        ratio = among / inside / float(fdtri(boots - 1, count - boots, quantile))
        return min(max((ratio - 1) / (size + ratio - 1), 0.0), 1.0)

    tail = (1 - confidence) / 2
    return BootVariance(max((among - inside) / size, 0.0), inside, share_at(1 - tail), share_at(tail), boots)
