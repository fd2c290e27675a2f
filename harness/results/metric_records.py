"""The metrics of a cell: its arms in each block, and their contrasts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import get_args

from harness.analysis import (
    METRICS,
    Better,
    Calls,
    Estimate,
    LatencyHistogram,
    Metric,
    Samples,
    log_ratios,
    merged,
    percentile_interval,
    pool_means,
    pool_percentiles,
    reduce_bins,
)
from harness.model.mode import Budget, Place
from harness.results.cells import CellRecord, MetricRecord, PooledPercentile
from harness.results.contrasts import Blocks, Series, contrast
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
            for arm, slices in blocks.compared.arms.items()
        }
        for of in get_args(Calls)
    }


def read_histogram(measurement: Measurement, of: Calls) -> Mapping[int, int]:
    """The calls of this kind by latency in nanoseconds."""
    return measurement.sync_histogram if of == "syncs" else measurement.histogram


def pool_blocks(metric: Metric, blocks: Blocks, counts: Counts) -> dict[Place, tuple[float, ...]]:
    """The values of the blocks of a percentile of all blocks together, by arm (`pool_percentiles`), in seconds.

    The same of the mean of fdatasync (`pool_means`), if a slice was too short for a call. Empty for another metric, and
    if an arm has too few I/Os.
    """
    if any(sum(counts[metric.of][arm]) < metric.fewest_ios for arm in blocks.arms):
        return {}
    if metric.quantile is None and (metric.of == "ios" or blocks.has(metric.name)):
        return {}
    pooled = {}
    for arm, slices in blocks.arms.items():
        if metric.quantile is None:
            means = [slice_.metrics.get(metric.name, 0.0) for slice_ in slices]
            logs = pool_means(means, counts[metric.of][arm])
        else:
            logs = pool_percentiles([read_histogram(slice_, metric.of) for slice_ in slices], metric.quantile)
        pooled[arm] = tuple(map(math.exp, logs))
    return pooled


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
            for arm, slices in blocks.compared.arms.items()
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


def note_too_few_ios(budgets: Iterable[Budget], metrics: Mapping[str, MetricRecord], counts: Counts) -> Iterator[str]:
    """Why percentiles with one of these budgets cannot be judged."""
    for name in dict.fromkeys(budget.metric for budget in budgets):
        metric, record = METRICS[name], metrics.get(name)
        ios = counts[metric.of]
        blocks = len(record.samples(Place.HOST)) if record is not None else 0
        if metric.quantile is None or blocks >= FEWEST_SAMPLES or not any(ios.values()):
            continue
        arm, slowest = min(ios.items(), key=lambda arm_ios: sum(arm_ios[1]))
        yield (
            f"{name} has a budget but too few I/Os to be judged: it needs {metric.fewest_ios} I/Os of each arm in at "
            f"least {FEWEST_SAMPLES} blocks, and {arm} completed {sum(slowest)} in {len(slowest)} blocks. "
            "Measure for longer (--time, --rounds), or set the budget for a lower percentile"
        )


def note_missing_syncs(blocks: Blocks, counts: Counts) -> Iterator[str]:
    """That slices of an arm were too short for a flush, while others had some: long ones are not counted."""
    syncs = counts["syncs"]
    if blocks.has("sync_mean") or not any(map(any, syncs.values())):
        return
    for arm, calls in syncs.items():
        if lacking := calls.count(0):
            yield (
                f"{arm}: {lacking} of {len(calls)} slices had no complete flush, so longer ones are missing in "
                "its latencies"
            )


STALLED = 5
"""A slice that is so many times slower than the median of its arm stalled."""
_RARE = 0.1
"""Of an arm with a larger share of stalled slices, they are how it is."""


def note_stalls(metric: MetricRecord | None) -> Iterator[str]:
    """Rare slices that were much slower, and the arithmetic overhead if it is beyond the interval of the geometric one.

    In log ratios, a slice that is ten times slower weighs 2.3, and its I/Os are 0.9 of a slice. Nothing for a
    percentile that some block lacks.
    """
    if metric is None or metric.overhead is None or not metric.host:
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


CHANGED = 0.01
"""Below this p value, a note says that the loss changed during the run."""


def note_change_in_time(metric: MetricRecord | None, samples: Samples) -> Iterator[str]:
    """Whether neighbouring samples lost alike. Their interval is about this run all the same."""
    if metric is None or metric.overhead is None:
        return
    ratios = log_ratios(metric.samples(Place.HOST), metric.samples(Place.GUEST))
    p_value = samples.find_change_in_time(ratios)
    if p_value is not None and p_value < CHANGED:
        what = "blocks" if metric.overhead.boots is None else "boots"
        yield (
            f"the loss changed during the run: neighbouring {what} are alike (p = {p_value:.1%}), so another hour may "
            "give another figure"
        )


def _find_stalls(values: Sequence[float], better: Better) -> list[float]:
    """How many times slower than the median each stalled slice of an arm was."""
    middle = median(values)
    slower = (middle / value if better == "higher" else value / middle for value in values)
    return [times for times in slower if times >= STALLED]


def fewest_rounds(ios_of_block: float, fewest: int, blocks: int, *, reboot: bool) -> int | None:
    """After how many rounds a percentile has an interval: it has enough I/Os, and two samples.

    `ios_of_block` is the mean number of I/Os in a block of the slowest arm, `fewest` how many the percentile needs, and
    `blocks` the number of blocks in a round. With `reboot`, the samples are boots, and each round is a boot. None if
    the arm completes no I/O.
    """
    if ios_of_block <= 0:
        return None
    needed = max(2 * blocks if reboot else 2, math.ceil(fewest / ios_of_block))
    return math.ceil(needed / blocks)


def count_rounds_needed(record: CellRecord, name: str, *, reboot: bool) -> int | None:
    """After how many rounds like those so far the percentile `name` has an interval; None if that is not known.

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
    blocks: Blocks,
    counts: Counts,
    whole: Whole,
    adjusted: Mapping[str, Mapping[Place, tuple[float, ...]]],
    *,
    confidence: float,
) -> dict[str, MetricRecord]:
    """The metrics that these blocks of a cell have, by name. `adjusted` has the adjusted values of its arms, by role.

    A percentile is one of all blocks together. The reference of an array has values, but none for percentiles, so that
    a slow disk does not take them from the other arms.
    """
    measured = blocks.compared
    records = {}
    for name, metric in METRICS.items():
        pooled = pool_blocks(metric, measured, counts)
        if not pooled and not measured.has(name):
            continue
        values = {arm: measured.values(name, arm) if measured.has(name) else () for arm in measured.arms}
        if Place.REFERENCE in blocks.arms and metric.quantile is None and blocks.has(name):
            values[Place.REFERENCE] = blocks.values(name, Place.REFERENCE)
        samples = pooled or {arm: adjusted.get(name, {}).get(arm, values[arm]) for arm in values}
        record = _make_metric_record(metric, values, samples, blocks, confidence)
        records[name] = replace(record, pooled=pool_percentile(metric, whole, confidence))
    return records


def _make_metric_record(
    metric: Metric,
    values: Mapping[Place, tuple[float, ...]],
    samples: Mapping[Place, tuple[float, ...]],
    blocks: Blocks,
    confidence: float,
) -> MetricRecord:
    series = {arm: Series(metric, blocks.keys, of_arm, blocks.boots) for arm, of_arm in samples.items()}

    def lose(left: Place, right: Place) -> Estimate | None:
        comparison = contrast(series.get(left), series.get(right), confidence=confidence)
        return None if comparison is None else comparison.loss

    overhead = contrast(series.get(Place.HOST), series.get(Place.GUEST), confidence=confidence)
    return MetricRecord(
        unit=metric.unit,
        better=metric.better,
        host=values.get(Place.HOST, ()),
        twin=values.get(Place.HOST if Place.DIRECT in blocks.arms else Place.TWIN, ()),
        guest=values.get(Place.GUEST, ()),
        overhead=None if overhead is None else overhead.loss,
        layer=lose(Place.HOST, Place.TWIN),
        virtualisation=lose(Place.TWIN if Place.TWIN in series else Place.HOST, Place.GUEST),
        added=overhead.added if overhead is not None and metric.is_latency else None,
        adjusted={} if samples == values else dict(samples),
        reference=values.get(Place.REFERENCE, ()),
        against=values.get(Place.AGAINST, ()),
        difference=lose(Place.AGAINST, Place.GUEST),
    )
