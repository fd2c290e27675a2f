"""The gauges of a stored run: what each mode loses with its interval, verdicts, values of host and guest, and times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import geometric_mean

from harness.analysis import METRICS
from harness.analysis.metrics import Unit
from harness.export_formats import Gauge, GaugeSample
from harness.model.mode import Place
from harness.results import MetricRecord, Run
from harness.results.cells import CellRecord, Outcome

VERDICTS = tuple(outcome for outcome in Outcome if outcome is not Outcome.BASELINE)
_VALUES: dict[Unit, tuple[str, str]] = {
    "IO/s": ("virt_overhead_ios_per_second", "I/Os per second, the mean over the blocks."),
    "B/s": ("virt_overhead_bytes_per_second", "Bytes per second, the mean over the blocks."),
    "s": ("virt_overhead_latency_seconds", "Latency, the mean over the blocks of this mean or percentile."),
}


def make_gauges(run: Run) -> list[Gauge]:
    """The gauges of a stored run, also without samples. Void cells have a verdict and no figures."""
    return [
        *_list_times(run),
        Gauge(
            "virt_overhead_verdict",
            "1 for the verdict of the cell, 0 for the others.",
            tuple(
                GaugeSample(label_cell(cell) | {"verdict": outcome.value}, float(cell.outcome is outcome))
                for cell in run.cells
                if not cell.is_baseline
                for outcome in VERDICTS
            ),
        ),
        *_list_losses(run),
        *_list_values(run),
    ]


def label_cell(cell: CellRecord) -> dict[str, str]:
    """The labels of a cell. They are the same in every run, so a cell is one series over the nights."""
    names = {"lab_host": cell.host, "disk": cell.disk, "scenario": cell.scenario, "mode": cell.mode}
    cached = {"cached": "yes"} if cell.is_cached else {}
    return names | {"fio_job": cell.job.id, "cell": cell.id} | cached


def _list_times(run: Run) -> Iterator[Gauge]:
    of_scenarios = dict.fromkeys((cell.host, cell.disk, cell.scenario) for cell in run.cells)
    labels = [{"lab_host": host, "disk": disk, "scenario": scenario} for host, disk, scenario in of_scenarios]
    started = tuple(GaugeSample(names, run.run.started) for names in labels)
    yield Gauge("virt_overhead_run_started_timestamp_seconds", "When the run began, since 1970-01-01 UTC.", started)
    finished = run.run.finished
    yield Gauge(
        "virt_overhead_run_finished_timestamp_seconds",
        "When the run ended, since 1970-01-01 UTC.",
        () if finished is None else tuple(GaugeSample(names, finished) for names in labels),
    )
    facts = {"run": run.run.id, "profile": run.run.profile, "status": run.run.status}
    real = {"real_hardware": "yes" if run.lab.representative else "no"}
    yield Gauge(
        "virt_overhead_run_info",
        "1, with what the run was. Labs without real hardware say nothing about a disk.",
        tuple(GaugeSample(names | facts | real, 1.0) for names in labels),
    )


def _list_metrics(run: Run) -> Iterator[tuple[CellRecord, dict[str, str], MetricRecord]]:
    """The metrics of the cells that may be compared, with their labels."""
    for cell in run.cells:
        for name, metric in cell.metrics.items() if cell.usable else ():
            main = "yes" if name == cell.job.headline else "no"
            yield cell, label_cell(cell) | {"metric": name, "main": main}, metric


def _list_losses(run: Run) -> Iterator[Gauge]:
    estimated = [
        (labels, metric.overhead)
        for cell, labels, metric in _list_metrics(run)
        if metric.overhead and not cell.is_baseline
    ]
    read: dict[str, tuple[str, Callable[..., float | None]]] = {
        "virt_overhead_loss_ratio": (
            "What the guest loses against its host: 1 - guest/host of throughput, guest/host - 1 of latency.",
            lambda loss: loss.point,
        ),
        "virt_overhead_loss_low_ratio": ("The lower end of the interval of the loss.", lambda loss: loss.low),
        "virt_overhead_loss_high_ratio": ("The upper end of the interval of the loss.", lambda loss: loss.high),
        "virt_overhead_samples": ("Samples behind the loss.", lambda loss: float(loss.n)),
    }
    for name, (about, value) in read.items():
        samples = ((labels, value(loss)) for labels, loss in estimated)
        yield Gauge(name, about, tuple(GaugeSample(labels, point) for labels, point in samples if point is not None))


def _list_values(run: Run) -> Iterator[Gauge]:
    samples: dict[str, list[GaugeSample]] = {name: [] for name, _ in _VALUES.values()}
    for _, labels, metric in _list_metrics(run):
        for place in (Place.HOST, Place.TWIN, Place.GUEST):
            values = metric.samples(place)
            if values and min(values) > 0:
                name, _ = _VALUES[METRICS[labels["metric"]].unit]
                samples[name].append(GaugeSample(labels | {"place": str(place)}, geometric_mean(values)))
    for name, about in _VALUES.values():
        yield Gauge(name, about, tuple(samples[name]))
