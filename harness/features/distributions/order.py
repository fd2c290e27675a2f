"""The blocks of one job in the order in which they were measured: each arm's values, their spread and drift."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, stdev

from harness.analysis import METRICS, Estimate, Metric, estimate_drift
from harness.report.blocks import AtDepth, Block, Chart, Column, Fold, Row, join_words, make_table
from harness.report.draw import HOST, Figure, scatter, set_labelled_rows, translucent
from harness.report.numbers import count, percent, percent_with_interval, signed_percent, significant
from harness.report.section import ArmOfCell, Section, WorkloadCells, arms_of, look_of
from harness.results import CellRecord

_ROW = 34
"""The height of a row in pixels."""
_WHOLE_HEIGHT = {"y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
_LEAST, _MOST = 0.02, 1.0  # of the scale


def set_rows(figure: Figure, labels: Sequence[str], ranges: Sequence[tuple[float, float]], *, height: int = 26) -> None:
    """Put the traces with the axes y, y2, ... below each other, the first on top. They share the x axis.

    A row has a label, the range of its axis, and a `height` in pixels.
    """
    share = 1 / max(len(labels), 1)
    for number, (label, (low, high)) in enumerate(zip(labels, ranges, strict=True)):
        figure.layout[f"yaxis{number + 1 if number else ''}"] = {
            "domain": [max(0.0, 1 - (number + 1) * share + share * 0.08), 1 - number * share],
            "range": [low, high],
            "tickvals": [low if low == 0 else (low + high) / 2],
            "ticktext": [label],
            "ticksuffix": "  ",
            "zeroline": False,
        }
    set_labelled_rows(figure, labels, height=height)
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(anchor="free", position=0)


@dataclass(frozen=True, slots=True)
class MeasuredBlock:
    """One value of an arm."""

    at: float
    """Minutes since the run began, or the number of the block from 1 in a run of an older version."""
    value: float
    """In the metric's unit."""
    round: int
    number: int
    """Within the round."""
    boot: int


@dataclass(frozen=True, slots=True)
class ArmBlocks:
    """An arm's blocks in the order of time, at least one."""

    arm: ArmOfCell
    metric: Metric
    timed: bool
    """Whether it is known when the blocks were measured."""
    blocks: tuple[MeasuredBlock, ...]

    @property
    def mean(self) -> float:
        """The geometric mean, as in the tables of the workload."""
        return geometric_mean(self.values)

    @property
    def shown_mean(self) -> float:
        """The mean in the unit of the reports."""
        return self.mean / self.metric.shown.scale

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(block.value for block in self.blocks)

    @property
    def furthest(self) -> float:
        """The largest distance of a block from the mean, as a share of the mean."""
        return max(abs(value / self.mean - 1) for value in self.values)

    @property
    def spread(self) -> str:
        """The standard deviation in percent of the mean; a dash with one block."""
        return percent(stdev(self.values) / self.mean if len(self.blocks) > 1 else None)

    @property
    def ends(self) -> str:
        """The smallest and the largest value in percent of the mean: "-3.1 to +2.4"."""
        return " to ".join(signed_percent(end / self.mean - 1) for end in (min(self.values), max(self.values)))

    @property
    def drift(self) -> Estimate | None:
        """The change from the first block to the last, along a line through all; None without two times."""
        if len({block.at for block in self.blocks}) < 2:
            return None
        return estimate_drift([block.at for block in self.blocks], self.values)

    @property
    def change(self) -> str:
        """The drift in percent: "+1.2 [-0.4, 2.9]"."""
        return percent_with_interval(self.drift, signed=True)

    @property
    def boots(self) -> tuple[float, ...]:
        """Where a boot of the guest begins, but for the first."""
        pairs = zip(self.blocks, self.blocks[1:], strict=False)
        return tuple(after.at for before, after in pairs if before.boot != after.boot)


def order_blocks(section: Section, workload: WorkloadCells, key: str) -> Iterator[Block]:
    """The blocks of a workload in the order of time, their spread and drift; nothing without values."""
    by_depth = blocks_by_depth(workload.cells, section.run.run.started)
    if not by_depth:
        return
    chart = Chart(
        f"{key}-order",
        {depth: lambda arms=arms: draw_order(arms, section.modes) for depth, arms in by_depth.items()},  # type: ignore[misc]
        join_words(
            f"{workload.unit} of each block in the order of time",
            AtDepth(),
            ". A row is an arm around its mean, and all rows have the same scale. Shaded: rounds; dotted: the guest "
            "was booted again",
        ),
        "Values of the blocks of each arm over time; spread and drift are in the table",
    )
    table = make_table(
        [(depth, arm) for depth, arms in by_depth.items() for arm in arms],
        f"Spread and drift of the blocks of {workload.name} on {section.name}",
        (Column("iodepth, arm", "head"), lambda pair: f"{pair[0]} {pair[1].arm.label}"),
        (Column("blocks"), lambda pair: str(len(pair[1].blocks))),
        (Column(f"mean, {workload.unit}"), lambda pair: significant(pair[1].shown_mean)),
        (Column("standard deviation, %"), lambda pair: pair[1].spread),
        (Column("lowest to highest, %"), lambda pair: pair[1].ends),
        (Column("first to last, %"), lambda pair: pair[1].change),
        row=lambda pair: Row((), group=str(pair[0])),
        style="facts numbers",
    )
    summary = f"{workload.name}: block by block, order and drift ({order_sentence(by_depth)})"
    yield Fold(summary, (chart, table), style="more")


def arm_blocks(cells: Sequence[CellRecord], started: float) -> tuple[ArmBlocks, ...]:
    """The arms of one job in the metric that judges it. `started` is the begin of the run, in seconds since 1970."""
    found = []
    for arm in arms_of(cells):
        record, name = arm.cell, arm.cell.headline_name
        values = record.metrics[name].values(arm.source) if name in record.metrics else ()
        if not values or len(values) != len(record.rounds):
            continue
        timed = len(record.times) == len(values)
        at = [(time - started) / 60 for time in record.times] if timed else range(1, len(values) + 1)
        boots = record.boots or (1,) * len(values)
        numbers = (number for _, number in record.samples)
        blocks = map(MeasuredBlock, at, values, record.rounds, numbers, boots)
        found.append(ArmBlocks(arm, METRICS[name], timed, tuple(sorted(blocks, key=lambda block: block.at))))
    return tuple(found)


def blocks_by_depth(cells: Sequence[CellRecord], started: float) -> dict[int, tuple[ArmBlocks, ...]]:
    """The arms of the cells of one workload, by iodepth; without depths that have no values."""
    depths = sorted({cell.iodepth for cell in cells})
    found = {depth: arm_blocks([cell for cell in cells if cell.iodepth == depth], started) for depth in depths}
    return {depth: arms for depth, arms in found.items() if arms}


def rounds_of(found: Sequence[ArmBlocks]) -> tuple[tuple[float, float], ...]:
    """Where each round has its first and its last block, over all arms; without rounds in which all began at once."""
    by_round: dict[int, list[float]] = {}
    for each in found:
        for block in each.blocks:
            by_round.setdefault(block.round, []).append(block.at)
    return tuple((min(own), max(own)) for _, own in sorted(by_round.items()) if min(own) < max(own))


def order_sentence(by_depth: Mapping[int, Sequence[ArmBlocks]]) -> str:
    """How many blocks the arm with the most has: "20 blocks in 4 rounds and 2 boots"."""
    most = max((arm for arms in by_depth.values() for arm in arms), key=lambda arm: len(arm.blocks))
    rounds, boots = ({getattr(block, what) for block in most.blocks} for what in ("round", "boot"))
    words = f"{count(len(most.blocks), 'block')} in {count(len(rounds), 'round')}"
    return words + (f" and {count(len(boots), 'boot')}" if len(boots) > 1 else "")


def draw_order(found: Sequence[ArmBlocks], modes: Sequence[str]) -> Figure:
    """Each arm's values in a row around their mean. All rows have the same scale, in percent of their mean.

    Rounds are shaded. Dotted vertical lines are boots of the guest. Only with at least one arm.
    """
    reach = min(max(_LEAST, *(each.furthest for each in found)), _MOST) * 1.15
    figure = Figure()
    for number, each in enumerate(found):
        look, shown = look_of(modes, each.arm.place, each.arm.mode), each.metric.shown
        figure.add_trace(
            scatter(
                x=[round(block.at, 2) for block in each.blocks],
                y=[float(f"{block.value / shown.scale:.4g}") for block in each.blocks],
                yaxis=f"y{number + 1}" if number else "y",
                mode="markers",
                name=look.name,
                marker={"color": look.colour, "symbol": look.symbol, "size": 5},
                # Not whole sentences: a page may have thousands of blocks.
                customdata=[(block.round, block.number) for block in each.blocks],
                hovertemplate=f"{look.name}, round %{{customdata[0]}}, block %{{customdata[1]}}: "
                f"%{{y:,.4~r}} {shown.unit}<extra></extra>",
                meta=look.key,
            )
        )
    set_rows(
        figure,
        [look_of(modes, each.arm.place, each.arm.mode).name for each in found],
        ranges=[(each.shown_mean * (1 - reach), each.shown_mean * (1 + reach)) for each in found],
        height=_ROW,
    )
    for first, last in rounds_of(found):
        figure.add_shape(
            type="rect", x0=first, x1=last, **_WHOLE_HEIGHT, fillcolor=translucent(HOST, 0.1), line={"width": 0}
        )
    for at in max(found, key=lambda each: len(each.blocks)).boots:
        figure.add_shape(type="line", x0=at, x1=at, **_WHOLE_HEIGHT, line={"dash": "dot", "width": 1, "color": HOST})
    time = "minutes" if all(each.timed for each in found) else "block"
    figure.update_xaxes(
        title=f"{time} (rows: \N{PLUS-MINUS SIGN}{reach * 100:.3g} %)",
        exponentformat="none",
        zeroline=False,
    )
    return figure
