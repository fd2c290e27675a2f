"""The metrics of a cell: its arms in each block, or in batches of blocks for percentiles, and their contrasts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import get_args

from harness.analysis import (
    METRICS,
    Better,
    Calls,
    Correlation,
    Estimate,
    LatencyHistogram,
    Metric,
    batches,
    fewest_rounds,
    merged,
    percentile,
    percentile_interval,
    reduce_bins,
)
from harness.model.mode import Place
from harness.results.cells import CellRecord, MetricRecord, PooledPercentile
from harness.results.contrasts import Blocks, Series, contrast, make_series
from harness.results.journal import Measurement

_OWN_ARMS = tuple(map(str, (Place.HOST, Place.TWIN, Place.GUEST)))

FEWEST_SAMPLES = 2
"""An interval needs two samples."""


Whole = Mapping[Calls, Mapping[str, Mapping[int, int]]]
"""The histograms of all blocks together, by kind of call and arm: calls by latency in nanoseconds."""
Counts = Mapping[Calls, Mapping[str, Sequence[int]]]
"""The calls in the histograms, by arm and block."""


def count_calls(blocks: Blocks) -> dict[Calls, dict[str, tuple[int, ...]]]:
    """The reads and writes in the histograms, and the calls of fdatasync, by arm and block."""
    return {
        of: {
            str(arm): tuple(sum(read_histogram(slice_, of).values()) for slice_ in slices)
            for arm, slices in blocks.without(Place.REFERENCE).arms.items()
        }
        for of in get_args(Calls)
    }


def read_histogram(measurement: Measurement, of: Calls) -> Mapping[int, int]:
    """The calls of this kind by latency in nanoseconds."""
    return measurement.sync_histogram if of == "syncs" else measurement.histogram


def find_batches(metric: Metric, counts: Counts, boots: Sequence[int]) -> list[range]:
    """The batches of blocks that give the samples of a percentile, the same for all arms; empty for other metrics.

    `boots` has the boot of each block.
    """
    if metric.quantile is None or not boots:
        return []
    return batches(list(counts[metric.of].values()), metric.fewest_ios, boots)


def read_batch_values(metric: Metric, slices: Sequence[Measurement], batches: Sequence[range]) -> tuple[float, ...]:
    """An arm's percentile of each batch, in seconds, from the sum of its blocks' histograms."""
    assert metric.quantile is not None
    bins = (merged(read_histogram(slices[at], metric.of) for at in batch) for batch in batches)
    return tuple(value for of_batch in bins if (value := percentile(of_batch, metric.quantile)) is not None)


def pool_percentile(metric: Metric, whole: Whole, confidence: float) -> dict[str, PooledPercentile]:
    """A percentile of all I/Os of an arm's blocks together, if its measurements have histograms."""
    if metric.quantile is None:
        return {}
    pooled = {}
    for place, bins in whole[metric.of].items():
        interval = percentile_interval(bins, metric.quantile, confidence=confidence)
        if interval is not None:
            pooled[place] = PooledPercentile(interval.point, interval.low, interval.high, interval.ios)
    return pooled


def merge_histograms(blocks: Blocks) -> Whole:
    """The latencies of these blocks together, by kind of call and arm; without the reference of an array."""
    return {
        of: {
            str(arm): merged(read_histogram(slice_, of) for slice_ in slices)
            for arm, slices in blocks.without(Place.REFERENCE).arms.items()
        }
        for of in get_args(Calls)
    }


def reduce_histograms(whole: Whole) -> dict[Calls, dict[str, LatencyHistogram]]:
    """The histograms of the cell's own arms in few bins; only of calls that there were."""
    latency_histograms = {
        of: {place: reduce_bins(by_arm[place]) for place in _OWN_ARMS if any(by_arm.get(place, {}).values())}
        for of, by_arm in whole.items()
    }
    return {of: arms for of, arms in latency_histograms.items() if arms}


def note_too_few_ios(names: Sequence[str], metrics: Mapping[str, MetricRecord], counts: Counts) -> Iterator[str]:
    """Why percentiles of these names, which have a budget, cannot be judged."""
    for name in names:
        metric, record = METRICS[name], metrics.get(name)
        ios = counts[metric.of]
        samples = len(record.host) if record is not None else 0
        if metric.quantile is None or samples >= FEWEST_SAMPLES or not any(ios.values()):
            continue
        arm, slowest = min(ios.items(), key=lambda arm_ios: sum(arm_ios[1]))
        yield (
            f"{name} has a budget but too few I/Os to be judged: {samples} of {FEWEST_SAMPLES} samples. A sample needs "
            f"{metric.fewest_ios} I/Os of each arm, and {arm} completed {sum(slowest)} in {len(slowest)} blocks. "
            "Measure for longer (--time, --rounds), or set the budget for a lower percentile"
        )


STALLED = 5
"""A slice that is so many times slower than the median of its arm stalled."""
_RARE = 0.1
"""Of an arm with a larger share of stalled slices, they are how it is."""


def note_stalls(metric: MetricRecord | None) -> Iterator[str]:
    """Rare slices that were much slower, and the arithmetic overhead if it is beyond the interval of the geometric one.

    In log ratios, a slice that is ten times slower weighs 2.3, and its I/Os are 0.9 of a slice. Nothing for percentiles
    of batches.
    """
    if metric is None or metric.overhead is None or metric.batches:
        return
    of_host, of_guest = (_find_stalls(values, metric.better) for values in (metric.host, metric.guest))
    n, most = len(metric.guest), max(of_host + of_guest, default=0.0)
    if most and max(len(of_host), len(of_guest)) <= _RARE * n:
        number = len(of_guest or of_host)
        slices = f"{'one slice' if number == 1 else f'{number} slices'} of {n} {'was' if number == 1 else 'were up to'}"
        where = "in the guest only" if not of_host else "on the host only"
        if of_host and of_guest:
            where = f"in the guest, and {len(of_host)} on the host"
        yield f"{slices} {most:.0f} x slower, {where}: so few slices do not show how often this happens"
    ratio = fmean(metric.guest) / fmean(metric.host)
    share = 1 - ratio if metric.better == "higher" else ratio - 1
    geometric, half = metric.overhead.point, metric.overhead.half_width
    if half is not None and abs(share - geometric) > half:
        slow = "more" if metric.better == "higher" else "less"
        of = "all I/Os together" if metric.better == "higher" else "the arithmetic mean of the slices"
        yield (
            f"the overhead of {of} is {share:.1%}, and {geometric:.1%} in the geometric mean of the slices, in which "
            f"slow slices count for {slow}"
        )


def _find_stalls(values: Sequence[float], better: Better) -> list[float]:
    """How many times slower than the median each stalled slice of an arm was."""
    middle = median(values)
    slower = (middle / value if better == "higher" else value / middle for value in values)
    return [times for times in slower if times >= STALLED]


def count_rounds_needed(record: CellRecord, name: str, *, reboot: bool) -> int | None:
    """After how many rounds like those so far the percentile `name` has two samples; None if that is not known.

    `reboot` as for `fewest_rounds`.
    """
    if not record.rounds or not record.ios:
        return None
    slowest = min(fmean(io) for io in record.ios.values())
    if METRICS[name].of == "syncs":
        share_of_reads = record.job.share_of_reads
        if share_of_reads is None:
            return None
        slowest *= 1 - share_of_reads  # One for each write.
    blocks = max(round(len(record.rounds) / len(set(record.rounds))), 1)
    return fewest_rounds(slowest, METRICS[name].fewest_ios, blocks, reboot=reboot)


def make_metric_records(
    blocks: Blocks, counts: Counts, whole: Whole, *, correlation: Correlation | None, confidence: float
) -> dict[str, MetricRecord]:
    """The metrics that these blocks of a cell have, by name. `correlation` is that of neighbouring blocks of its job.

    A percentile that some blocks lack is estimated from batches of blocks. The reference of an array has values, but
    none for percentiles, so that a slow disk does not take them from the other arms.
    """
    measured = blocks.without(Place.REFERENCE)
    records = {}
    for name, metric in METRICS.items():
        if measured.has(name):
            series = {arm: measured.series(name, arm) for arm in measured.arms}
            record = _make_metric_record(metric, series, correlation, confidence)
            if Place.REFERENCE in blocks.arms and metric.quantile is None and blocks.has(name):
                record = replace(record, reference=blocks.values(name, Place.REFERENCE))
        elif batches := find_batches(metric, counts, measured.boots):
            series = {arm: _make_batch_series(metric, measured, arm, batches) for arm in measured.arms}
            # The correlation of batches is not that of their blocks, so it is estimated from the batches.
            record = replace(_make_metric_record(metric, series, None, confidence), batches=tuple(map(len, batches)))
        else:
            continue
        records[name] = replace(record, pooled=pool_percentile(metric, whole, confidence))
    return records


def _make_batch_series(metric: Metric, blocks: Blocks, arm: Place, batches: Sequence[range]) -> Series:
    values = read_batch_values(metric, blocks.arms[arm], batches)
    return make_series(metric.name, blocks.keys, values, blocks.boots, [len(batch) for batch in batches])


def _make_metric_record(
    metric: Metric, series: Mapping[Place, Series], correlation: Correlation | None, confidence: float
) -> MetricRecord:
    def lose(left: Place, right: Place, correlation: Correlation | None = correlation) -> Estimate | None:
        comparison = contrast(series.get(left), series.get(right), confidence=confidence, correlation=correlation)
        return None if comparison is None else comparison.loss

    values = {arm: of_arm.values for arm, of_arm in series.items()}
    overhead = contrast(series.get(Place.HOST), series.get(Place.GUEST), confidence=confidence, correlation=correlation)
    return MetricRecord(
        unit=metric.unit,
        better=metric.better,
        host=values.get(Place.HOST, ()),
        twin=values.get(Place.TWIN, ()),
        guest=values.get(Place.GUEST, ()),
        overhead=None if overhead is None else overhead.loss,
        layer=lose(Place.HOST, Place.TWIN),
        virtualisation=lose(Place.TWIN if values.get(Place.TWIN) else Place.HOST, Place.GUEST),
        added=overhead.added if overhead is not None and metric.is_latency else None,
        against=values.get(Place.AGAINST, ()),
        # The difference between two guests is correlated in another way than that to the host.
        difference=lose(Place.AGAINST, Place.GUEST, correlation=None),
    )
