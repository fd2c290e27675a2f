"""The figures that docs/statistics.md states, so that simulations hold them to it."""

from __future__ import annotations

from pathlib import Path

DOC = Path(__file__).parents[2] / "docs" / "statistics.md"


def stated(row: str) -> list[float]:
    """The figures in the table row that begins with `row`, 5 % being 0.05. LookupError unless there is just one."""
    rows = [line.strip().strip("|").split("|") for line in DOC.read_text(encoding="utf-8").splitlines() if "|" in line]
    found = [cells[1:] for cells in rows if cells[0].strip() == row]
    if len(found) != 1:
        raise LookupError(f"{DOC.name} has {len(found)} rows {row!r}: state its figures once")
    return [_figure(cell.strip()) for cell in found[0]]


def _figure(cell: str) -> float:
    return float(cell.removesuffix("%")) / 100 if cell.endswith("%") else float(cell)
