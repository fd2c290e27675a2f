"""The latencies of one workload in charts and tables: whole distributions, their percentiles, and latency over load."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import get_args

from harness.analysis import METRICS, Calls, Estimate, LatencyHistogram, reduce_bins, upper_end
from harness.analysis.histogram import FEWEST_BEYOND
from harness.analysis.metrics import Shown
from harness.feature import FeatureReport
from harness.features.distributions.order import order_blocks, set_rows
from harness.report.blocks import AtDepth, Block, Chart, Column, Fold, Row, Table, microseconds_cell
from harness.report.draw import Figure, log_axis, scatter, set_scalable_axis, whiskers
from harness.report.numbers import (
    NONE,
    confidence_words,
    format_pooled,
    microseconds,
    microseconds_interval,
    microseconds_range,
    significant,
)
from harness.report.section import ArmOfCell, Section, WorkloadCells, arms_of, look_of
from harness.results import CellRecord, PooledPercentile

STEPS_OF_DECADE = 10
"""A curve of percentiles has so many points from 90 % to 99 %, from 99 % to 99.9 %, and so on."""
_MOST_DECADES = 8

_US = 1e6
_TICKS = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)
_DRAWN_PER_OCTAVE = 8
_POINTS_WITH_LABELS = 30

CALLS: Mapping[Calls, str] = {"ios": "Latency", "syncs": "Latency of fdatasync"}
"""What the charts of these calls show."""


def quantiles(histogram: LatencyHistogram, shares: Iterable[float]) -> list[float | None]:
    """The latencies in seconds that these shares of the completions did not exceed, 0 to below 1.

    Completions are spread evenly within a bin, so a value is at most one bin's width off. None where fewer than 10
    completions lie beyond, as for `percentile`.
    """
    lows = sorted(histogram.bins)
    reached = [0, *accumulate(histogram.bins[low] for low in lows)]
    found: list[float | None] = []
    at = 0
    for share, place in sorted((share, place) for place, share in enumerate(shares)):
        rank = share * reached[-1]
        found += [None] * (place + 1 - len(found))
        if reached[-1] - rank < FEWEST_BEYOND - 1e-6:
            continue
        while at < len(lows) - 1 and reached[at + 1] < rank:
            at += 1
        inside = (rank - reached[at]) / histogram.bins[lows[at]]
        found[place] = (lows[at] + inside * (upper_end(lows[at], histogram.per_octave) - lows[at])) / 1e9
    return found


@dataclass(frozen=True, slots=True)
class Distribution:
    """All latencies of one arm, of all blocks together."""

    arm: ArmOfCell
    of: Calls
    histogram: LatencyHistogram
    marks: tuple[tuple[float, PooledPercentile], ...]
    """The percentiles that the tables have too, by quantile, with the interval from the sampling of I/Os."""

    @property
    def curve(self) -> tuple[float, ...]:
        """The latencies in seconds at 0, 0.1, 0.2, ... on the axis -log10(1 - q), as in plots of HdrHistogram.

        It ends where fewer than 10 I/Os are slower.
        """
        shares = (1 - 10 ** (-step / STEPS_OF_DECADE) for step in range(_MOST_DECADES * STEPS_OF_DECADE))
        return tuple(latency for latency in quantiles(self.histogram, shares) if latency is not None)

    @property
    def mean(self) -> Estimate | None:
        """The mean latency over the blocks, in seconds."""
        return self.arm.mean("sync_mean" if self.of == "syncs" else self.arm.cell.latency_name)

    def mark(self, quantile: float) -> PooledPercentile | None:
        return dict(self.marks).get(quantile)


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """An arm at one iodepth: its throughput, and its latency in seconds."""

    iodepth: int
    throughput: Estimate
    mean: Estimate
    p99: Estimate | None
    """None with too few I/Os."""


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """An arm over the iodepths, the smallest first."""

    arm: ArmOfCell
    points: tuple[LoadPoint, ...]


def latency_charts(section: Section, workload: WorkloadCells, key: str) -> Iterator[Chart]:
    """The charts of a workload whose latencies are stored."""
    for of, by_depth in group_by_depth(workload.cells).items():
        calls, call = ("calls", "call") if of == "syncs" else ("I/Os", "I/O")
        yield Chart(
            f"{key}-percentiles-{of}",
            {depth: lambda arms=arms: draw_percentiles(arms, section.modes) for depth, arms in by_depth.items()},  # type: ignore[misc]
            (
                f"{CALLS[of]} that a share of the {calls} does not exceed, us",
                AtDepth(),
                "; markers: with interval; dashed: twins",
            ),
            "Percentiles of the latency of each arm, as in the table of latencies",
            style="",
        )
        yield Chart(
            f"{key}-histogram-{of}",
            {depth: lambda arms=arms: draw_histograms(arms, section.modes) for depth, arms in by_depth.items()},  # type: ignore[misc]
            (f"{CALLS[of]}, the whole histogram of each arm, from the fastest to the slowest {call}", AtDepth()),
            "Histogram of the latency of each arm; its percentiles are in the table of latencies",
            style="rows",
        )
    if curves := find_load_curves(workload.cells):
        shown = METRICS[workload.cells[0].throughput_name].shown
        yield Chart(
            f"{key}-load",
            lambda: draw_load(curves, section.modes, shown),
            "Latency over load, us: mean (solid) and p99 (dotted) of host and guests; the numbers are iodepths",
            "Latency over throughput of host and guests, as in the table of latencies",
            style="",
        )


def latency_tables(section: Section, workload: WorkloadCells, _key: str) -> Iterator[Block]:
    """The same latencies as tables."""
    for of, by_depth in group_by_depth(workload.cells).items():
        quantiles_of = [
            metric.quantile for metric in METRICS.values() if metric.of == of and metric.quantile is not None
        ]
        throughput = of == "ios" and not workload.rated
        table = Table(
            (
                Column("iodepth, arm", "head"),
                Column("calls" if of == "syncs" else "I/Os"),
                *([Column(workload.unit)] if throughput else []),
                Column("mean, us", interval=confidence_words(workload.cells)),
                *(Column(f"p{quantile * 100:g}, us") for quantile in quantiles_of),
            ),
            tuple(
                Row(
                    (
                        f"{depth} {distribution.arm.label}",
                        f"{distribution.histogram.ios:,}".replace(",", " "),
                        *([_format_throughput(distribution.arm)] if throughput else []),
                        microseconds_cell(distribution.mean),
                        *(format_pooled(distribution.mark(quantile)) for quantile in quantiles_of),
                    ),
                    group=str(depth),
                )
                for depth, arms in by_depth.items()
                for distribution in arms
            ),
            f"{CALLS[of]} of each arm in {workload.name} on {section.name}, us",
            style="facts numbers",
        )
        what = "latencies" if of == "ios" else "latencies of fdatasync"
        yield Fold(f"{workload.name}: table of {what}", (table,), style="more")


def _format_throughput(arm: ArmOfCell) -> str:
    scale = METRICS[arm.cell.throughput_name].shown.scale
    return significant(arm.throughput.point / scale) if arm.throughput else NONE


def group_by_depth(cells: Sequence[CellRecord]) -> Mapping[Calls, Mapping[int, tuple[Distribution, ...]]]:
    """The distributions of one workload by kind of call and iodepth; without those that have none."""
    depths = sorted({cell.iodepth for cell in cells})
    at = {depth: [cell for cell in cells if cell.iodepth == depth] for depth in depths}
    kinds = {
        of: {depth: arms for depth in depths if (arms := find_distributions(at[depth], of))} for of in get_args(Calls)
    }
    return {of: by_depth for of, by_depth in kinds.items() if by_depth}


def find_decade(quantile: float) -> float:
    """The place of a percentile on the axis of the curves: 0.9 is at 1, 0.99 at 2, 0.999 at 3."""
    return -math.log10(1 - quantile)


def find_distributions(cells: Sequence[CellRecord], of: Calls = "ios") -> tuple[Distribution, ...]:
    """The arms of one job whose latencies are stored. None in a run of an older version."""
    return tuple(
        Distribution(arm, of, histogram, tuple(_find_marks(arm, of)))
        for arm in arms_of(cells)
        if (histogram := arm.cell.histograms.get(of, {}).get(arm.source)) is not None
    )


def _find_marks(arm: ArmOfCell, of: Calls) -> list[tuple[float, PooledPercentile]]:
    return [
        (quantile, pooled)
        for name, metric in arm.cell.metrics.items()
        if METRICS[name].of == of and (quantile := METRICS[name].quantile) is not None
        if (pooled := metric.pooled.get(arm.source)) is not None
    ]


def find_load_curves(cells: Sequence[CellRecord]) -> tuple[LoadCurve, ...]:
    """The host and the guest of each mode, for the cells of one workload that were measured at several depths.

    Arms with one depth have no curve. Jobs at a fixed rate have no such curves: the load is the same at all depths.
    """
    points: dict[tuple[str, str | None], list[tuple[ArmOfCell, LoadPoint]]] = {}
    for depth in sorted({cell.iodepth for cell in cells}):
        for arm in arms_of(cell for cell in cells if cell.iodepth == depth and not cell.rated):
            if arm.place != "twin" and (point := _find_load_point(arm)) is not None:
                points.setdefault((arm.place, arm.mode), []).append((arm, point))
    return tuple(
        LoadCurve(several[0][0], tuple(point for _, point in several))
        for several in points.values()
        if len(several) > 1
    )


def _find_load_point(arm: ArmOfCell) -> LoadPoint | None:
    throughput, mean = arm.throughput, arm.mean(arm.cell.latency_name)
    if throughput is None or mean is None:
        return None
    return LoadPoint(arm.cell.iodepth, throughput, mean, arm.mean("clat_p99"))


def draw_percentiles(distributions: Sequence[Distribution], modes: Sequence[str]) -> Figure:
    """The latency that a share of the calls does not exceed. The share's axis is logarithmic towards 100 %, as in
    plots of HdrHistogram. The markers are the percentiles of the tables, with their intervals."""
    figure = Figure()
    values: list[float] = []
    farthest = find_decade(0.9)
    for distribution in distributions:
        look = look_of(modes, distribution.arm.place, distribution.arm.mode)
        curve = distribution.curve
        values += [latency * _US for latency in curve]
        farthest = max(farthest, (len(curve) - 1) / STEPS_OF_DECADE)
        figure.add_trace(
            scatter(
                x=[step / STEPS_OF_DECADE for step in range(len(curve))],
                y=[_round_to_digits(latency * _US) for latency in curve],
                mode="lines",
                name=look.name,
                line={"color": look.colour, "width": 1.8, "dash": look.dash},
                customdata=[_format_share(1 - 10 ** (-step / STEPS_OF_DECADE)) for step in range(len(curve))],
                hovertemplate=f"{look.name}: %{{customdata}} % within %{{y:,.3~r}} us<extra></extra>",
                meta=look.key,
            )
        )
        if distribution.marks:
            pooled = [mark for _, mark in distribution.marks]
            figure.add_trace(
                scatter(
                    x=[find_decade(quantile) for quantile, _ in distribution.marks],
                    y=[_round_to_digits(mark.value * _US) for mark in pooled],
                    error_y={
                        "type": "data",
                        "symmetric": False,
                        "array": [_round_to_digits((mark.high - mark.value) * _US) for mark in pooled],
                        "arrayminus": [_round_to_digits((mark.value - mark.low) * _US) for mark in pooled],
                    },
                    mode="markers",
                    name=look.name,
                    marker={"color": look.colour, "symbol": look.symbol, "size": 5},
                    customdata=[_describe_mark(look.name, quantile, mark) for quantile, mark in distribution.marks],
                    meta=look.key,
                )
            )
    ticks = [quantile for quantile in _TICKS if find_decade(quantile) <= farthest + 0.05]
    figure.update_layout(height=300, margin={"l": 58, "r": 14, "t": 10, "b": 44}, showlegend=False, hovermode="closest")
    figure.update_xaxes(
        title="share of the I/Os, %",
        tickvals=[find_decade(quantile) for quantile in ticks],
        ticktext=[_format_share(quantile) for quantile in ticks],
        range=[-0.05, farthest + 0.1],
    )
    figure.update_yaxes(**log_axis(values))
    return figure


def draw_histograms(distributions: Sequence[Distribution], modes: Sequence[str]) -> Figure:
    """The distribution of each arm in a row of its own: the share of I/Os for each doubling of the latency.

    The line reaches from the fastest I/O to the slowest. Each row has a scale of its own.
    """
    figure = Figure()
    ends: list[float] = []
    for number, distribution in enumerate(distributions):
        look = look_of(modes, distribution.arm.place, distribution.arm.mode)
        per_octave = min(distribution.histogram.per_octave, _DRAWN_PER_OCTAVE)
        points = list(_trace_outline(reduce_bins(distribution.histogram.bins, per_octave=per_octave)))
        ends += [points[0][0], points[-1][0]]
        figure.add_trace(
            scatter(
                x=[latency for latency, _ in points],
                y=[share for _, share in points],
                yaxis=f"y{number + 1}" if number else "y",
                mode="lines",
                name=look.name,
                line={"color": look.colour, "width": 1.2, "shape": "hv"},
                fill="tozeroy",
                fillpattern={"shape": "/", "size": 4, "solidity": 0.3} if distribution.arm.place == "twin" else None,
                hovertemplate=f"{look.name}, from %{{x:,.3~r}} us: %{{y:.3~r}} % per doubling<extra></extra>",
                meta=look.key,
            )
        )
    peaks = [max(trace["y"]) for trace in figure.data]
    set_rows(
        figure,
        [look_of(modes, shown.arm.place, shown.arm.mode).name for shown in distributions],
        ranges=[(0.0, peak * 1.08) for peak in peaks],
    )
    figure.update_xaxes(title="latency, us", tickangle=0, **log_axis(ends, most=4))
    return figure


def draw_load(curves: Sequence[LoadCurve], modes: Sequence[str], shown: Shown) -> Figure:
    """Latency over the achieved throughput: solid for the mean, dotted for p99. The numbers are iodepths.

    `shown` is how reports show the throughput.
    """
    unit, scale = shown.unit, shown.scale
    figure = Figure()
    labelled = sum(len(curve.points) for curve in curves) <= _POINTS_WITH_LABELS
    values: list[float] = []
    for curve in curves:
        look = look_of(modes, curve.arm.place, curve.arm.mode)
        for words, dash, open_, latencies in (
            ("p99", "dot", "-open", [(point, point.p99) for point in curve.points if point.p99 is not None]),
            ("mean", "solid", "", [(point, point.mean) for point in curve.points]),
        ):
            if not latencies:
                continue
            values += [latency.point * _US for _, latency in latencies]
            throughputs = [point.throughput for point, _ in latencies]
            with_text = words == "mean"
            style = {"color": look.colour, "thickness": 1, "width": 2}
            figure.add_trace(
                scatter(
                    x=[throughput.point / scale for throughput in throughputs],
                    y=[latency.point * _US for _, latency in latencies],
                    error_x=whiskers(throughputs, 1 / scale, **style),
                    error_y=whiskers([latency for _, latency in latencies], _US, **style),
                    mode="lines+markers+text" if with_text else "lines+markers",
                    text=[
                        str(point.iodepth) if labelled or point in (curve.points[0], curve.points[-1]) else ""
                        for point, _ in latencies
                    ]
                    if with_text
                    else None,
                    textposition="bottom right",
                    textfont={"size": 10, "color": look.colour},
                    name=f"{look.name}, {words}",
                    line={"color": look.colour, "width": 1.8 if with_text else 1.2, "dash": dash},
                    marker={"symbol": look.symbol + open_, "size": 6},
                    customdata=[
                        f"{look.name}, qd{point.iodepth}: {significant(point.throughput.point / scale)} {unit}, "
                        f"{words} {microseconds(latency.point)} us {microseconds_interval(latency)}".rstrip()
                        for point, latency in latencies
                    ],
                    meta=look.key,
                )
            )
    figure.update_layout(height=300, margin={"l": 58, "r": 14, "t": 10, "b": 44}, showlegend=False, hovermode="closest")
    loads = [point.throughput.point / scale for curve in curves for point in curve.points]
    set_scalable_axis(figure, "xaxis", loads, log=False, most=5)
    set_scalable_axis(figure, "yaxis", values, log=True)
    figure.update_xaxes(title=f"achieved {unit}")
    return figure


def _trace_outline(histogram: LatencyHistogram) -> Iterator[tuple[float, float]]:
    """The steps of a histogram: latency in us, and percent of the I/Os per doubling of the latency, from there on.

    Bins of different width are comparable so.
    """
    total, end = histogram.ios, 0
    for low, number in histogram.bins.items():
        if 0 < end < low:
            yield _round_to_digits(end / 1e3), 0.0
        end = upper_end(low, histogram.per_octave)
        yield _round_to_digits(low / 1e3), _round_to_digits(100 * number / total / math.log2(end / max(low, 0.5)), 3)
    yield _round_to_digits(end / 1e3), 0.0


def _describe_mark(name: str, quantile: float, mark: PooledPercentile) -> str:
    return f"{name}, p{quantile * 100:g}: {microseconds(mark.value)} us {microseconds_range(mark.low, mark.high)}"


def _format_share(share: float) -> str:
    """A share in percent with as many digits as distinguish it from 100 %."""
    return f"{share * 100:.{max(1, math.floor(find_decade(share)))}f}".rstrip("0").rstrip(".")


def _round_to_digits(value: float, number: int = 4) -> float:
    """So many significant digits: what a chart can show, and no more in the page."""
    return float(f"{value:.{number}g}")


def workload_tables(section: Section, workload: WorkloadCells, key: str) -> Iterator[Block]:
    """The latencies of a workload as tables, and its blocks in the order of time."""
    yield from latency_tables(section, workload, key)
    yield from order_blocks(section, workload, key)


REPORT = FeatureReport(workload_charts=latency_charts, workload_tables=workload_tables)
