"""What an I/O costs the host: each arm's CPU time by part, cycles, exits, switches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis import Estimate, estimate_mean
from harness.feature import CPU_TIME, FeatureReport, ReportPlace
from harness.features.io_costs import CPU_PARTS, CYCLE_COSTS, IoCost, find_samples
from harness.report.blocks import (
    Aside,
    AtDepth,
    Block,
    Chart,
    Column,
    Fold,
    Heading,
    Inline,
    Key,
    Mark,
    Row,
    Table,
    join_words,
    microseconds_cell,
)
from harness.report.draw import HOST, Figure, bar, list_categories, safe, set_labelled_rows
from harness.report.numbers import confidence_words, microseconds, significant
from harness.report.section import Section, WorkloadCells, label_of
from harness.results import ArmName, CellRecord

PART_COLOURS = {
    "cpu_guest_mode": "#0a7abf",
    "cpu_vcpu": "#d55e00",
    "cpu_iothread": "#0b9a72",
    "cpu_worker": "#c067a0",
    "cpu_main": "#b3860b",
    "cpu_fio_system": "#7a6ad8",
    "cpu_rest": HOST,
}
"""Colours by part of the CPU time of an I/O. These are the colours of modes in other charts."""


@dataclass(frozen=True, slots=True)
class ArmCosts:
    """One arm of a workload at one depth. `mode` is None for the bare host."""

    place: ArmName
    mode: str | None
    figures: Mapping[str, Estimate]
    """The mean over the blocks of each figure that the arm has, in the unit of the cost."""

    @property
    def label(self) -> str:
        return label_of(self.place, self.mode)

    @property
    def total(self) -> Estimate | None:
        return self.figures.get(CPU_TIME)


def cost_blocks(section: Section) -> Iterator[Block]:
    """What an I/O costs the host in each workload of a disk; nothing if that was not counted."""
    counted = [(number, workload, _average_by_depth(workload)) for number, workload in enumerate(section.workloads, 1)]
    if not any(costs for _, _, costs in counted):
        return
    cycles = section.run.provenance.get("cycles")
    why = cycles.get("why") if isinstance(cycles, dict) and not cycles.get("counted") else None
    yield Heading("Where the time goes")
    yield Aside(
        join_words(
            "CPU time of the whole host per I/O, by part. ",
            Mark("Guest's kernel"),
            " is everything that runs in the guest except fio. ",
            Mark("vCPU exits"),
            " is the work of KVM and QEMU on the vCPUs' threads. Then come QEMU's other threads. ",
            Mark("Host's kernel and the rest"),
            " is the remaining time, mostly interrupts and kernel threads. fio's own time is left out on every arm. At "
            "full speed, an arm with fewer I/Os pays more for each, so compare modes at a fixed rate."
            + (f" Cycles: not counted: {why}." if why else ""),
        )
    )
    for number, workload, costs in counted:
        if costs:
            yield from _describe_costs(section, workload, costs, f"{section.key}-w{number}-costs")


def _describe_costs(section: Section, workload: WorkloadCells, costs: _ByDepth, key: str) -> Iterator[Block]:
    all_arms = [arm for arms in costs.values() for arm in arms]
    parts, cycles = _find_present(CPU_PARTS, all_arms), _find_present(CYCLE_COSTS, all_arms)
    names: list[Inline] = [", "] * (2 * len(parts) - 1)
    names[::2] = [Key(part.title, PART_COLOURS[part.name]) for part in parts]
    yield Chart(
        key,
        {depth: lambda arms=arms: draw_costs(arms) for depth, arms in costs.items()},  # type: ignore[misc]
        (Mark(workload.name, "bold"), ", us per I/O", AtDepth(), ": ", *names),
        "CPU time of the host per I/O by arm and part, as in the table",
    )
    counters = ("exits", "irq_injections", "switches", "qemu_switches")
    table = Table(
        (
            Column("iodepth, arm", "head"),
            Column("n"),
            Column("CPU time, us", "strong", interval=confidence_words(workload.cells)),
            *(Column(f"{part.title}, us") for part in parts),
            Column("fio itself, us"),
            *(Column(cost.title) for cost in cycles),
            *map(Column, ("KVM exits", "interrupts injected", "context switches", "QEMU's part of these")),
        ),
        tuple(
            Row(
                (
                    f"{depth} {arm.label}",
                    str(arm.total.n) if arm.total else "",
                    microseconds_cell(arm.total),
                    *(_format_us(arm.figures.get(part.name)) for part in parts),
                    _format_us(arm.figures.get("cpu_fio")),
                    *(_format_count(arm.figures.get(name)) for name in (*(cost.name for cost in cycles), *counters)),
                ),
                group=str(depth),
            )
            for depth, arms in costs.items()
            for arm in arms
        ),
        f"What an I/O of {workload.name} costs the host on {section.name}",
        style="facts numbers",
    )
    yield Fold(f"{workload.name}: figures per I/O", (table,), key=f"{key}-table")


_ByDepth = Mapping[int, tuple[ArmCosts, ...]]


def _average_by_depth(workload: WorkloadCells) -> _ByDepth:
    """What an I/O costs the host on each arm, by iodepth; without depths at which it was not counted."""
    at = {depth: [cell for cell in workload.cells if cell.iodepth == depth] for depth in workload.depths}
    return {depth: arms for depth, cells in at.items() if (arms := average_costs(cells))}


def _format_us(estimate: Estimate | None) -> str:
    return microseconds(estimate.point if estimate else None)


def _format_count(estimate: Estimate | None) -> str:
    return significant(estimate.point if estimate else None)


def average_costs(cells: Sequence[CellRecord]) -> tuple[ArmCosts, ...]:
    """The host, then twin and guest of each mode, for cells of one job. Arms that are void or not counted are absent.

    The cells share the host. Its values come from the cell with the most blocks.
    """
    usable = [cell for cell in cells if cell.usable]
    bare = [cell for cell in usable if cell.mode_detail.has_bare_host]
    hosts = [_average_arm(cell, "host") for cell in sorted(bare, key=lambda cell: -len(cell.rounds))[:1]]
    places: tuple[ArmName, ...] = ("twin", "guest")
    modes = [_average_arm(cell, place) for cell in usable for place in places]
    return tuple(arm for arm in (*hosts, *modes) if arm.total is not None)


def _average_arm(cell: CellRecord, place: ArmName) -> ArmCosts:
    values: dict[str, tuple[float, ...]] = {name: getattr(cost, place) for name, cost in cell.accounting.items()}
    figures = {
        name: estimate_mean(of_blocks, confidence=cell.confidence, samples=find_samples(cell, of_blocks))
        for name, of_blocks in values.items()
        if of_blocks
    }
    return ArmCosts(place, None if place == "host" else cell.mode, figures)


def _find_present(costs: Sequence[IoCost], arms: Sequence[ArmCosts]) -> tuple[IoCost, ...]:
    """The costs that at least one of these arms has."""
    return tuple(cost for cost in costs if any(cost.name in arm.figures for arm in arms))


def draw_costs(arms: Sequence[ArmCosts]) -> Figure:
    """CPU time of the host per I/O in us, arm by arm. Its parts add up to the length of the bar."""
    labels = [safe(arm.label) for arm in arms]
    figure = Figure()
    for part in _find_present(CPU_PARTS, arms):
        estimates = [arm.figures.get(part.name) for arm in arms]
        figure.add_trace(
            bar(
                orientation="h",
                name=part.title,
                y=labels,
                x=[None if estimate is None else estimate.point * 1e6 for estimate in estimates],
                marker={"color": PART_COLOURS[part.name]},
                customdata=[_format_us(estimate) for estimate in estimates],
                hovertemplate=f"%{{y}}, {part.title}: %{{customdata}} us<extra></extra>",
            )
        )
    set_labelled_rows(figure, labels, height=26)
    figure.update_layout(height=70 + 26 * len(arms), barmode="stack", bargap=0.3)
    figure.update_xaxes(title="CPU time of the host per I/O, us", rangemode="tozero", exponentformat="none")
    list_categories(figure, labels, showgrid=False)
    return figure


REPORT = FeatureReport(contents={ReportPlace.COSTS: cost_blocks})
