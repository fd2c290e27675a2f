"""The gauges of a history: for each cell its newest value, how many change points it has, and the last one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.features.history.trends import Trend
from harness.openmetrics import Gauge, GaugeSample


def make_trend_gauges(trends: Sequence[Trend]) -> list[Gauge]:
    """The gauges of these trends, also without samples."""

    def gauge(name: str, about: str, value: Callable[[Trend], float | None]) -> Gauge:
        samples = ((_label_trend(trend), value(trend)) for trend in trends)
        return Gauge(
            name, about, tuple(GaugeSample(labels, number) for labels, number in samples if number is not None)
        )

    return [
        gauge(
            "virt_overhead_history_runs", "Runs of the cell that were looked at.", lambda trend: float(len(trend.runs))
        ),
        gauge(
            "virt_overhead_history_newest_timestamp_seconds",
            "When the newest of these runs began, since 1970-01-01 UTC.",
            lambda trend: trend.started[-1],
        ),
        gauge(
            "virt_overhead_history_value",
            "The newest value: the share of its host that the guest has, or the value of the bare host.",
            lambda trend: trend.values[-1],
        ),
        gauge("virt_overhead_changes", "Change points in these runs.", lambda trend: float(len(trend.shifts))),
        gauge(
            "virt_overhead_last_change_timestamp_seconds",
            "When the first run after the last change point began, since 1970-01-01 UTC.",
            lambda trend: trend.started[trend.shifts[-1].at] if trend.shifts else None,
        ),
        gauge(
            "virt_overhead_last_change_ratio",
            "By how much the value changed there, as a share of the mean before.",
            lambda trend: trend.shifts[-1].after / trend.shifts[-1].before - 1 if trend.shifts else None,
        ),
        gauge(
            "virt_overhead_last_change_worse",
            "1 if it became worse there, 0 if it became better.",
            lambda trend: float(not trend.shifts[-1].better) if trend.shifts else None,
        ),
    ]


def _label_trend(trend: Trend) -> dict[str, str]:
    names = {"lab_host": trend.host, "cell": trend.cell, "metric": trend.metric, "profile": trend.profile}
    return names | {"disk_id": trend.disk_id, "relative": "yes" if trend.relative else "no"}
