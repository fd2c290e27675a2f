"""The trend of each cell over the runs of a history, its change points, what else changed near them, and all as gauges.

A change point is where the distribution of a series changed, by energy distances and permutations (E-divisive), if the
mean changed, too, by more than a series with correlated values does by itself.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from harness.analysis import Better, fit_slope
from harness.errors import ConfigError, ResultsError
from harness.features.compare import Quantity
from harness.features.compare.comparability import Effect, judge_effect, list_different_facts
from harness.features.compare.history_store import HistoryStore
from harness.features.export_formats import Gauge, GaugeSample
from harness.untrusted import parse_json, reading

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LEAST = 3
"""The fewest values on each side of a change: two could be chance even if they are far away."""
PERMUTATIONS = 999
ERROR_RATE = 0.001
"""The probability that a series without a change has one. A history has many cells, and each is tested alone."""
SMALLEST = 0.02
"""The smallest change that is named, as a share. Many quiet runs show smaller ones, which matter to nobody."""
AGREEMENT = 0.02
"""The error rate of the second method, over all places of a segment."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A place in a series where the values after it differ from those before it, up to the next change point."""

    at: int
    """The index of the first value after the change."""
    before: float
    """The mean since the change point before."""
    after: float
    """The mean up to the next change point."""
    p_value: float
    """The share of random orders of the segment with a clearer change, by permutation."""


def change_points(values: Sequence[float]) -> list[ChangePoint]:
    """The change points of a series of logarithms, in order; empty for fewer than twice `LEAST` values.

    E-divisive (Matteson & James, A nonparametric approach for multiple change point analysis, 2014) with Euclidean
    distances: the split with the largest energy statistic divides a segment if fewer than ERROR_RATE of the random
    orders of that segment have a larger one, and both parts are examined in turn. So a change must be clearer than what
    this series has shown itself. Random orders assume that the runs are independent of each other. So a second method
    must agree: the step of the mean in a regression whose errors may be correlated from run to run (`fit_slope`),
    corrected for all places where the step may be. The random orders depend only on the values, so the result is
    reproducible. ValueError for values that are not finite.
    """
    import numpy as np  # noqa: PLC0415 - it takes long to load

    series = np.asarray(values, dtype=np.float64)
    if not np.isfinite(series).all():
        raise ValueError("the values of a series must be finite")
    chance = np.random.default_rng(zlib.crc32(series.tobytes()))
    p_values = dict(_divide(series, 0, len(series), chance))
    ends = [0, *sorted(p_values), len(series)]
    means = [fmean(values[start:end]) for start, end in pairwise(ends) if end > start]
    return [
        ChangePoint(at, before, after, p_values[at])
        for at, (before, after) in zip(sorted(p_values), pairwise(means), strict=False)
    ]


def _divide(
    series: npt.NDArray[np.float64], start: int, end: int, chance: np.random.Generator
) -> Iterator[tuple[int, float]]:
    """The change points within a segment, with their p values."""
    segment = series[start:end]
    n = len(segment)
    if n < 2 * LEAST or (segment == segment[0]).all():
        return
    energies = _compute_energies(segment)
    # Equal splits differ by rounding.
    best, at = energies.max() * (1 - 1e-9), int(energies.argmax()) + LEAST
    if not _is_step(segment, at):
        return
    # The result of all permutations is known as soon as so many of them are clearer.
    most = int(ERROR_RATE * (PERMUTATIONS + 1)) - 1
    clearer = 0
    for _ in range(PERMUTATIONS):
        clearer += bool(_compute_energies(segment[chance.permutation(n)]).max() >= best)
        if clearer > most:
            return
    yield start + at, (clearer + 1) / (PERMUTATIONS + 1)
    yield from _divide(series, start, start + at, chance)
    yield from _divide(series, start + at, end, chance)


def _is_step(segment: npt.NDArray[np.float64], at: int) -> bool:
    """Whether the mean changes there by `SMALLEST` or more, beyond what correlated values explain."""
    if abs(segment[at:].mean() - segment[:at].mean()) < math.log1p(SMALLEST):
        return False
    places = len(segment) - 2 * LEAST + 1
    return fit_slope([float(number >= at) for number in range(len(segment))], segment).p_value * places <= AGREEMENT


def _compute_energies(segment: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The energy statistic of the split before each value that has `LEAST` values on both sides.

    It is mn / (m + n) times twice the mean distance between the parts minus the mean distances within each.
    """
    import numpy as np  # noqa: PLC0415

    values = segment - segment.mean()
    total = len(values)
    in_order = np.sort(values)
    ranks = np.empty(total, dtype=np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(total)
    # Sums of the distances to earlier values. All sums within the first or the last values follow from them.
    to_earlier = _sum_distances_to_earlier(values, ranks)
    to_all = in_order * (2 * np.arange(total) - total) - 2 * (np.cumsum(in_order) - in_order) + in_order.sum()
    whole = to_earlier.sum()
    to_later = to_all[ranks] - to_earlier
    first = np.cumsum(to_earlier)[LEAST - 1 : total - LEAST]
    last = whole - np.cumsum(to_later)[LEAST - 1 : total - LEAST]
    m = np.arange(LEAST, total - LEAST + 1, dtype=np.float64)
    n = total - m
    between = (whole - first - last) / (m * n)
    energies: npt.NDArray[np.float64] = m * n / total * (2 * between - 2 * first / (m * m) - 2 * last / (n * n))
    return energies


def _sum_distances_to_earlier(values: npt.NDArray[np.float64], ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The sum of the distances of each value to all earlier ones, in n log² n steps, as a merge sort counts inversions.

    It follows from the number and the sum of the earlier values that are smaller.
    """
    import numpy as np  # noqa: PLC0415

    total = len(values)
    positions = np.arange(total)
    number, smaller = np.zeros(total), np.zeros(total)
    half = 1
    while half < total:
        start = positions - positions % (2 * half)
        merged = np.argsort(start * total + ranks)
        of_first = merged % (2 * half) < half
        numbers = np.concatenate(([0.0], np.cumsum(of_first)))
        sums = np.concatenate(([0.0], np.cumsum(values[merged] * of_first)))
        later = positions[~of_first]
        number[merged[later]] += numbers[later] - numbers[start[later]]
        smaller[merged[later]] += sums[later] - sums[start[later]]
        half *= 2
    distances: npt.NDArray[np.float64] = values * (2 * number - positions) - 2 * smaller + np.cumsum(values) - values
    return distances


NEAR = 2
"""Runs before and after a change point in which something else that changed may be its cause: a change point may be
found that far from the change."""


@dataclass(frozen=True, slots=True)
class Nearby:
    """Something that changed near a change point: with which run, and from what to what."""

    run: str
    what: str
    before: JsonValue
    after: JsonValue


@dataclass(frozen=True, slots=True)
class Shift:
    """A change point of a trend."""

    at: int
    """The index of the first run after the change."""
    run: str
    """The id of that run."""
    before: float
    """The geometric mean of the runs since the change point before."""
    after: float
    """The geometric mean of the runs up to the next change point."""
    p_value: float
    better: bool
    nearby: tuple[Nearby, ...]


@dataclass(frozen=True, slots=True)
class Trend:
    """One cell over the runs, in the order of time: the same disk on the same host with the same profile."""

    host: str
    disk_id: str
    profile: str
    cell: str
    metric: str
    relative: bool
    """Whether the values are the guest's share of its host, instead of values in the metric's unit."""
    better: Better
    runs: tuple[str, ...]
    started: tuple[float, ...]
    values: tuple[float, ...]
    shifts: tuple[Shift, ...] = ()


_SERIES = """
WITH chosen AS (
  SELECT host, disk_id, profile, cell, metric, better, run, started,
    CASE $quantity
      WHEN 'guest' THEN guest_mean
      WHEN 'twin' THEN twin_mean
      WHEN 'host' THEN host_mean
      ELSE CASE WHEN guest_mean IS NULL THEN host_mean
        WHEN better = 'higher' THEN 1 - overhead ELSE 1 + overhead END
    END AS value,
    $quantity = 'overhead' AND guest_mean IS NOT NULL AS relative
  FROM history
  WHERE verdict <> 'void' AND (metric = $metric OR ($metric = '' AND main)) AND contains(cell, $cell)
)
SELECT host, disk_id, profile, cell, metric, relative, any_value(better),
  list(run ORDER BY started, run)[-$most:],
  list(started ORDER BY started, run)[-$most:],
  list(value ORDER BY started, run)[-$most:]
FROM chosen
WHERE value > 0
GROUP BY host, disk_id, profile, cell, metric, relative
ORDER BY host, cell, disk_id, profile, metric, relative
"""
_FACTS = "SELECT run, any_value(facts) FROM history WHERE list_contains($runs, run) GROUP BY run"
_CELLS = "SELECT DISTINCT cell FROM history ORDER BY cell"


def find_trends(store: HistoryStore, *, cell: str, metric: str | None, quantity: Quantity, most: int) -> list[Trend]:
    """The trends of the cells whose id contains `cell`, with the change points of the last `most` runs of each.

    ConfigError if there is no such cell or no run; ResultsError if a file cannot be read.
    """
    asked = {"cell": cell, "metric": metric or "", "quantity": quantity, "most": most}
    several = [_make_trend(row) for row in store.query(_SERIES, asked)]
    if not several:
        known = [name for (name,) in store.query(_CELLS, {})]
        raise ConfigError(
            f'the history in {store.url} has no such value of a cell "{cell}"',
            hint=f"it has {len(known)} cells, for example {', '.join(known[:3])}; any part of an id selects cells",
        )
    near = {run for trend in several for shift in trend.shifts for run in _select_near(trend.runs, shift.at)}
    facts: dict[str, Mapping[str, JsonValue]] = {}
    if near:
        for run, text in store.query(_FACTS, {"runs": sorted(near)}):
            with reading(source := f"the facts of run {run} in {store.url}", ResultsError):
                facts[run] = dict(parse_json(text or "", source, ResultsError))
    return [_add_nearby(trend, facts) for trend in several]


def _make_trend(row: Sequence[Any]) -> Trend:
    """The trend of a row of `_SERIES`."""
    host, disk_id, profile, cell, metric, relative, better, runs, started, values = row
    # A share of the host, 1 - overhead or 1 + overhead, has the direction of its metric.
    shifts = tuple(
        Shift(
            at=point.at,
            run=runs[point.at],
            before=math.exp(point.before),
            after=math.exp(point.after),
            p_value=point.p_value,
            better=(point.after > point.before) == (better == "higher"),
            nearby=(),
        )
        for point in change_points([math.log(value) for value in values])
    )
    series = tuple(runs), tuple(started), tuple(values)
    return Trend(host, disk_id, profile, cell, metric, relative, better, *series, shifts)


def _select_near(runs: Sequence[str], at: int) -> Sequence[str]:
    """The runs near a change point, with the one before them."""
    return runs[max(0, at - NEAR - 1) : at + NEAR + 1]


def _add_nearby(trend: Trend, facts: Mapping[str, Mapping[str, JsonValue]]) -> Trend:
    shifts = (
        replace(shift, nearby=tuple(_list_changes(_select_near(trend.runs, shift.at), facts))) for shift in trend.shifts
    )
    return replace(trend, shifts=tuple(shifts))


def _list_changes(runs: Sequence[str], facts: Mapping[str, Mapping[str, JsonValue]]) -> Iterator[Nearby]:
    """What differs between two runs that follow each other, and may have an influence."""
    for before, after in pairwise(runs):
        for what, one, other in list_different_facts(facts[before], facts[after]):
            if judge_effect(what, same_machine=False) is not Effect.NONE:
                yield Nearby(after, what, one, other)


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
