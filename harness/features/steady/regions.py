"""Whether each region of a disk reached its steady state before it was measured, as SNIA judges it."""

from __future__ import annotations

from collections.abc import Iterator

from harness.features.steady import SteadyState, judge_steadiness
from harness.report.blocks import Aside, Banner, Block, Chart, Column, Inline, Mark, Panels, TableCell, make_table
from harness.report.draw import HOST, LAYER, VIRTUALISATION, Figure, band, scatter, translucent
from harness.report.numbers import percent, significant
from harness.results import ConditioningRecord, RegionSteadiness, Run

_BAND = 0.10  # half of the range that SNIA allows in the window: 20 % of its mean
_NOT_STEADY = Mark("not steady", "verdict", "exceeds")


def region_blocks(disk: str, record: ConditioningRecord, key: str) -> Iterator[Block]:
    """Each region of a disk: in a table with its limits, and drawn."""
    steady, unsteady = TableCell("steady", tone="within"), TableCell("not steady", tone="exceeds")
    yield make_table(
        record.regions,
        f"Steady state of {disk}",
        (Column("region", "head"), lambda region: region.region),
        (Column("steady", "text"), lambda region: steady if region.steady else unsteady),
        (Column("rounds"), lambda region: str(len(region.values))),
        (Column("range of the last five, %"), lambda region: percent(region.range_share)),
        (Column("allowed"), lambda _region: "20"),
        (Column("rise or fall, %"), lambda region: percent(region.excursion_share)),
        (Column("allowed"), lambda _region: "\N{PLUS-MINUS SIGN}10"),
        style="facts numbers",
    )
    drawn = [(number, region) for number, region in enumerate(record.regions, start=1) if region.values]
    yield Panels(tuple(_make_chart(region, f"{key}-region{number}") for number, region in drawn))
    yield Aside(
        "The band is \N{PLUS-MINUS SIGN}10 % around the mean of the last five rounds, the solid line in it is their "
        "mean, and the dashed line is the fit. A disk is steady, by SNIA's Solid State Storage Performance Test "
        "Specification, if largest minus smallest of the five is at most 20 % of their mean, and the fitted line "
        "changes by at most 10 %."
    )


def _make_chart(region: RegionSteadiness, key: str) -> Chart:
    unsteady: tuple[Inline, ...] = () if region.steady else (", ", _NOT_STEADY)
    return Chart(
        key,
        lambda: draw_steadiness(region),
        (f"{region.region}: IOPS per round", *unsteady),
        f"IOPS per round of {region.region}, as judged in the table",
        style="",
    )


def warn_of_unsteady_disks(run: Run) -> Iterator[Banner]:
    """A warning for each disk that did not reach a steady state before it was measured."""
    regions: dict[str, dict[str, None]] = {}
    for group in run.groups:
        if group.conditioning is not None and group.conditioning.steady is False:
            unsteady = (region.region for region in group.conditioning.regions if not region.steady)
            regions.setdefault(group.disk, {}).update(dict.fromkeys(unsteady))
    for disk, names in regions.items():
        yield Banner(
            "steady",
            "Not steady",
            f"{disk} did not reach a steady state before it was measured ({', '.join(names)}). You can compare modes "
            "with their host, block by block; no figure shows the disk's long-term performance.",
        )


def draw_steadiness(region: RegionSteadiness) -> Figure:
    """IOPS by round, and for the last five rounds the mean, +-10 % around it, and the fitted line."""
    values = region.values
    figure = Figure()
    if values:
        _draw_window(figure, judge_steadiness(values), last=len(values))
    figure.add_trace(
        scatter(
            x=list(range(1, len(values) + 1)),
            y=list(values),
            mode="lines+markers",
            line={"color": HOST, "width": 1.8},
            marker={"size": 6},
            customdata=[f"round {number}: {significant(value)} IOPS" for number, value in enumerate(values, start=1)],
        )
    )
    figure.update_layout(height=230, margin={"l": 58, "r": 10, "t": 10, "b": 44}, showlegend=False, hovermode="closest")
    figure.update_xaxes(title="round", dtick=1 if len(values) <= 12 else 5, range=[0.5, max(len(values), 5) + 0.5])
    figure.update_yaxes(range=[0, max(values, default=1) * 1.12], separatethousands=True, exponentformat="none")
    return figure


def _draw_window(figure: Figure, window: SteadyState, *, last: int) -> None:
    first = last - len(window.window) + 1
    around = [first - 0.3, last + 0.3]
    upper, lower = ([window.mean * (1 + side)] * 2 for side in (_BAND, -_BAND))
    figure.add_trace(band(around, upper, lower, translucent(VIRTUALISATION, 0.16)))
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
