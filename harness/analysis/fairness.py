"""How fairly several users share a resource: Jain's index, with an interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from harness.analysis.estimate import Estimate
from harness.analysis.student import t_quantile

FEWEST_BLOCKS = 3
"""The fewest blocks for an interval."""


def jain_index(amounts: Sequence[float]) -> float:
    """Jain's fairness index of what each user got: (sum x)^2 / (n * sum x^2), from 1/n to 1.

    1 if all got the same, k/n if k of n users share everything equally. It does not depend on the unit. Source: R.
    Jain, D. Chiu, W. Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared
    Computer Systems", DEC Research Report TR-301, 1984. ValueError for no user, or amounts that are negative, not
    finite or all 0.
    """
    if not amounts or any(not math.isfinite(amount) or amount < 0 for amount in amounts) or not any(amounts):
        raise ValueError(f"amounts must be finite, not negative and not all 0, not {list(amounts)}")
    # Divided by the largest, the squares can neither overflow nor vanish.
    shares = [amount / max(amounts) for amount in amounts]
    index = math.fsum(shares) ** 2 / (len(shares) * math.fsum(share * share for share in shares))
    return min(max(index, 1 / len(shares)), 1.0)


def fairness(blocks: Sequence[Sequence[float]], *, confidence: float = 0.95) -> Estimate:
    """Jain's index of what users got in all blocks together. `blocks[i][j]` is the amount of user j in block i.

    The index of a single short block is smaller, because chance does not favour the same user in every block. So the
    amounts are added up first. The interval is that of the jackknife over the blocks, with Student's t (Tukey 1958;
    Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 11), within 1/n and 1. Fewer than three
    blocks give no interval. ValueError as for `jain_index`, and for blocks of different length.
    """
    users = len(blocks[0]) if blocks else 0
    if any(len(block) != users for block in blocks):
        raise ValueError("each block needs an amount of each user")
    totals = [math.fsum(block[user] for block in blocks) for user in range(users)]
    point, n = jain_index(totals), len(blocks)
    if n < FEWEST_BLOCKS:
        return Estimate(point, None, None, n)
    without = [
        jain_index([max(total - one, 0.0) for total, one in zip(totals, block, strict=True)]) for block in blocks
    ]
    mean = fmean(without)
    error = math.sqrt((n - 1) / n * math.fsum((each - mean) ** 2 for each in without))
    half = t_quantile((1 + confidence) / 2, n - 1) * error
    return Estimate(point, max(point - half, 1 / users), min(point + half, 1.0), n)
