"""A recorded run gives the same results.json with the present code, but for the rounding of the last digits."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.replay import render_run, replay_run

RUNS = sorted((Path(__file__).parents[1] / "data").glob("*.tar.xz"))
"""Runs of the embedded lab: journal, results.json and the scenario's file."""


@pytest.mark.parametrize("archive", RUNS, ids=lambda path: path.name.partition(".")[0])
def test_a_recorded_run_is_assembled_to_the_same_results(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as stored:
        stored.extractall(tmp_path, filter="data")
    (directory,) = tmp_path.iterdir()
    replayed = replay_run(directory, directory)
    assert not replayed.differences
    modes = {cell.mode for cell in replayed.run.cells}
    assert all(mode in text for text in render_run(replayed.run).values() for mode in modes)
