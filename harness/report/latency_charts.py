"""Charts of latencies: percentiles on a log scale, the whole histogram, and latency over load."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import plotly.graph_objects as go

from harness.analysis import LatencyHistogram, upper_end, wider_bins
from harness.analysis.metrics import Shown
from harness.report.arms import look_of
from harness.report.axes import in_rows, log_axis, scalable, whiskers
from harness.report.latencies import STEPS_OF_DECADE, Distribution, LoadCurve, decades
from harness.report.numbers import microseconds, microseconds_interval, microseconds_range, significant
from harness.results import PooledPercentile

_US = 1e6
_TICKS = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)
_DRAWN_PER_OCTAVE = 8
_POINTS_WITH_LABELS = 30


def percentiles_chart(found: Sequence[Distribution], modes: Sequence[str]) -> go.Figure:
    """The latency that a share of the calls does not exceed. The share's axis is logarithmic towards 100 %, as in
    plots of HdrHistogram. The markers are the percentiles of the tables, with their intervals."""
    figure = go.Figure()
    values: list[float] = []
    farthest = decades(0.9)
    for each in found:
        look = look_of(modes, each.arm.place, each.arm.mode)
        curve = each.curve
        values += [latency * _US for latency in curve]
        farthest = max(farthest, (len(curve) - 1) / STEPS_OF_DECADE)
        figure.add_trace(
            go.Scatter(
                x=[step / STEPS_OF_DECADE for step in range(len(curve))],
                y=[_digits(latency * _US) for latency in curve],
                mode="lines",
                name=look.name,
                line={"color": look.colour, "width": 1.8, "dash": look.dash},
                customdata=[_share(1 - 10 ** (-step / STEPS_OF_DECADE)) for step in range(len(curve))],
                hovertemplate=f"{look.name}: %{{customdata}} % within %{{y:,.3~r}} us<extra></extra>",
                meta=look.key,
            )
        )
        if each.marks:
            pooled = [mark for _, mark in each.marks]
            figure.add_trace(
                go.Scatter(
                    x=[decades(quantile) for quantile, _ in each.marks],
                    y=[_digits(mark.value * _US) for mark in pooled],
                    error_y={
                        "type": "data",
                        "symmetric": False,
                        "array": [_digits((mark.high - mark.value) * _US) for mark in pooled],
                        "arrayminus": [_digits((mark.value - mark.low) * _US) for mark in pooled],
                    },
                    mode="markers",
                    name=look.name,
                    marker={"color": look.colour, "symbol": look.symbol, "size": 5},
                    customdata=[_exact(look.name, quantile, mark) for quantile, mark in each.marks],
                    hovertemplate="%{customdata}<extra></extra>",
                    meta=look.key,
                )
            )
    ticks = [quantile for quantile in _TICKS if decades(quantile) <= farthest + 0.05]
    figure.update_layout(height=300, margin={"l": 58, "r": 14, "t": 10, "b": 44}, showlegend=False, hovermode="closest")
    figure.update_xaxes(
        title="share of the I/Os, %",
        tickvals=[decades(quantile) for quantile in ticks],
        ticktext=[_share(quantile) for quantile in ticks],
        range=[-0.05, farthest + 0.1],
    )
    figure.update_yaxes(**log_axis(values))
    return figure


def histogram_chart(found: Sequence[Distribution], modes: Sequence[str]) -> go.Figure:
    """The distribution of each arm in a row of its own: the share of I/Os for each doubling of the latency.

    The line reaches from the fastest I/O to the slowest. Each row has a scale of its own.
    """
    figure = go.Figure()
    ends: list[float] = []
    for number, each in enumerate(found):
        look = look_of(modes, each.arm.place, each.arm.mode)
        points = list(_outline(wider_bins(each.histogram, _DRAWN_PER_OCTAVE)))
        ends += [points[0][0], points[-1][0]]
        figure.add_trace(
            go.Scatter(
                x=[latency for latency, _ in points],
                y=[share for _, share in points],
                yaxis=f"y{number + 1}" if number else "y",
                mode="lines",
                name=look.name,
                line={"color": look.colour, "width": 1.2, "shape": "hv"},
                fill="tozeroy",
                fillpattern={"shape": "/", "size": 4, "solidity": 0.3} if each.arm.place == "twin" else None,
                hovertemplate=f"{look.name}, from %{{x:,.3~r}} us: %{{y:.3~r}} % per doubling<extra></extra>",
                meta=look.key,
            )
        )
    peaks = [max(trace.y) for trace in figure.data]
    in_rows(
        figure,
        [look_of(modes, each.arm.place, each.arm.mode).name for each in found],
        ranges=[(0.0, peak * 1.08) for peak in peaks],
    )
    figure.update_xaxes(title="latency, us", tickangle=0, **log_axis(ends, most=4))
    return figure


def load_chart(curves: Sequence[LoadCurve], modes: Sequence[str], shown: Shown) -> go.Figure:
    """Latency over the achieved throughput: solid for the mean, dotted for p99. The numbers are iodepths.

    `shown` is how reports show the throughput.
    """
    unit, scale = shown.unit, shown.scale
    figure = go.Figure()
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
                go.Scatter(
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
                    hovertemplate="%{customdata}<extra></extra>",
                    meta=look.key,
                )
            )
    figure.update_layout(height=300, margin={"l": 58, "r": 14, "t": 10, "b": 44}, showlegend=False, hovermode="closest")
    loads = [point.throughput.point / scale for curve in curves for point in curve.points]
    scalable(figure, "xaxis", loads, log=False, most=5)
    scalable(figure, "yaxis", values, log=True)
    figure.update_xaxes(title=f"achieved {unit}")
    return figure


def _outline(histogram: LatencyHistogram) -> Iterator[tuple[float, float]]:
    """The steps of a histogram: latency in us, and percent of the I/Os per doubling of the latency, from there on.

    Bins of different width are comparable so.
    """
    total, end = histogram.ios, 0
    for low, number in histogram.bins.items():
        if 0 < end < low:
            yield _digits(end / 1e3), 0.0
        end = upper_end(low, histogram.per_octave)
        yield _digits(low / 1e3), _digits(100 * number / total / math.log2(end / max(low, 0.5)), 3)
    yield _digits(end / 1e3), 0.0


def _exact(name: str, quantile: float, mark: PooledPercentile) -> str:
    return f"{name}, p{quantile * 100:g}: {microseconds(mark.value)} us {microseconds_range(mark.low, mark.high)}"


def _share(share: float) -> str:
    """A share in percent with as many digits as distinguish it from 100 %."""
    return f"{share * 100:.{max(1, math.floor(decades(share)))}f}".rstrip("0").rstrip(".")


def _digits(value: float, number: int = 4) -> float:
    """So many significant digits: what a chart can show, and no more in the page."""
    return float(f"{value:.{number}g}")
