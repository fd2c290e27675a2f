"""The benchmark of many cells: its matrices, and what its lines say."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.scenario.load import load_scenario
from harness.scenario.plan import expand
from tests.bench.scale.figures import Figures, lines
from tests.bench.scale.matrix import PROFILE, scenario_file


@pytest.mark.parametrize("cells", [1, 100, 5000])
def test_a_matrix_has_the_number_of_cells_and_at_most_one_more_workload(tmp_path: Path, cells: int) -> None:
    path = tmp_path / "matrix.toml"
    path.write_text(scenario_file(cells))
    found = {cell.id for cell in expand(load_scenario(path), PROFILE)}
    assert cells <= len(found) < cells + 45


def test_a_line_compares_the_time_of_a_cell_with_the_line_before() -> None:
    few, many = Figures(100, 3.0, 1.0, 1 << 20), Figures(1000, 70.0, 50.0, 1 << 30, ("of it, reading: 1 s",))
    assert lines(few, None)[0].endswith("growth -")
    first, detail = lines(many, few)
    assert first.split()[:7] == ["1000", "cells", "70.00", "s", "50.00", "CPU", "s"]
    assert first.endswith("1024 MiB   growth 5.00")
    assert detail.strip() == "of it, reading: 1 s"
