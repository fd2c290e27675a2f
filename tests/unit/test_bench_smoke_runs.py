"""The benchmark of smoke runs: what it reads from a stored run, and its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from harness.measure.host_measurer import Restarts
from harness.results import Journal, Run
from harness.scenario.plan import plan_for
from tests.bench.lines import append
from tests.bench.smoke_runs import SmokeRun, main, table, with_results
from tests.build import measure, optane, synthetic_run

BARE = SmokeRun("reports", 0, lab_s=30.0, wall_s=250.0)
MEASUREMENTS = tuple(each for group in plan_for(optane(), "smoke").groups for each in measure(group, 3))


def with_notes(run: Run, notes: Sequence[str]) -> Run:
    """The run, with these notes at all of its cells."""
    return replace(run, cells=tuple(replace(cell, notes=(*cell.notes, *notes)) for cell in run.cells))


def test_the_figures_of_a_run_are_those_that_it_stored() -> None:
    run = synthetic_run()
    run = replace(run, run=replace(run.run, phases=run.run.phases | {"boot": 9.5}))
    measurements = (replace(MEASUREMENTS[0], overlap="host"), *MEASUREMENTS[1:])
    found = with_results(BARE, run, Journal(measurements))
    overheads = [cell.metrics[cell.job.headline].overhead for cell in run.cells]
    assert found.half_width == median(each.half_width for each in overheads if each and each.half_width)
    assert (found.boot_s, found.complete) == (9.5, True)
    assert found.efficiency == pytest.approx(run.run.efficiency.ratio)
    assert (found.overlapping, found.slices) == (1, len(MEASUREMENTS))
    assert (found.guests_lost, found.hosts_lost) == (0, 0)


def test_a_lost_guest_and_a_lost_lab_host_are_told_apart() -> None:
    restarts = Restarts()
    restarts.opened("boot 1")
    restarts.failed("the lab failed in round 1 of optane-1, which does not count")
    restarts.opened("boot 1")
    restarts.failed("the lab failed in round 2 of optane-1, which does not count")
    restarts.opened("boot 1")
    restarts.failed("the lab failed in round 4 of optane-1, which does not count")
    restarts.opened("boot 2")
    found = with_results(BARE, with_notes(synthetic_run(), restarts.sentences), Journal())
    assert (found.guests_lost, found.hosts_lost) == (2, 1)


def test_a_run_that_was_interrupted_is_not_complete() -> None:
    assert not with_results(BARE, synthetic_run(status="interrupted"), Journal()).complete


def test_the_table_ends_with_medians_and_sums() -> None:
    figures = replace(BARE, complete=True, boot_s=8.0, fio_s=90.0, measuring_s=100.0, half_width=0.06, slices=192)
    runs = [
        figures,
        replace(figures, wall_s=240.0, boot_s=10.0, half_width=0.04, overlapping=3, guests_lost=1),
        replace(BARE, status=1, hosts_lost=2),
    ]
    lines = table(runs)
    assert " ".join(lines[1].split()) == "1 0 30.0 s 250.0 s 8.0 s 0.900 6.0% 0 of 192 0 0"
    assert " ".join(lines[3].split()) == "3 1 30.0 s 250.0 s - - - 0 of 0 0 2"
    assert " ".join(lines[4].split()) == "all 30.0 s 250.0 s 9.0 s 0.900 5.0% 3 of 384 1 2; 1 of 3 runs incomplete"


def test_a_file_with_enough_runs_is_only_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.jsonl"
    append(path, [BARE, BARE], SmokeRun)
    assert main([str(path), "--runs=2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert [entry.name for entry in tmp_path.iterdir()] == ["runs.jsonl"]
