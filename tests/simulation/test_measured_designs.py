"""What the blocks show that both designs measured in the lab: coverage, and the figures in the docs."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.bench.designs.assess import Row, rows
from tests.bench.designs.blocks import Block, units
from tests.bench.designs.comparisons import COMPARISONS, Design
from tests.bench.lines import read
from tests.simulation.stated import DOC

MEASURED = Path(__file__).parents[1] / "bench" / "designs" / "measured"


@pytest.fixture(scope="module")
def measured() -> list[Row]:
    """The rows of all jobs of a comparison together."""
    blocks = [block for path in sorted(MEASURED.glob("*.jsonl.gz")) for block in read(path, Block)]
    found = [row for row in rows(units(blocks)) if row.job == "all"]
    assert {(row.comparison, row.design) for row in found} == set(product(COMPARISONS, Design))
    return found


def test_the_intervals_of_slices_are_narrower_and_right(measured: list[Row]) -> None:
    by_key = {(row.comparison.name, row.design): row for row in measured}
    for row in measured:
        if row.design is Design.SLICES:
            assert row.groups >= 200
            _, low, high = row.coverage
            assert low <= 0.95 <= high
            assert row.half_width < 0.75 * by_key[row.comparison.name, Design.OLD].half_width


def test_the_docs_show_what_was_measured(measured: list[Row]) -> None:
    text = DOC.read_text(encoding="utf-8")
    for row in measured:
        assert _line(row) in text


def _line(row: Row) -> str:
    """A row of the docs, without the comparison's name."""
    delay = row.comparison.added_s is not None
    width = f"{1000 * row.half_width:.2f} ms" if delay else f"{100 * row.half_width:.1f} points"
    share, low, high = map(_percent, row.coverage)
    coverage = f"{share} % ({low} to {high})"
    alarms = "" if row.false_alarms is None else f" {_percent(row.false_alarms / row.intervals)} %"
    return f"| {row.design} | {row.groups} | {width} | {coverage} |{alarms} | {_percent(row.detected / row.groups)} % |"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
