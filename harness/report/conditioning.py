"""Conditioning of disks before they are measured: whether each region reached a steady state, as SNIA judges it."""

from __future__ import annotations

from collections.abc import Iterator

from harness.analysis import SteadyState, steady_state
from harness.report.blocks import Aside, Block, Cell, Chart, Column, Heading, Inline, Mark, Panels, Row, Sentence, Table
from harness.report.draw import Figure, scatter
from harness.report.numbers import count, percent, significant
from harness.report.theme import HOST, LAYER, VIRTUALISATION, translucent
from harness.results import ConditioningRecord, RegionSteadiness, Run

_BAND = 0.10  # half of the range that SNIA allows in the window: 20 % of its mean
_NOT_STEADY = Mark("not steady", "verdict", "exceeds")


def conditioning_blocks(run: Run) -> Iterator[Block]:
    """How each disk was conditioned; nothing if none was."""
    conditionings = conditionings_of(run)
    if conditionings:
        yield Heading("Conditioning")
    for number, (disk, record, groups) in enumerate(conditionings, start=1):
        unsteady: tuple[Inline, ...] = (" ", _NOT_STEADY) if record.steady is False else ()
        group_names = Mark(f"({', '.join(groups)})", "small")
        yield Sentence((Mark(disk, "bold"), *unsteady, f": {conditioning_sentence(record)} ", group_names))
        if record.regions:
            yield from _region_blocks(disk, record, f"conditioning{number}")


def _region_blocks(disk: str, record: ConditioningRecord, key: str) -> Iterator[Block]:
    yield Table(
        (
            Column("region", "head"),
            Column("steady", "text"),
            *map(Column, ("rounds", "range of the last five, %", "allowed", "rise or fall, %")),
            Column("allowed"),
        ),
        tuple(map(_row, record.regions)),
        f"Steady state of {disk}",
        style="facts numbers",
    )
    drawn = [(number, region) for number, region in enumerate(record.regions, start=1) if region.values]
    yield Panels(tuple(_chart(region, f"{key}-region{number}") for number, region in drawn))
    yield Aside(
        "The band is \N{PLUS-MINUS SIGN}10 % around the mean of the last five rounds, the solid line in it is their "
        "mean, and the dashed line is the fit. A disk is steady, by SNIA's Solid State Storage Performance Test "
        "Specification, if largest minus smallest of the five is at most 20 % of their mean, and the fitted line "
        "changes by at most 10 %."
    )


def _row(region: RegionSteadiness) -> Row:
    steady = Cell("steady", tone="within") if region.steady else Cell("not steady", tone="exceeds")
    shares = (percent(region.range_share), "20", percent(region.excursion_share), "\N{PLUS-MINUS SIGN}10")
    return Row((region.region, steady, str(len(region.values)), *shares))


def _chart(region: RegionSteadiness, key: str) -> Chart:
    unsteady: tuple[Inline, ...] = () if region.steady else (", ", _NOT_STEADY)
    return Chart(
        key,
        lambda: draw_steadiness(region),
        (f"{region.region}: IOPS per round", *unsteady),
        f"IOPS per round of {region.region}, as judged in the table",
        style="",
    )


def conditionings_of(run: Run) -> list[tuple[str, ConditioningRecord, list[str]]]:
    """Each conditioning of a disk once: the disk, the record, and the groups that were measured after it."""
    shared: list[tuple[str, ConditioningRecord, list[str]]] = []
    for group in run.groups:
        if group.conditioning is None:
            continue
        for disk, record, names in shared:
            if (disk, record) == (group.disk, group.conditioning):
                names.append(group.id)
                break
        else:
            shared.append((group.disk, group.conditioning, [group.id]))
    return shared


def unsteady_disks(run: Run) -> frozenset[str]:
    """The disks that did not reach a steady state before they were measured."""
    return frozenset(disk for disk, record, _ in conditionings_of(run) if record.steady is False)


def conditioning_sentence(record: ConditioningRecord) -> str:
    """What was written before the disk was measured, and whether it became steady."""
    if record.method == "fill":
        return (
            "Every region was written once only. A new SSD writes faster than it will later, so compare modes with "
            "each other and not with data sheets."
        )
    steady = sum(region.steady for region in record.regions)
    reached = f"{steady} of {count(len(record.regions), 'region')} reached a steady state"
    return f"Purged, written twice at 128 KiB, then {record.job or 'a job'} was repeated: {reached}."


def draw_steadiness(region: RegionSteadiness) -> Figure:
    """IOPS by round, and for the last five rounds the mean, +-10 % around it, and the fitted line."""
    values = region.values
    figure = Figure()
    if values:
        _draw_window(figure, steady_state(values), last=len(values))
    figure.add_trace(
        scatter(
            x=list(range(1, len(values) + 1)),
            y=list(values),
            mode="lines+markers",
            line={"color": HOST, "width": 1.8},
            marker={"size": 6},
            customdata=[f"round {number}: {significant(value)} IOPS" for number, value in enumerate(values, start=1)],
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    figure.update_layout(height=230, margin={"l": 58, "r": 10, "t": 10, "b": 44}, showlegend=False, hovermode="closest")
    figure.update_xaxes(title="round", dtick=1 if len(values) <= 12 else 5, range=[0.5, max(len(values), 5) + 0.5])
    figure.update_yaxes(range=[0, max(values, default=1) * 1.12], separatethousands=True, exponentformat="none")
    return figure


def _draw_window(figure: Figure, window: SteadyState, *, last: int) -> None:
    first = last - len(window.window) + 1
    around = [first - 0.3, last + 0.3]
    figure.add_trace(
        scatter(
            x=[*around, *around[::-1]],
            y=[window.mean * (1 + _BAND)] * 2 + [window.mean * (1 - _BAND)] * 2,
            fill="toself",
            fillcolor=translucent(VIRTUALISATION, 0.16),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
        )
    )
    rise = window.slope * (len(window.window) - 1) / 2
    for ends, colour, dash in (
        ([window.mean, window.mean], VIRTUALISATION, "solid"),
        ([window.mean - rise, window.mean + rise], LAYER, "dash"),
    ):
        figure.add_trace(
            scatter(
                x=[first, last],
                y=ends,
                mode="lines",
                line={"color": colour, "width": 1.6, "dash": dash},
                hoverinfo="skip",
            )
        )
