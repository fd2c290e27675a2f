"""The metrics of a cell: the values of its arms in each block, and the contrasts between them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.analysis import METRICS, Correlation, Estimate, Metric
from harness.model.cell import Place
from harness.results.blocks import Blocks, Series, series_of
from harness.results.cells import MetricRecord
from harness.results.contrasts import contrast
from harness.results.percentiles import Counts, Whole, batch_values, batches_of, pool_percentile


def metric_records(
    blocks: Blocks, counts: Counts, whole: Whole, *, correlation: Correlation | None, confidence: float
) -> dict[str, MetricRecord]:
    """The metrics that these blocks of a cell have, by name. `correlation` is that of neighbouring blocks of its job.

    A percentile that some blocks lack is estimated from batches of blocks. The reference of an array has values, but
    none for percentiles, so that a slow disk does not take them from the other arms.
    """
    own = blocks.without(Place.REFERENCE)
    records = {}
    for name, metric in METRICS.items():
        if own.has(name):
            series = {arm: own.series(name, arm) for arm in own.arms}
            record = _metric_record(metric, series, correlation, confidence)
            if Place.REFERENCE in blocks.arms and metric.quantile is None and blocks.has(name):
                record = replace(record, reference=blocks.values(name, Place.REFERENCE))
        elif batches := batches_of(metric, counts, own.boots):
            series = {arm: _batch_series(metric, own, arm, batches) for arm in own.arms}
            # The correlation of batches is not that of their blocks, so it is estimated from the batches.
            record = replace(_metric_record(metric, series, None, confidence), batches=tuple(map(len, batches)))
        else:
            continue
        records[name] = replace(record, pooled=pool_percentile(metric, whole, confidence))
    return records


def _batch_series(metric: Metric, blocks: Blocks, arm: Place, batches: Sequence[range]) -> Series:
    values = batch_values(metric, blocks.arms[arm], batches)
    return series_of(metric.name, blocks.keys, values, blocks.boots, [len(batch) for batch in batches])


def _metric_record(
    metric: Metric, series: Mapping[Place, Series], correlation: Correlation | None, confidence: float
) -> MetricRecord:
    def lose(left: Place, right: Place, correlation: Correlation | None = correlation) -> Estimate | None:
        found = contrast(series.get(left), series.get(right), confidence=confidence, correlation=correlation)
        return None if found is None else found.loss

    values = {arm: own.values for arm, own in series.items()}
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
