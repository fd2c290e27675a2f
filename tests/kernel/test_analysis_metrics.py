"""The registry of metrics agrees with what fio is asked to measure, with what is read, and with docs and pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.analysis import METRICS, Metric
from harness.analysis.metrics import QUANTILES, CompletedIo, read_metrics
from harness.measure.fio import Direction, Latency

DOCS = (Path(__file__).parents[2] / "docs" / "reference" / "results-keys.md").read_text(encoding="utf-8")


def direction(ios: int, mean_ns: float, bins: dict[int, int]) -> Direction:
    """What fio prints of `ios` I/Os of 4 KiB within a second."""
    latency = Latency(mean=mean_ns, bins=bins)
    return Direction(
        io_bytes=ios * 4096,
        bw_bytes=ios * 4096,
        iops=float(ios),
        runtime=1000,
        total_ios=ios,
        clat_ns=latency,
        lat_ns=Latency(mean=mean_ns + 1000),
    )


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_the_docs_describe_every_metric_as_the_registry_does(metric: Metric) -> None:
    assert f"| `{metric.name}` | {metric.unit} | {metric.better} | {metric.label} |" in DOCS


def test_a_job_has_every_metric_that_its_ios_support() -> None:
    few = read_metrics(CompletedIo([direction(30, 50_000, {50_000: 30})]))
    many = read_metrics(
        CompletedIo([direction(1_000_000, 50_000, {50_000: 1_000_000})], Latency(mean=1e6, bins={10**6: 10**6}))
    )
    assert set(many) == set(METRICS)
    assert set(many) - set(few) == {
        metric.name
        for metric in METRICS.values()
        if metric.of == "syncs" or (metric.quantile is not None and metric.quantile > 0.5)
    }


def test_reads_and_writes_are_added_and_their_latencies_weighted_by_ios() -> None:
    found = read_metrics(CompletedIo([direction(30, 10_000, {10_000: 30}), direction(10, 50_000, {50_000: 10})]))
    assert found == {
        "iops": 40,
        "bw": 40 * 4096,
        "lat_mean": pytest.approx(21e-6),
        "clat_mean": pytest.approx(20e-6),
        "clat_p50": pytest.approx(10e-6),
    }


def test_percentiles_are_of_latencies_and_in_order() -> None:
    own = [metric for metric in METRICS.values() if metric.of == "ios" and metric.quantile is not None]
    assert all(metric.is_latency and not metric.higher_is_better for metric in own)
    assert [metric.quantile for metric in own] == list(QUANTILES)


@pytest.mark.parametrize(("name", "shown"), [("iops", "IOPS"), ("bw", "MB/s"), ("clat_p99", "us")])
def test_reports_show_a_metric_in_the_units_of_the_field(name: str, shown: str) -> None:
    assert METRICS[name].shown.unit == shown
