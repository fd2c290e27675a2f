"""The blocks of one job in the order in which they were measured: each arm's values, their spread and drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, stdev

from harness.analysis import METRICS, Estimate, Metric, estimate_drift
from harness.report.arms import ArmOfCell, arms_of
from harness.report.cells import CellView
from harness.report.numbers import count, percent, percent_interval, signed_percent


@dataclass(frozen=True, slots=True)
class Block:
    """One value of an arm."""

    at: float
    """Minutes since the run began, or the number of the block from 1 in a run of an older version."""
    value: float
    """In the metric's unit."""
    round: int
    number: int
    """Within the round."""
    boot: int


@dataclass(frozen=True, slots=True)
class ArmBlocks:
    """An arm's blocks in the order of time, at least one."""

    arm: ArmOfCell
    metric: Metric
    timed: bool
    """Whether it is known when the blocks were measured."""
    blocks: tuple[Block, ...]

    @property
    def mean(self) -> float:
        """The geometric mean, as in the tables of the workload."""
        return geometric_mean(self.values)

    @property
    def shown_mean(self) -> float:
        """The mean in the unit of the reports."""
        return self.mean / self.metric.shown.scale

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(block.value for block in self.blocks)

    @property
    def furthest(self) -> float:
        """The largest distance of a block from the mean, as a share of the mean."""
        return max(abs(value / self.mean - 1) for value in self.values)

    @property
    def spread(self) -> str:
        """The standard deviation in percent of the mean; a dash with one block."""
        return percent(stdev(self.values) / self.mean if len(self.blocks) > 1 else None)

    @property
    def ends(self) -> str:
        """The smallest and the largest value in percent of the mean: "-3.1 to +2.4"."""
        return " to ".join(signed_percent(end / self.mean - 1) for end in (min(self.values), max(self.values)))

    @property
    def drift(self) -> Estimate | None:
        """The change from the first block to the last, along a line through all; None without two times."""
        if len({block.at for block in self.blocks}) < 2:
            return None
        return estimate_drift([block.at for block in self.blocks], self.values)

    @property
    def change(self) -> str:
        """The drift in percent: "+1.2 [-0.4, 2.9]"."""
        drift = self.drift
        return f"{signed_percent(drift.point)} {percent_interval(drift)}".rstrip() if drift else percent(None)

    @property
    def boots(self) -> tuple[float, ...]:
        """Where a boot of the guest begins, but for the first."""
        pairs = zip(self.blocks, self.blocks[1:], strict=False)
        return tuple(after.at for before, after in pairs if before.boot != after.boot)


def arm_blocks(cells: Sequence[CellView], started: float) -> tuple[ArmBlocks, ...]:
    """The arms of one job in the metric that judges it. `started` is the begin of the run, in seconds since 1970."""
    found = []
    for arm in arms_of(cells):
        record, name = arm.cell.record, arm.cell.headline_name
        values: tuple[float, ...] = getattr(record.metrics.get(name), arm.source, ())
        if not values or len(values) != len(record.rounds):
            continue
        timed = len(record.times) == len(values)
        at = [(time - started) / 60 for time in record.times] if timed else range(1, len(values) + 1)
        boots = record.boots or (1,) * len(values)
        numbers = (number for _, number in record.samples)
        blocks = map(Block, at, values, record.rounds, numbers, boots)
        found.append(ArmBlocks(arm, METRICS[name], timed, tuple(sorted(blocks, key=lambda block: block.at))))
    return tuple(found)


def blocks_by_depth(cells: Sequence[CellView], started: float) -> dict[int, tuple[ArmBlocks, ...]]:
    """The arms of the cells of one workload, by iodepth; without depths that have no values."""
    depths = sorted({cell.iodepth for cell in cells})
    found = {depth: arm_blocks([cell for cell in cells if cell.iodepth == depth], started) for depth in depths}
    return {depth: arms for depth, arms in found.items() if arms}


def rounds_of(found: Sequence[ArmBlocks]) -> tuple[tuple[float, float], ...]:
    """Where each round has its first and its last block, over all arms; without rounds in which all began at once."""
    by_round: dict[int, list[float]] = {}
    for each in found:
        for block in each.blocks:
            by_round.setdefault(block.round, []).append(block.at)
    return tuple((min(own), max(own)) for _, own in sorted(by_round.items()) if min(own) < max(own))


def order_sentence(by_depth: Mapping[int, Sequence[ArmBlocks]]) -> str:
    """How many blocks the arm with the most has: "20 blocks in 4 rounds and 2 boots"."""
    most = max((arm for arms in by_depth.values() for arm in arms), key=lambda arm: len(arm.blocks))
    rounds, boots = ({getattr(block, what) for block in most.blocks} for what in ("round", "boot"))
    words = f"{count(len(most.blocks), 'block')} in {count(len(rounds), 'round')}"
    return words + (f" and {count(len(boots), 'boot')}" if len(boots) > 1 else "")
