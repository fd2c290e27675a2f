"""Words for a cell: its samples, its confidence, and where the page has its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.blocks import slug
from harness.report.numbers import sample_count
from harness.results import CellRecord

CONFIDENCE = 0.95
"""The confidence of the shown intervals. The intervals of a cell have a higher one if there were interim looks."""


def link_cell(cell: CellRecord) -> str:
    """Where the page has the evidence of a cell."""
    return f"#cell-{slug(cell.id)}"


def sample_words(cell: CellRecord) -> str:
    """For example "6 blocks" or "3 boots"."""
    return sample_count(len(cell.rounds), cell.boot_count)


def confidence_words(cells: Sequence[CellRecord]) -> str:
    """The confidence of these cells' intervals: "95 %", or "95 % over all looks" if there were interim looks."""
    early = any(cell.confidence > CONFIDENCE for cell in cells)
    return f"{CONFIDENCE * 100:.0f} %{' over all looks' if early else ''}"
