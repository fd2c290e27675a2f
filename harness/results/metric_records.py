"""The metrics of a cell: the values of its arms in each block, and the estimates from them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from harness.analysis import METRICS, Estimate, Metric, Samples, estimate_added, estimate_overhead
from harness.model.cell import Place
from harness.results.by_arm import Blocks, ByArm
from harness.results.cells import BlockKey, MetricRecord
from harness.results.dependence import of_difference
from harness.results.percentiles import Counts, Whole, batch_values, batches_of, pooled


def metric_records(
    by_arm: ByArm,
    blocks: Sequence[BlockKey],
    counts: Counts,
    whole: Whole,
    *,
    samples: Samples,
    confidence: float,
) -> dict[str, MetricRecord]:
    """The metrics that these blocks of a cell have, by name. `samples` says how the blocks hang together.

    A percentile that some blocks lack is estimated from batches of blocks. The reference of an array has values, but
    none for percentiles, so that a slow disk does not take them from the other arms.
    """
    reference = by_arm.get(Place.REFERENCE)
    by_arm = {place: own for place, own in by_arm.items() if place is not Place.REFERENCE}
    found = {}
    for metric in METRICS.values():
        if has_metric(metric.name, by_arm, blocks):
            values = {place: values_of(metric.name, of_block, blocks) for place, of_block in by_arm.items()}
            record = _metric_record(metric, values, samples, confidence)
            if (
                reference is not None
                and metric.quantile is None
                and has_metric(metric.name, {Place.REFERENCE: reference}, blocks)
            ):
                record = replace(record, reference=values_of(metric.name, reference, blocks))
        elif own := batches_of(metric, counts, samples.boots):
            sizes = tuple(map(len, own))
            values = {place: batch_values(metric, of_block, blocks, own) for place, of_block in by_arm.items()}
            record = replace(_metric_record(metric, values, samples.in_batches(sizes), confidence), batches=sizes)
        else:
            continue
        found[metric.name] = replace(record, pooled=pooled(metric, whole, confidence))
    return found


def has_metric(name: str, by_arm: ByArm, blocks: Sequence[BlockKey]) -> bool:
    """Whether every measurement of these blocks has the metric."""
    return bool(blocks) and all(name in m.metrics for arm in by_arm.values() for block in blocks for m in arm[block])


def values_of(name: str, arm: Blocks, blocks: Sequence[BlockKey]) -> tuple[float, ...]:
    """An arm's value of the metric for each block, in the metric's unit."""
    return tuple(_one_value(m.metrics[name] for m in arm[block]) for block in blocks)


def _metric_record(
    metric: Metric, values: Mapping[Place, tuple[float, ...]], samples: Samples, confidence: float
) -> MetricRecord:
    """The estimates from each arm's values, which are those of `samples`."""

    def worse(of: Sequence[float], than: Sequence[float], samples: Samples = samples) -> Estimate | None:
        if not (of and than):
            return None
        better = metric.higher_is_better
        return estimate_overhead(than, of, higher_is_better=better, confidence=confidence, samples=samples)

    host, twin, guest, against = (
        values.get(place, ()) for place in (Place.HOST, Place.TWIN, Place.GUEST, Place.AGAINST)
    )
    added = None
    if guest and metric.is_latency:
        added = estimate_added(host, guest, confidence=confidence, samples=samples)
    return MetricRecord(
        unit=metric.unit,
        better=metric.better,
        host=host,
        twin=twin,
        guest=guest,
        overhead=worse(guest, than=host),
        layer=worse(twin, than=host),
        virtualisation=worse(guest, than=twin or host),
        added=added,
        against=against,
        difference=worse(guest, than=against, samples=of_difference(samples)),
    )


def _one_value(values: Iterable[float]) -> float:
    """The value itself, or the geometric mean of repeats."""
    several = list(values)
    if len(several) == 1:
        return several[0]
    return math.exp(math.fsum(math.log(value) for value in several) / len(several))
