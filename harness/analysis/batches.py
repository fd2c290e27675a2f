"""Batches: successive blocks whose I/Os together are one sample of a percentile. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise

Ios = Sequence[Sequence[int]]
"""The number of I/Os by arm, and by block in the order of time."""


def batches(ios: Ios, fewest: int, boots: Sequence[int] = ()) -> list[range]:
    """The numbers of the blocks of each batch, from 0 on. In each, every arm completed at least `fewest` I/Os.

    A batch has blocks that follow each other, and every block is in one batch. There are as many batches as possible
    whose numbers of blocks differ by at most one, so a slow block weighs as much as a fast one (batch means: Schmeiser,
    Batch size effects in the analysis of simulation output, 1982). `boots` has the boot of each block; empty: all are
    of one. A batch has blocks of one boot, unless a boot has too few I/Os for one batch. Then each batch has
    whole boots. Empty if all blocks together have too few I/Os. ValueError if the arms or the boots are not for the
    same blocks, without an arm, or for `fewest` below 1.
    """
    blocks = len(ios[0]) if ios else 0
    if not ios or any(len(io) != blocks for io in (*ios, *([boots] if boots else []))):
        raise ValueError(
            "batches need the I/Os of at least one arm, and as many numbers of each arm as there are boots"
        )
    if fewest < 1:
        raise ValueError(f"a percentile needs at least one I/O, not {fewest}")
    ends = [0, *accumulate(len(list(own)) for _, own in groupby(boots or (0,) * blocks))]
    in_boots = [_evenly(ios, range(first, end), fewest) for first, end in pairwise(ends)]
    if all(in_boots):
        return [batch for ranges in in_boots for batch in ranges]
    of_boots = [[sum(arm[first:end]) for first, end in pairwise(ends)] for arm in ios]
    whole_boots = _evenly(of_boots, range(len(ends) - 1), fewest)
    return [range(ends[batch.start], ends[batch.stop]) for batch in whole_boots]


def first_blocks(sizes: Sequence[int]) -> list[int]:
    """The number of the first block of each batch, from the numbers of blocks in the batches."""
    return [0, *accumulate(sizes[:-1])] if sizes else []


def fewest_rounds(ios_of_block: float, fewest: int, blocks: int, *, reboot: bool) -> int | None:
    """After how many rounds a percentile has two samples, the fewest that give an interval.

    `ios_of_block` is the mean number of I/Os in a block of the slowest arm, `fewest` how many a sample needs, and
    `blocks` the number of blocks in a round. With `reboot`, the samples are boots, and each round is a boot. None if
    the arm completes no I/O.
    """
    if ios_of_block <= 0:
        return None
    of_sample = math.ceil(fewest / ios_of_block)
    return 2 * math.ceil(of_sample / blocks) if reboot else math.ceil(2 * of_sample / blocks)


def _evenly(ios: Ios, blocks: range, fewest: int) -> list[range]:
    """The most batches of these blocks that have enough I/Os, and numbers of blocks that differ by at most one."""
    reached = [[0, *accumulate(arm[blocks.start : blocks.stop])] for arm in ios]
    number = min(len(blocks), *(arm[-1] // fewest for arm in reached))
    while number:
        ends = [len(blocks) * index // number for index in range(number + 1)]
        if all(arm[end] - arm[first] >= fewest for arm in reached for first, end in pairwise(ends)):
            return [blocks[first:end] for first, end in pairwise(ends)]
        number -= 1
    return []
