"""The metrics of a measurement. Only this module declares them: how to read a metric, its unit, and how to show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol

from harness.analysis.adjusted import HALF_BIN
from harness.analysis.histogram import fewest_ios, merged, percentile

Better = Literal["higher", "lower"]
Calls = Literal["ios", "syncs"]
"""The calls that a metric is about: reads and writes, or fdatasync."""
Unit = Literal["IO/s", "B/s", "s"]

_NS = 1e9


class Latencies(Protocol):
    """The latencies of one direction as fio prints them, in ns."""

    @property
    def mean(self) -> float: ...

    @property
    def bins(self) -> Mapping[int, int]:
        """Completions by latency."""


class MeasuredDirection(Protocol):
    """What fio measured of a job's reads, or of its writes."""

    @property
    def iops(self) -> float: ...

    @property
    def bw_bytes(self) -> int: ...

    @property
    def total_ios(self) -> int: ...

    @property
    def lat_ns(self) -> Latencies: ...

    @property
    def clat_ns(self) -> Latencies: ...


@dataclass(frozen=True, slots=True)
class CompletedIo:
    """What a job completed. `sides` are the directions in which it completed I/Os, at least one.

    `syncs` are the latencies of fdatasync; None if the job did not call it.
    """

    sides: Sequence[MeasuredDirection]
    syncs: Latencies | None = None


Reading = Callable[[CompletedIo], float | None]
"""From what a job completed to its value, in the metric's unit; None for too few I/Os, or if it has no such value."""


@dataclass(frozen=True, slots=True)
class Shown:
    """How reports show values of a unit."""

    unit: str
    scale: float
    """Reports divide a stored value by it."""


SHOWN: Mapping[Unit, Shown] = MappingProxyType(
    {"IO/s": Shown("IOPS", 1.0), "B/s": Shown("MB/s", 1e6), "s": Shown("us", 1e-6)}
)


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a measurement. Values are stored in `unit`: I/Os per second, bytes per second, or seconds."""

    name: str
    unit: Unit
    better: Better
    label: str
    """What the metric is, in words."""
    read: Reading
    quantile: float | None = None
    """The quantile of a percentile, for example 0.99 for p99; None for other metrics."""
    of: Calls = "ios"

    @property
    def higher_is_better(self) -> bool:
        return self.better == "higher"

    @property
    def is_latency(self) -> bool:
        return self.unit == "s"

    @property
    def fewest_ios(self) -> int:
        """How many I/Os a sample needs: 10 / (1 - q) for a percentile."""
        return 1 if self.quantile is None else fewest_ios(self.quantile)

    @property
    def resolution(self) -> float:
        """How far a value may be off because of fio's bins, as a share of it; 0 for what fio does not bin."""
        return 0.0 if self.quantile is None else HALF_BIN

    @property
    def shown(self) -> Shown:
        return SHOWN[self.unit]


@dataclass(frozen=True, slots=True)
class _OfAll:
    mean: float
    bins: Mapping[int, int]


def merge_syncs(several: Sequence[Latencies]) -> Latencies | None:
    """The latencies of the calls of jobs that ran at the same time, together; None without calls."""
    calls = [sum(latencies.bins.values()) for latencies in several]
    if not sum(calls):
        return None
    mean = sum(latencies.mean * number for latencies, number in zip(several, calls, strict=True)) / sum(calls)
    return _OfAll(mean, merged(latencies.bins for latencies in several))


def _average_latency(done: CompletedIo, of: Callable[[MeasuredDirection], Latencies]) -> float:
    """The mean latency of the I/Os of all directions, in seconds."""
    sides = done.sides
    return sum(of(side).mean * side.total_ios for side in sides) / sum(side.total_ios for side in sides) / _NS


def _make_clat_percentile(name: str, quantile: float) -> Metric:
    def read(done: CompletedIo) -> float | None:
        return percentile(merged(side.clat_ns.bins for side in done.sides), quantile)

    label = f"latency from submission that {quantile * 100:g} % of the I/Os do not exceed"
    return Metric(name, "s", "lower", label, read, quantile)


def _sync_mean(done: CompletedIo) -> float | None:
    return None if done.syncs is None else done.syncs.mean / _NS


def _make_sync_percentile(name: str, quantile: float) -> Metric:
    def read(done: CompletedIo) -> float | None:
        return None if done.syncs is None else percentile(done.syncs.bins, quantile)

    label = f"latency of fdatasync that {quantile * 100:g} % of the calls do not exceed"
    return Metric(name, "s", "lower", label, read, quantile, of="syncs")


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            Metric("iops", "IO/s", "higher", "I/Os completed per second", lambda done: sum(s.iops for s in done.sides)),
            Metric("bw", "B/s", "higher", "bytes per second", lambda done: float(sum(s.bw_bytes for s in done.sides))),
            Metric(
                "lat_mean",
                "s",
                "lower",
                "mean latency from the call to completion",
                lambda done: _average_latency(done, lambda side: side.lat_ns),
            ),
            Metric(
                "clat_mean",
                "s",
                "lower",
                "mean latency from submission to completion",
                lambda done: _average_latency(done, lambda side: side.clat_ns),
            ),
            _make_clat_percentile("clat_p50", 0.5),
            _make_clat_percentile("clat_p99", 0.99),
            _make_clat_percentile("clat_p999", 0.999),
            Metric("sync_mean", "s", "lower", "mean latency of fdatasync", _sync_mean, of="syncs"),
            _make_sync_percentile("sync_p99", 0.99),
        )
    }
)
"""Every metric by its name, in the order reports show them."""

QUANTILES: tuple[float, ...] = tuple(
    sorted({metric.quantile for metric in METRICS.values() if metric.quantile is not None})
)
"""The quantiles of all percentiles, the smallest first."""


def read_metrics(done: CompletedIo) -> dict[str, float]:
    """A job's values by metric name. A metric is absent if too few I/Os support it, or if the job has no such value."""
    values = ((metric.name, metric.read(done)) for metric in METRICS.values())
    return {name: value for name, value in values if value is not None}
