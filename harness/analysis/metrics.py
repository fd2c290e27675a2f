"""The metrics of a measurement: name, unit and whether higher or lower is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Better = Literal["higher", "lower"]
Unit = Literal["IO/s", "B/s", "s"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a measurement. Values are stored in `unit`: I/Os per second, bytes per second, or seconds."""

    name: str
    unit: Unit
    better: Better

    @property
    def higher_is_better(self) -> bool:
        return self.better == "higher"

    @property
    def is_latency(self) -> bool:
        return self.unit == "s"


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            Metric("iops", "IO/s", "higher"),
            Metric("bw", "B/s", "higher"),
            Metric("lat_mean", "s", "lower"),
            Metric("clat_mean", "s", "lower"),
            Metric("clat_p50", "s", "lower"),
            Metric("clat_p99", "s", "lower"),
            Metric("clat_p999", "s", "lower"),
        )
    }
)
"""Every metric by its name, in the order reports show them."""
