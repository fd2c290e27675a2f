"""Bringing a disk to its steady state before it is measured: `conditioning = "steady"` of a profile.

A new SSD writes faster than it will later. So each region is written twice at 128 KiB, then the job with the highest
load runs on it in rounds of 10 s until the last five rounds keep SNIA's criteria (`criteria.py`), at most 25 times
(`measuring.py`). A disk that does not become steady is measured too: `regions.py` warns, and draws the rounds. Without
this feature, profiles fill the regions once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.feature import Conditioner, Feature

if TYPE_CHECKING:
    from harness.measure.prepare import FilledRegions
    from harness.report.blocks import Banner, Block
    from harness.results import ConditioningRecord, Run


def _condition(filled: FilledRegions) -> ConditioningRecord:
    from harness.features.steady.measuring import make_steady

    return make_steady(filled)


def _yield_blocks(disk: str, record: ConditioningRecord, key: str) -> Iterable[Block]:
    from harness.features.steady.regions import region_blocks

    return region_blocks(disk, record, key)


def _warn(run: Run) -> Iterable[Banner]:
    from harness.features.steady.regions import warn_of_unsteady_disks

    return warn_of_unsteady_disks(run)


FEATURE = Feature(
    name="steady",
    # SNIA SSS PTS v2, workload-independent preconditioning.
    conditioner=Conditioner(
        name="steady",
        fills=2,
        block=128 * 1024,
        rounds=(5, 25),
        seconds=10.0,
        run=_condition,
        contents=_yield_blocks,
        banners=_warn,
    ),
)
