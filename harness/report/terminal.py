"""The terminal's summary of a run: one row per cell with its overhead, and the lines around the table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.report.cells import CellView, Outcome
from harness.report.model import Section, WorkloadView, report_view
from harness.report.numbers import microseconds, percent_with_interval, short
from harness.results import Run
from harness.units import format_duration

ID_WIDTH = 100
"""From this width on a row carries the cell's id; below it, rows stand under their workload and say depth and mode."""

_STYLES = {
    Outcome.WITHIN: "green",
    Outcome.EXCEEDS: "bold red",
    Outcome.VOID: "bold magenta",
    Outcome.INCONCLUSIVE: "yellow",
}


def overhead_table(run: Run, *, width: int) -> RenderableType:
    """The cells with a guest, in the order of the plan, for a terminal of `width` columns.

    Host and guest are IOPS of random jobs and MB/s of sequential ones; overhead is in percent with its 95 % interval.
    """
    cells = [cell for section in report_view(run).sections for cell in section.cells if not cell.is_baseline]
    if not cells:
        return Text("no cell with a guest was planned")
    if width >= ID_WIDTH:
        return _table("cell", [(cell.id, cell) for cell in cells], width)
    return _by_workload(report_view(run).sections, width)


def overhead_text(run: Run, *, width: int) -> str:
    """The table as plain text, without colours."""
    console = Console(width=width, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(overhead_table(run, width=width))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def print_run(run: Run, console: Console | None = None) -> None:
    """The table and the lines around it, on standard output; colours only where it is a terminal."""
    console = console or Console(highlight=False)
    console.print(overhead_table(run, width=console.width))
    for line in summary_lines(run):
        console.print(line, markup=False, soft_wrap=True)


def summary_lines(run: Run, path: Path | None = None) -> list[str]:
    """What to say beside the table: warnings first, the headline per disk, efficiency, and where the report is."""
    view = report_view(run)
    lines = [f"{banner.title}: {banner.text}" for banner in view.banners]
    for section in view.sections:
        lines.append(section.headline.sentence)
        lines += [f"  {detail}" for detail in section.headline.details]
    counts = ", ".join(f"{number} {outcome}" for outcome, number in view.counts.items())
    if counts:
        lines.append(f"cells: {counts}")
    lines.append(efficiency_line(run))
    if path is not None:
        lines.append(f"report: {path}")
    return lines


def efficiency_line(run: Run) -> str:
    """For example `fio ran 192 s of 214 s: 0.90`."""
    spent = run.run.efficiency
    return f"fio ran {_seconds(spent.fio_s)} of {_seconds(spent.wall_s)}: {spent.ratio:.2f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else format_duration(seconds)


def _by_workload(sections: Sequence[Section], width: int) -> Group:
    widest = max(len(_row_name(cell)) for section in sections for cell in section.cells)
    parts: list[RenderableType] = []
    for section in sections:
        for workload in section.workloads:
            rows = [(_row_name(cell), cell) for cell in workload.cells if not cell.is_baseline]
            if rows:
                parts += [
                    Text(f"{section.name} {workload.name}", style="bold"),
                    _workload(rows, workload, width, widest),
                ]
    return Group(*parts)


def _workload(rows: Sequence[tuple[str, CellView]], workload: WorkloadView, width: int, widest: int) -> Table:
    return _table("", rows, width, unit=workload.cells[0].throughput_unit, name_width=widest)


def _row_name(cell: CellView) -> str:
    return f"qd{cell.iodepth} {cell.mode}"


def _table(
    first: str, rows: Sequence[tuple[str, CellView]], width: int, *, unit: str = "", name_width: int | None = None
) -> Table:
    table = Table(box=None, padding=(0, 2 if width >= ID_WIDTH else 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(first, overflow="fold", min_width=min(name_width or 0, 24))
    for name in (f"host {unit}", f"guest {unit}") if unit else ("host", "guest"):
        table.add_column(name, justify="right", min_width=5, no_wrap=not unit)
    if not unit:
        table.add_column("unit", no_wrap=True)
    table.add_column("overhead % [95 %]", justify="right", no_wrap=True, min_width=17)
    table.add_column("n", justify="right", no_wrap=True, min_width=2)
    table.add_column("added us", justify="right", no_wrap=not unit, min_width=5)
    table.add_column("verdict", no_wrap=True, min_width=12)
    for name, cell in rows:
        outcome = Text(cell.outcome, style=_STYLES.get(cell.outcome, ""))
        host, guest, *rest = map(Text, row_values(cell))
        units = () if unit else (Text(cell.throughput_unit),)
        table.add_row(Text(name), host, guest, *units, *rest, outcome)
    return table


def row_values(cell: CellView) -> tuple[str, str, str, str, str]:
    """Host, guest, overhead with interval, n and added latency of a cell, as narrow text; "-" for what is not known."""
    host, guest = cell.mean(cell.throughput, "host"), cell.mean(cell.throughput, "guest")
    overhead, added = (cell.overhead, cell.added) if cell.usable else (None, None)
    return (
        short(host.point / cell.throughput_scale if host else None),
        short(guest.point / cell.throughput_scale if guest else None),
        percent_with_interval(overhead) if overhead else "-",
        str(overhead.n) if overhead else "-",
        microseconds(added.point, signed=True, grouped="") if added else "-",
    )
