"""How much the log ratios of a measured cell scatter: between blocks, and between boots. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.analysis import Correlation, boot_variance, log_ratios, pooled_sd
from harness.results.cells import CellRecord

LEAST_FREEDOM = 2
"""With fewer degrees of freedom (blocks less boots), the scatter of a cell is not known."""


@dataclass(frozen=True, slots=True)
class Scatter:
    """The scatter of log(guest/host) in one metric of a cell.

    `sd` is the standard deviation of blocks within a boot, `sd_of_boots` that of the boots' true means; None if all
    blocks are of one boot. `correlation` is that of neighbouring blocks, 0 with several boots.
    """

    sd: float
    sd_of_boots: float | None
    correlation: float


def scatter_of(record: CellRecord, metric: str) -> Scatter | None:
    """The scatter of a metric of the cell. None if it was not measured, in too few blocks, or with values of 0."""
    values = record.metrics.get(metric)
    if values is None or not values.guest or min(*values.host, *values.guest) <= 0:
        return None
    ratios = log_ratios(values.host, values.guest)
    labels = record.boots or (1,) * len(ratios)
    boots: dict[int, list[float]] = {}
    for boot, ratio in zip(labels, ratios, strict=False):
        boots.setdefault(boot, []).append(ratio)
    if len(labels) != len(ratios) or len(ratios) - len(boots) < LEAST_FREEDOM:
        return None
    if len(boots) == 1:
        return Scatter(pooled_sd([ratios]), None, Correlation.of(ratios).value)
    found = boot_variance(boots.values())
    return Scatter(math.sqrt(found.within), math.sqrt(found.between), 0.0)
