"""The benchmark of the time until a decision: its scenarios, how it runs a checkout, and how it shares the costs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigError, MeasurementError, ResultsError
from harness.model.mode import LabKind
from harness.results import RunStore
from harness.scenario.legality import budgets_for
from harness.scenario.load import load_scenario
from harness.scenario.plan import expand, plan_for
from tests.bench.decide.__main__ import main
from tests.bench.decide.checkout import IODEPTHS, measured, scenario
from tests.bench.decide.costs import Comparison, Cost, compare_guests, costs, summarise_comparisons, table
from tests.bench.decide.replay import Decision, read_jobs, replay_runs, summarise_replay
from tests.build import RUN_ID, measure, optane, synthetic_run

# A plugin as each checkout has one. It measures nothing: its run is complete when it is resumed.
PLUGIN = """
import json, pathlib, pytest
def pytest_addoption(parser):
    for name in ("--lab", "--profile", "--reports", "--resume"):
        parser.addoption(name)
@pytest.fixture
def record():
    pass
def pytest_sessionfinish(session):
    option = session.config.getoption
    run = pathlib.Path(option("--reports"), "latest")
    run.mkdir(parents=True, exist_ok=True)
    status = "complete" if option("--resume") else "interrupted"
    asked = [option(name) for name in ("--lab", "--profile", "--resume")]
    found = sorted(path.name for path in (session.config.rootpath / "scenarios").glob("*.toml"))
    (run / "results.json").write_text(json.dumps({"run": {"status": status}, "asked": asked, "scenarios": found}))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose first run is interrupted."""
    directory = tmp_path / "checkout"
    for path, text in {
        "harness/plugin.py": PLUGIN,
        "harness/__init__.py": "",
        "scenarios/test_overhead.py": "def test_overhead(record): pass\n",
    }.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    return directory


def test_the_scenarios_have_24_cells_and_each_has_one_budget_of_ten_percent(tmp_path: Path) -> None:
    cells = []
    for disk in IODEPTHS:
        path = tmp_path / f"decide_{disk}.toml"
        path.write_text(scenario(disk, "standard", 20))
        loaded = load_scenario(path)
        kind: LabKind = "emulated"
        for cell in expand(loaded, "standard"):
            cells.append(cell)
            (budget,) = budgets_for(loaded, cell, kind).values()
            assert (budget.share, budget.metric) == (0.1, cell.job.headline)
        plan = plan_for(loaded, "standard")
        assert (plan.time_limit, plan.conditioning, plan.span) == (1200, "fill", 64 * 1024**2)
    assert len(cells) == 24


def test_a_checkout_runs_the_scenarios_and_a_later_call_resumes_its_run(checkout: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    with pytest.raises(MeasurementError, match="is not complete"):
        measured(work, checkout, "standard", 20)
    run = measured(work, checkout, "standard", 20)
    assert run == work / "reports" / "latest"
    stored = json.loads((run / "results.json").read_text())
    assert stored["asked"] == ["embedded", "standard", str(run.resolve())]
    assert stored["scenarios"] == ["decide_hdd.toml", "decide_optane.toml"]
    assert measured(work, None, "standard", 20) == run


def test_a_run_of_another_profile_is_not_used(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(MeasurementError):
        measured(tmp_path / "work", checkout, "standard", 20)
    with pytest.raises(ConfigError, match="has another profile"):
        measured(tmp_path / "work", checkout, "smoke", 20)


def test_a_complete_run_is_resumed_only_with_another_time_limit(checkout: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    with pytest.raises(MeasurementError):
        measured(work, checkout, "standard", 20)
    run = measured(work, checkout, "standard", 20)
    assert run is not None
    resumed = [(run / "results.json").stat().st_mtime_ns]
    for minutes in (20, 30, 30):
        assert measured(work, checkout, "standard", minutes) == run
        resumed.append((run / "results.json").stat().st_mtime_ns)
    assert resumed[0] == resumed[1] < resumed[2] == resumed[3]


def test_a_directory_that_is_no_checkout_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "work"), f"--old={tmp_path}"]) == 1
    assert f"{tmp_path} is not a checkout of virt-overhead" in capsys.readouterr().err
    assert measured(tmp_path / "work" / "old", None, "standard", 20) is None


def test_the_seconds_of_a_run_of_this_version_are_shared_by_all_of_its_cells(tmp_path: Path) -> None:
    run = synthetic_run()
    store = RunStore.create(tmp_path, RUN_ID)
    store.write_results(run)
    measurements = [each for group in plan_for(optane(), "smoke").groups for each in measure(group, 3)]
    for each in measurements:
        store.append(each)
    found = costs(store.path)
    assert set(found) == {cell.id for cell in run.cells}
    assert sum(cost.fio_s for cost in found.values()) == pytest.approx(sum(each.seconds for each in measurements))
    assert {cell.id: str(cell.verdict) for cell in run.cells} == {cell: cost.verdict for cell, cost in found.items()}


def stored(path: Path, cells: Sequence[Mapping[str, Any]], journal: Sequence[Mapping[str, Any]]) -> Path:
    path.mkdir()
    (path / "results.json").write_text(json.dumps({"cells": cells}))
    (path / "journal.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in journal))
    return path


def cell(mode: str, raw: Sequence[str], *, ramp: float = 2.0) -> dict[str, Any]:
    """A cell in keys that every version writes."""
    return {
        "id": f"disk-{mode}-randread-4k-qd32",
        "mode": mode,
        "job": {"id": "randread-4k-qd32", "ramp": ramp},
        "raw": list(raw),
        "verdict": "within",
        "budget": [{"metric": "iops"}],
        "metrics": {"iops": {"overhead": {"point": 0.02, "low": 0.01, "high": 0.03, "n": 3}}},
    }


def slice_of(arm: str, raw: str, *, number: int = 1, job: str = "randread-4k-qd32") -> dict[str, Any]:
    return {"group": "disk-1", "round": number, "arm": arm, "job": job, "seconds": 10.0, "raw": raw}


def test_an_arm_that_two_cells_share_counts_half_for_each_with_its_ramp(tmp_path: Path) -> None:
    cells = [cell("lvm", ["host1", "twin1", "guest1"]), cell("raw", ["host1", "guest2"])]
    journal = [
        {"event": "begun", "group": "disk-1", "round": 1},
        slice_of("host", "host1"),
        slice_of("twin:lvm", "twin1"),
        slice_of("guest:lvm", "guest1"),
        slice_of("guest:raw", "guest2"),
    ]
    found = costs(stored(tmp_path / "run", cells, journal))
    assert [cost.fio_s for cost in found.values()] == [6 + 12 + 12, 6 + 12]
    assert {cost.overhead for cost in found.values()} == {"1.0% to 3.0%, n = 3"}


def test_slices_of_several_jobs_and_modes_in_one_raw_output_belong_to_their_own_cells(tmp_path: Path) -> None:
    cells = [cell("lvm", ["table"], ramp=0.0), cell("raw", ["table"], ramp=0.0)]
    arms = ("host", "guest:lvm", "guest:raw")
    journal = [slice_of(arm, "table", job=job) for job in ("randread-4k-qd32", "randwrite-4k-qd32") for arm in arms]
    found = costs(stored(tmp_path / "run", cells, journal))
    assert [cost.fio_s for cost in found.values()] == [15, 15]


def test_a_round_that_was_lost_with_the_lab_costs_nothing(tmp_path: Path) -> None:
    journal = [
        slice_of("guest:lvm", "guest1", number=1),
        {"event": "abandoned", "group": "disk-1", "round": 1},
        slice_of("guest:lvm", "guest1", number=2),
    ]
    (found,) = costs(stored(tmp_path / "run", [cell("lvm", ["guest1"])], journal)).values()
    assert found.fio_s == 12


@pytest.mark.parametrize("text", ["", "{}", '{"cells": [{}]}', '{"cells": []}'])
def test_results_that_cannot_be_read_are_named(tmp_path: Path, text: str) -> None:
    run = stored(tmp_path / "run", [], [])
    (run / "results.json").write_text(text)
    with pytest.raises(ResultsError, match=str(run)):
        costs(run)


def test_the_table_has_the_verdicts_side_by_side_and_the_ratio_of_the_sums() -> None:
    old = {
        "a": Cost("within", 90.0, "1 %"),
        "b": Cost("exceeds", 30.0, "70 %"),
        "c": Cost("inconclusive", 40.0, "9 %"),
        "d": Cost("within", 40.0, "-"),
    }
    new = {
        "a": Cost("within", 10.0, "1 %"),
        "b": Cost("exceeds", 15.0, "70 %"),
        "c": Cost("within", 10.0, "8 %"),
        "d": Cost("exceeds", 5.0, "-"),
    }
    lines = table(old, new)
    assert [line.split()[-1] for line in lines[1:5]] == ["9.0", "2.0", "4.0", "8.0"]
    sums = "200.0 s of fio with the old version, 40.0 s with the new one: 5.0 : 1"
    assert lines[5:] == [
        f"4 cells: {sums}",
        f"4 cells that the new version decided (the old one 3 of them): {sums}",
        "decided: 3 with the old version, 4 with the new one",
        "the same verdict: 2 of the 3 cells that both decided",
        "median seconds of fio until a budget is decided: 40.0 and 10.0, 4.0 : 1",
    ]


def test_the_guests_of_a_run_of_this_version_are_compared_in_each_job_by_its_own_statistics(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, RUN_ID)
    run = synthetic_run(rounds=6, modes=("host", "passthrough", "lvm"))
    store.write_results(run)
    for group in plan_for(optane(), "smoke").groups:
        for each in measure(group, 6):
            store.append(each)
    compared = compare_guests(store.path, Path(__file__).parents[2])
    jobs = {cell.job.id for cell in run.cells}
    assert set(compared) == {f"optane {job}: passthrough against lvm" for job in jobs}
    assert all(comparison.half_width and comparison.half_width < 0.1 for comparison in compared.values())
    assert {comparison.fio_s for comparison in compared.values()} == {12.0}, "6 slices of 1 s of each guest"


def test_a_run_that_the_checkout_cannot_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=f"{tmp_path}: the harness of"):
        compare_guests(tmp_path, Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("log_ratio", "half_width", "relation", "share"),
    [
        (0.2, 0.1, "better", 0.25),
        (-0.2, 0.1, "worse", 0.25),
        (0.2, 0.4, "undecided", 4.0),
        (0.0, math.log(1.05) / 2, "equal", 0.25),
        (0.0, math.log(1.05) * 2, "undecided", 4.0),
    ],
)
def test_the_seconds_until_a_comparison_is_decided_grow_with_the_square_of_its_half_width(
    log_ratio: float, half_width: float, relation: str, share: float
) -> None:
    comparison = Comparison(log_ratio, half_width, 100.0)
    assert comparison.relation == relation
    assert comparison.fio_until_decided_s == pytest.approx(100 * share)


def test_the_summary_has_the_median_of_each_version_and_what_both_say() -> None:
    old = {"a": Comparison(0.2, 0.4, 10.0), "b": Comparison(0.2, 0.1, 40.0), "c": Comparison(0.2, 0.1, 400.0)}
    new = {"a": Comparison(0.2, 0.1, 10.0), "b": Comparison(0.2, 0.1, 20.0), "c": Comparison(-0.2, 0.1, 20.0)}
    assert summarise_comparisons(old, new) == [
        "3 comparisons of two modes in one job, of which both decided 2; the same: 1",
        "median seconds of fio until a comparison is decided: 40.0 and 5.0, 8.0 : 1",
    ]


def write_slices(path: Path, losses: Mapping[str, float], blocks: int, noise: float) -> Path:
    """A run of one job, of slices of 0.5 s. `losses` has the loss of each guest against the host.

    Half of each guest's slices are faster and half are slower by `noise`, a logarithm.
    """
    lines = []
    for block in range(blocks):
        for place, (arm, loss) in enumerate({"host": 0.0, **losses}.items()):
            fields = {"arm": arm, "repeat": 1, "started": 10.0 * block + place, "seconds": 0.5, "overlap": None}
            sign = (1 if block // place % 2 else -1) if place else 0
            value = 1000 * (1 - loss) * math.exp(sign * noise)
            keys = {"group": "optane", "job": "randread-4k", "rate": None, "discarded_s": 0.0, "boot": 1}
            lines.append(keys | fields | {"round": 1, "block": block, "metrics": {"iops": value}})
    path.mkdir()
    (path / "journal.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


THIS = Path(__file__).parents[2]


def test_a_replay_decides_a_clear_loss_at_once_and_a_small_difference_after_more_blocks(tmp_path: Path) -> None:
    losses = {"guest:lvm": 0.3, "guest:raw": 0.34}
    run = write_slices(tmp_path / "run", losses, blocks=12, noise=0.05)
    (decisions,) = replay_runs([run], [THIS])
    by_pair = {name.partition(": ")[2]: decision for name, decision in decisions.items()}
    clear, small = by_pair["guest:lvm against host"], by_pair["guest:raw against guest:lvm"]
    assert (clear.is_budget, clear.decided, clear.fio_s, clear.is_recorded) == (True, "exceeds", 6.0, True)
    assert (small.is_budget, small.decided, small.is_recorded) == (False, "worse", False)
    assert small.fio_s > 12.0
    assert 0.02 < clear.half_width < 0.05


def test_blocks_that_are_not_enough_follow_again_until_there_are_200(tmp_path: Path) -> None:
    run = write_slices(tmp_path / "run", {"guest:lvm": 0.1}, blocks=8, noise=0.3)
    (decisions,) = replay_runs([run], [THIS])
    (decision,) = decisions.values()
    assert (decision.decided, decision.fio_s, decision.is_recorded) == (None, 200.0, False)


def test_a_slice_that_overlapped_another_one_is_not_replayed(tmp_path: Path) -> None:
    run = write_slices(tmp_path / "run", {"guest:lvm": 0.1}, blocks=7, noise=0.1)
    lines = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    lines[1]["overlap"] = "host"
    (run / "journal.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (job,) = read_jobs(run)
    assert [sorted(block) for block in job["blocks"]] == [["host"], *[["guest:lvm", "host"]] * 6]


def test_the_table_of_a_replay_has_the_seconds_of_both_versions_and_their_ratio() -> None:
    old = {
        "a": Decision(True, "exceeds", 20.0, is_recorded=False, half_width=0.2),
        "b": Decision(False, None, 90.0, is_recorded=False, half_width=math.inf),
    }
    new = {
        "a": Decision(True, "exceeds", 8.0, is_recorded=True, half_width=0.1),
        "b": Decision(False, "equal", 30.0, is_recorded=True, half_width=0.1),
    }
    assert summarise_replay(old, new)[2:4] == [
        "| a budget of 10 % | 1 | 1, 1 | 0, 1 | 1 of 1 | 20.0, 8.0 | 2.5 | 2.00, 4.0 |",
        "| a comparison of two modes | 1 | 0, 1 | 0, 1 | 0 of 0 | 90.0, 30.0 | 3.0 | inf, inf |",
    ]


def test_a_harness_that_cannot_evaluate_slices_is_named(tmp_path: Path) -> None:
    run = write_slices(tmp_path / "run", {"guest:lvm": 0.1}, blocks=6, noise=0.1)
    with pytest.raises(ConfigError, match=f"{tmp_path} is not a checkout"):
        replay_runs([run], [tmp_path])
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("")
    with pytest.raises(ResultsError, match=f"the harness of {tmp_path} cannot evaluate the slices"):
        replay_runs([run], [tmp_path])


def test_measuring_and_replaying_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["work", "--replay", "run"], ["--replay", "run"]):
        with pytest.raises(SystemExit):
            main(arguments)
    assert "--replay needs --old and --new" in capsys.readouterr().err
