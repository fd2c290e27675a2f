"""The latencies of one job as charts show them: whole distributions, and latency over load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from harness.analysis import METRICS, Calls, Estimate, LatencyHistogram, quantiles
from harness.report.arms import ArmOfCell, arms_of
from harness.report.cells import CellView
from harness.results import PooledPercentile

STEPS_OF_DECADE = 10
"""A curve of percentiles has so many points from 90 % to 99 %, from 99 % to 99.9 %, and so on."""
_MOST_DECADES = 8

CALLS: Mapping[Calls, str] = {"ios": "Latency", "syncs": "Latency of fdatasync"}
"""What the charts of these calls show."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """All latencies of one arm, of all blocks together."""

    arm: ArmOfCell
    of: Calls
    histogram: LatencyHistogram
    marks: tuple[tuple[float, PooledPercentile], ...]
    """The percentiles that the tables have too, by quantile, with the interval from the sampling of I/Os."""

    @property
    def curve(self) -> tuple[float, ...]:
        """The latencies in seconds at 0, 0.1, 0.2, ... on the axis -log10(1 - q), as in plots of HdrHistogram.

        It ends where fewer than 10 I/Os are slower.
        """
        shares = (1 - 10 ** (-step / STEPS_OF_DECADE) for step in range(_MOST_DECADES * STEPS_OF_DECADE))
        return tuple(latency for latency in quantiles(self.histogram, shares) if latency is not None)

    @property
    def mean(self) -> Estimate | None:
        """The mean latency over the blocks, in seconds."""
        return self.arm.mean("sync_mean" if self.of == "syncs" else self.arm.cell.latency_name)

    def mark(self, quantile: float) -> PooledPercentile | None:
        return dict(self.marks).get(quantile)


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """An arm at one iodepth: its throughput, and its latency in seconds."""

    iodepth: int
    throughput: Estimate
    mean: Estimate
    p99: Estimate | None
    """None with too few I/Os."""


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """An arm over the iodepths, the smallest first."""

    arm: ArmOfCell
    points: tuple[LoadPoint, ...]


@dataclass(frozen=True, slots=True)
class LatencyView:
    """The latencies of one workload."""

    distributions: Mapping[Calls, Mapping[int, tuple[Distribution, ...]]]
    """By kind of call and iodepth; without those that have none, as in a run of an older version."""
    load: tuple[LoadCurve, ...]


def latency_view(cells: Sequence[CellView]) -> LatencyView:
    """The latencies of the cells of one workload."""
    depths = sorted({cell.iodepth for cell in cells})
    by_depth = {depth: [cell for cell in cells if cell.iodepth == depth] for depth in depths}
    found = {
        of: {depth: arms for depth, own in by_depth.items() if (arms := distributions(own, of))}
        for of in get_args(Calls)
    }
    return LatencyView({of: own for of, own in found.items() if own}, load_curves(cells))


def decades(quantile: float) -> float:
    """The place of a percentile on the axis of the curves: 0.9 is at 1, 0.99 at 2, 0.999 at 3."""
    return -math.log10(1 - quantile)


def distributions(cells: Sequence[CellView], of: Calls = "ios") -> tuple[Distribution, ...]:
    """The arms of one job whose latencies are stored. None in a run of an older version."""
    found = []
    for arm in arms_of(cells):
        histogram = arm.cell.record.histograms.get(of, {}).get(arm.source)
        if histogram is not None:
            found.append(Distribution(arm, of, histogram, tuple(_marks(arm, of))))
    return tuple(found)


def _marks(arm: ArmOfCell, of: Calls) -> list[tuple[float, PooledPercentile]]:
    return [
        (quantile, pooled)
        for name, metric in arm.cell.record.metrics.items()
        if METRICS[name].of == of and (quantile := METRICS[name].quantile) is not None
        if (pooled := metric.pooled.get(arm.source)) is not None
    ]


def load_curves(cells: Sequence[CellView]) -> tuple[LoadCurve, ...]:
    """The host and the guest of each mode, for the cells of one workload that were measured at several depths.

    Arms with one depth have no curve. Jobs at a fixed rate have no such curves: the load is the same at all depths.
    """
    points: dict[tuple[str, str | None], list[tuple[ArmOfCell, LoadPoint]]] = {}
    for depth in sorted({cell.iodepth for cell in cells}):
        for arm in arms_of(cell for cell in cells if cell.iodepth == depth and not cell.rated):
            if arm.place != "twin" and (point := _load_point(arm)) is not None:
                points.setdefault((arm.place, arm.mode), []).append((arm, point))
    return tuple(
        LoadCurve(several[0][0], tuple(point for _, point in several))
        for several in points.values()
        if len(several) > 1
    )


def _load_point(arm: ArmOfCell) -> LoadPoint | None:
    throughput, mean = arm.throughput, arm.mean(arm.cell.latency_name)
    if throughput is None or mean is None:
        return None
    return LoadPoint(arm.cell.iodepth, throughput, mean, arm.mean("clat_p99"))
