"""Searches for the highest load within a bound of the latency: what each arm sustains, its rates, and the curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from harness.analysis import METRICS
from harness.feature import FeatureReport, ReportPlace
from harness.features.search.curve import LimitedBy
from harness.features.search.request import SearchArm, SearchedRate, SearchRecord
from harness.report.blocks import (
    MOST_LISTED,
    Aside,
    Block,
    Chart,
    Column,
    Heading,
    Listing,
    Mark,
    On,
    Part,
    Row,
    Sentence,
    Table,
    TableCell,
    make_table,
)
from harness.report.draw import HOST, Figure, Trace, band, log_axis, scatter, translucent
from harness.report.numbers import count, microseconds, microseconds_range, significant
from harness.report.section import Section, look_of
from harness.units import format_duration

_LIMITED = {
    LimitedBy.FULL_SPEED: "its full speed",
    LimitedBy.HIGHEST: "the highest rate measured",
}
_UNKNOWN = "too few samples"
_US = 1e6


def search_blocks(section: Section) -> Iterator[Block]:
    """The searches of a disk; nothing if it has none."""
    records = section.own(section.run.of(SearchRecord))
    if not records:
        return
    yield Heading("Highest load within a bound")
    yield Aside(
        "The highest number of I/Os per second at which the latency stays below the bound. Each rate runs on each arm "
        "in slices that alternate with other arms and rates. The curve is monotone: more load is never faster. The "
        "interval of the load is where the curve's interval contains the bound. A rate of which an arm completes less "
        "than 95 % counts as above the bound."
    )
    for number, record in enumerate(records, start=1):
        yield from _search_blocks(record, section.modes, f"{section.key}-search{number}")
    sentences = tuple(sentence for record in records for sentence in search_sentences(record, section.modes))
    yield Listing(sentences, on=On.TERMINAL, most=MOST_LISTED)


def _search_blocks(record: SearchRecord, modes: Sequence[str], key: str) -> Iterator[Block]:
    arms, metric = measured_arms(record, modes), _metric_words(record)
    title = f"{record.name}: {record.job}, {_condition(record)}"
    rates = make_table(
        [(arm, rate) for arm in arms for rate in arm.rates],
        f"Rates of {title}",
        (Column("arm", "mode"), lambda pair: pair[0].arm),
        (Column("rate", "head"), lambda pair: "full speed" if pair[1].rate is None else significant(pair[1].rate)),
        (Column("achieved IOPS"), lambda pair: significant(fmean(pair[1].iops))),
        (
            Column(f"{metric} us", "strong", interval=f"{record.confidence * 100:.0f} %"),
            lambda pair: TableCell(microseconds(pair[1].latency), interval=_rate_interval(pair[1])),
        ),
        (Column("blocks"), lambda pair: str(len(pair[1].iops))),
        (Column("CPU us per I/O"), lambda pair: microseconds(pair[1].cpu)),
        (Column("remark"), lambda pair: _remark(pair[1])),
        row=lambda pair: Row((), doubtful=bool(_remark(pair[1]) or pair[0].doubt), group=pair[0].arm),
        style="cells search",
    )
    chart = Chart(
        key,
        lambda: draw_search(record, modes),
        f"{metric} over load; dotted: the bound; large markers: the highest load with its interval; dashed: twins",
        "Latency over load of each arm, as in the table",
    )
    # What was measured, and why it ended.
    basis = f"{count(record.rounds, 'round')}; {record.stopped or 'the run ended before the search did'}."
    yield Part(title, (Listing(search_sentences(record, modes)), chart, rates, Aside(basis)), key)
    yield Sentence((Mark(title, "strong"),), on=On.MARKDOWN)
    yield Table(
        (Column("arm", "mode"), Column(f"highest load at {_condition(record)}", "text")),
        tuple(Row((arm.arm, load_words(arm))) for arm in arms),
        title,
        on=On.MARKDOWN,
    )


def _remark(rate: SearchedRate) -> str:
    return "not reached" if not rate.reached else _UNKNOWN if rate.latency is None else ""


def measured_arms(record: SearchRecord, modes: Sequence[str]) -> tuple[SearchArm, ...]:
    """The arms that have a rate: the host, then twin and guest of each mode."""
    by_id = {arm.arm: arm for arm in record.arms if arm.rates}
    ids = ("host", *(f"{place}:{mode}" for mode in modes for place in ("twin", "guest")))
    return tuple(by_id[arm] for arm in ids if arm in by_id)


def search_sentences(record: SearchRecord, modes: Sequence[str]) -> tuple[str, ...]:
    """One per mode, for example "at p99 < 1 ms, the VM in mode lvm sustains 41 000 IOPS; the host sustains ...".

    Without a mode, the host alone has one.
    """
    arms = {arm.arm: arm for arm in measured_arms(record, modes)}
    host = [_sustains("the host", arms["host"])] if "host" in arms else []
    of_modes = []
    for mode in modes:
        subjects = {f"guest:{mode}": f"the VM in mode {mode}", f"twin:{mode}": "its twin"}
        if measured := [_sustains(subject, arms[arm]) for arm, subject in subjects.items() if arm in arms]:
            of_modes.append([*measured, *host])
    if host and not of_modes:
        of_modes.append(host)
    return tuple(f"{record.job} at {_condition(record)}: {'; '.join(parts)}" for parts in of_modes)


def load_words(arm: SearchArm) -> str:
    """The highest load: "41 000 IOPS [39 800, 42 100]", "none, not even 110 IOPS", or why it is not known.

    The interval begins at 0 if not even the lowest rate surely keeps the bound. Without an upper end, there is none.
    """
    if arm.doubt:
        return f"not a result: {arm.doubt}"
    if arm.limited_by is None:
        return _UNKNOWN
    if arm.limited_by is LimitedBy.LOWEST or arm.iops is None:
        return f"none, not even {significant(fmean(arm.rates[0].iops))} IOPS"
    more = " or more" if arm.limited_by is LimitedBy.HIGHEST else ""
    interval = "" if arm.high is None else f"[{significant(arm.low or 0.0)}, {significant(arm.high)}]"
    why = _LIMITED.get(arm.limited_by)
    return f"{significant(arm.iops)} IOPS{more} {interval}".rstrip() + (f" ({why})" if why else "")


def _sustains(subject: str, arm: SearchArm) -> str:
    return f"{subject} sustains {load_words(arm)}" if _is_known(arm) else f"{subject}: {load_words(arm)}"


def _is_known(arm: SearchArm) -> bool:
    """Whether the highest load is known, and is a result."""
    return arm.iops is not None and not arm.doubt


def _rate_interval(rate: SearchedRate) -> str:
    return "" if rate.low is None or rate.high is None else microseconds_range(rate.low, rate.high)


def _metric_words(record: SearchRecord) -> str:
    """For example "p99" or "p99.9"; the name of a metric that is not a percentile."""
    quantile = METRICS[record.metric].quantile
    return record.metric if quantile is None else f"p{quantile * 100:g}"


def _condition(record: SearchRecord) -> str:
    """For example "p99 < 1 ms"."""
    return f"{_metric_words(record)} < {format_duration(record.bound)}"


def draw_search(record: SearchRecord, modes: Sequence[str]) -> Figure:
    """The fitted latency in us over the achieved IOPS, with bands. A large marker is the result with its interval."""
    arms, bound = measured_arms(record, modes), record.bound * _US
    figure = Figure(*(trace for arm in arms for trace in _traces(arm, modes, bound)), showlegend=False)
    line = {"dash": "dot", "width": 1.4, "color": HOST}
    figure.add_shape(type="line", x0=0, x1=1, xref="x domain", y0=bound, y1=bound, line=line)
    latencies = [rate.latency * _US for arm in arms for rate in arm.rates if rate.latency is not None]
    figure.update_layout(height=340, margin={"l": 58, "r": 14, "t": 10, "b": 44}, hovermode="closest")
    figure.update_xaxes(title="achieved IOPS", rangemode="tozero", separatethousands=True, exponentformat="none")
    figure.update_yaxes(title=f"{_metric_words(record)}, us", **log_axis([*latencies, bound]))
    return figure


def _traces(arm: SearchArm, modes: Sequence[str], bound: float) -> Iterator[Trace]:
    """The band, the curve, and the result at the `bound` in us."""
    place, _, mode = arm.arm.partition(":")
    look = look_of(modes, place, mode or None)
    rates = [rate for rate in arm.rates if rate.latency is not None]
    loads = [fmean(rate.iops) for rate in rates]
    upper, lower = ([(getattr(rate, end) or 0.0) * _US for rate in rates] for end in ("high", "low"))
    yield band(loads, upper, lower, translucent(look.colour, 0.14), meta=arm.arm)
    yield scatter(
        x=loads,
        y=[(rate.latency or 0.0) * _US for rate in rates],
        mode="lines+markers",
        name=look.name,
        line={"color": look.colour, "width": 1.8, "dash": look.dash},
        marker={"symbol": look.symbol, "size": 5},
        customdata=[
            f"{look.name}: {significant(fmean(rate.iops))} IOPS, {microseconds(rate.latency)} us {_rate_interval(rate)}"
            for rate in rates
        ],
        meta=arm.arm,
    )
    if arm.iops is None or not _is_known(arm):
        return
    low, high = arm.low or 0.0, arm.iops if arm.high is None else arm.high
    yield scatter(
        x=[arm.iops],
        y=[bound],
        error_x={"type": "data", "symmetric": False, "array": [high - arm.iops], "arrayminus": [arm.iops - low]},
        mode="markers",
        marker={"symbol": look.symbol, "size": 10, "color": look.colour},
        customdata=[f"{look.name}: {load_words(arm)}"],
        meta=arm.arm,
    )


REPORT = FeatureReport(records=(SearchRecord,), contents={ReportPlace.FINDINGS: search_blocks})
