"""`virt-overhead advise`: what to change and how, and what fresh blocks say about it."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli import main
from harness.config.names import RunId
from harness.features.answers.advice import Advice, AdviceOutcome, Verified, list_advice, map_results, verify
from harness.features.answers.commands import NOT_HELD
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.job import Job
from harness.model.mode import Arm, Mode, Place
from harness.model.option import Effective
from harness.model.workloads import Profile, parse_workloads
from harness.results import CellRecord, Run, RunStore
from tests.build import optane, synthetic_run

MODES = (
    Mode("host", Device(), None),
    Mode("passthrough", Device(), Attach()),
    Mode("threads", Device(), Attach(aio="threads")),
)
XML = '<disk type="block">\n  <driver name="qemu" io="threads"/>\n</disk>'
SCENARIO = optane()
BETTER = {"passthrough": 100_000.0, "threads": 138_000.0}
SAME = {"passthrough": 100_000.0, "threads": 100_000.0}


def a_run(speeds: Mapping[str, float], seed: int, *, noise: float = 0.01, rounds: int = 12) -> Run:
    """A run of two modes whose guests reach these IOPS."""
    chance = random.Random(seed)

    def speed(arm: Arm, _: Job) -> float:
        mean = 200_000.0 if arm.place is Place.HOST or arm.mode is None else speeds[arm.mode.name]
        return mean * chance.lognormvariate(0.0, noise)

    profile = Profile("smoke", ramp=0, runtime=1, rounds=3, iodepth=(8,), span=64 << 20, round_limit=300)
    scenario = replace(
        SCENARIO, modes=MODES, workloads=tuple(parse_workloads("randread-4k")), profiles=(profile,), budgets=()
    )
    run = synthetic_run(scenario=scenario, rounds=rounds, speed=speed, noise=0.0, budget=None)
    return replace(run, cells=tuple(map(_with_setting, run.cells)))


def _with_setting(cell: CellRecord) -> CellRecord:
    return replace(cell, effective=Effective(libvirt_disk=XML)) if cell.mode == "threads" else cell


def advice(run: Run) -> Advice:
    (found,) = [view.advice for view in list_advice(run) if view.answer.use.name == "general"]
    assert found is not None
    return found


def verified(first: Run, fresh: Run) -> Verified:
    return verify(advice(first), map_results(fresh))


def test_the_advice_is_the_change_of_one_option_with_the_cells_that_show_it() -> None:
    found = advice(a_run(BETTER, 1))
    assert (found.mode, found.rival.mode) == ("threads", "passthrough")
    assert found.change.ratio == pytest.approx(1.38, rel=0.02)
    assert found.cells == ("optane-passthrough-randread-4k-qd8", "optane-threads-randread-4k-qd8")


@pytest.mark.parametrize(
    ("first", "fresh", "noise", "held"),
    [
        (BETTER, BETTER, 0.01, AdviceOutcome.HELD),
        (BETTER, SAME, 0.01, AdviceOutcome.NOT_HELD),
        (BETTER, {"passthrough": 100_000.0, "threads": 125_000.0}, 0.01, AdviceOutcome.NOT_HELD),
        (BETTER, BETTER, 1.0, AdviceOutcome.UNDECIDED),
        (SAME, SAME, 0.01, AdviceOutcome.HELD),
        (SAME, SAME, 0.3, AdviceOutcome.UNDECIDED),
        (SAME, BETTER, 0.01, AdviceOutcome.NOT_HELD),
    ],
    ids=["again", "gone", "less", "too noisy", "equal again", "equal, too noisy", "no longer equal"],
)
def test_fresh_blocks_decide_whether_it_held(
    first: Mapping[str, float], fresh: Mapping[str, float], noise: float, held: AdviceOutcome
) -> None:
    found = verified(a_run(first, 1), a_run(fresh, 2, noise=noise))
    assert found.held is held, found.why


def test_the_fresh_ratio_is_expected_in_a_wider_interval_than_that_of_the_advice() -> None:
    found = verified(a_run(BETTER, 1), a_run(BETTER, 2))
    first = found.advice.change
    assert found.low is not None
    assert found.high is not None
    assert first.low is not None
    assert first.high is not None
    assert found.low < first.low < first.high < found.high


def test_a_cell_that_is_no_result_leaves_it_undecided() -> None:
    first, fresh = a_run(BETTER, 1), a_run(BETTER, 2)
    without = replace(fresh, cells=tuple(cell for cell in fresh.cells if cell.mode != "threads"))
    found = verified(first, without)
    assert found.held is AdviceOutcome.UNDECIDED
    assert found.why.startswith("optane-threads-randread-4k-qd8 was not measured again")


# --- the command ---


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.chdir(tmp_path)
    return store(a_run(BETTER, 1))


def store(run: Run, name: str = "20260101-120000-0001") -> RunStore:
    found = RunStore.create(Path("reports"), RunId(name))
    found.write_results(replace(run, run=replace(run.run, id=RunId(name))))
    return found


@pytest.mark.usefixtures("stored")
def test_it_prints_the_change_with_its_interval_and_the_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise"]) == 0
    said = capsys.readouterr().out
    assert "general VM storage: use `threads`: +3" in said
    assert "change aio threads (`passthrough` to `threads`): +3" in said
    assert "set up `threads` (optane) with libvirt's XML:\n  <disk" in said
    assert "virt-overhead advise 20260101-120000-0001 --verify" in said


@pytest.mark.usefixtures("stored")
def test_json_has_the_ratio_and_the_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "latest", "--json", "--use=general"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["mode"], found["against"], found["metric"]) == ("threads", "passthrough", "iops")
    assert found["ratio"]["low"] < 1.38 < found["ratio"]["high"]
    assert found["set"] == {"tool": "libvirt's XML", "text": XML}


@pytest.mark.parametrize(("fresh", "status"), [(BETTER, 0), (SAME, NOT_HELD)])
def test_verify_measures_only_the_cells_of_the_advice_as_often_as_before(
    fresh: Mapping[str, float],
    status: int,
    stored: RunStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran: list[list[str]] = []

    def pytest_of(command: list[str], **_: object) -> object:
        ran.append(command)
        store(a_run(fresh, 2), "20260101-130000-0002")
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr(subprocess, "run", pytest_of)
    assert main(["advise", str(stored.path), "--verify", "--json", "--use=general"]) == status
    found = json.loads(capsys.readouterr().out)
    assert (found["run"], found["fresh"]) == ("20260101-120000-0001", "20260101-130000-0002")
    (only,) = found["advice"]
    assert only["inside"] is (status == 0)
    (command,) = ran
    chosen = [word.partition("[")[2].rstrip("]") for word in command if "::test_overhead[" in word]
    assert chosen == ["optane-passthrough-randread-4k-qd8", "optane-threads-randread-4k-qd8"]
    assert {f"--host={stored.read_results().lab.host}", "--profile=smoke", "--rounds=12"} <= set(command)
    assert not any(word.startswith("--seed") for word in command), "each run chooses a new seed"


def test_a_run_without_advice_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    store(a_run(BETTER, 1, rounds=1))
    assert main(["advise"]) == 2
    assert "recommends nothing" in capsys.readouterr().err
