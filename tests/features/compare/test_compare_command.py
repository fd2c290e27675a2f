"""`virt-overhead compare`, as a user runs it on stored runs: what it prints, and with which status it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.cli import main
from harness.results import RunStore
from tests.features.compare.compared_runs import store_run
from tests.unit.command_docs import read_command

BEFORE, AFTER = "20260101-120000-000a", "20260102-120000-000b"


@pytest.fixture(autouse=True)
def _two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk, then a disk that is four times as fast, in reports/."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    store_run(Path("reports"), BEFORE, disk="hdd")
    store_run(Path("reports"), AFTER, speed=4.0)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["compare", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit status and the message."""
    status = main(["compare", *arguments])
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return status, err


def rows(text: str, arm: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.startswith(f"{arm} ")]


def test_each_arm_has_its_factor_with_interval_and_direction(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, f"reports/{BEFORE}", f"reports/{AFTER}")
    assert "hdd (disk hdd) -> optane (disk optane)" in out
    assert "randread-4k-qd32: iops (IOPS), higher is better" in out
    (overall, *jobs) = rows(out, "guest:passthrough")
    assert len(jobs) == 2
    assert overall.endswith("12, 12 2 jobs better")
    assert "x 4." in overall or "x 3.9" in overall
    assert all(job.endswith("12, 12 better") for job in jobs)
    assert len(rows(out, "host")) == 3
    assert max(map(len, out.split("\n\n")[1].splitlines())) <= 80


def test_what_else_differs_and_what_the_intervals_leave_out_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, BEFORE, AFTER)
    assert "hdd.disk: /dev/disk/by-id/hdd (serial HDD) -> /dev/disk/by-id/optane (serial OPTANE)" in out
    assert "do not cover what changes from run to run of the same disk" in out


def test_runs_are_found_by_id_as_latest_and_by_path(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = printed(capsys, BEFORE, "latest")
    assert out == printed(capsys, str(tmp_path / "reports" / BEFORE), f"reports/{AFTER}/results.json")


def test_a_latency_has_a_factor_below_1_and_says_that_lower_is_better(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, BEFORE, AFTER, "--metric", "lat_mean")
    assert "randread-4k-qd32: lat_mean (us), lower is better" in out
    assert any("x 0.2" in row and row.endswith("better") for row in rows(out, "host"))


def test_markdown_has_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, BEFORE, AFTER, "--markdown")
    assert "### hdd (disk hdd) -\\> optane (disk optane)" in out
    assert out.count("| `guest:passthrough` | x ") == 1
    assert out.count("| **better** |") == 6
    assert out.endswith("\n")
    assert not out.endswith("\n\n")


def test_json_has_every_metric(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(printed(capsys, BEFORE, AFTER, "--json"))
    assert (document["before"]["id"], document["after"]["id"]) == (BEFORE, AFTER)
    (scenario,) = document["scenarios"]
    assert [arm["place"] for arm in scenario["arms"]] == ["host", "guest"] * 2
    assert set(scenario["arms"][0]["metrics"]) == {"iops", "bw", "lat_mean"}
    change = scenario["arms"][0]["metrics"]["iops"]["change"]
    assert change["low"] < 4 < change["high"]


def test_the_docs_explain_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--help"])
    assert ended.value.code == 0
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help", "--debug"}
    docs = read_command("compare")
    assert options
    assert [option for option in options if f"`{option}" not in docs] == []


def test_a_path_that_is_no_run_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = refused(capsys, BEFORE, "reports/absent")
    assert status == 2
    assert said == (
        "virt-overhead: reports/absent is not the directory of a run\n"
        "  -> give reports/RUN-ID, or reports/latest for the newest run\n"
    )


def test_one_run_twice_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = refused(capsys, AFTER, "latest")
    assert status == 2
    assert said == (
        f"virt-overhead: both are run {AFTER}: there is nothing to compare\n"
        "  -> give two runs; or two scenarios of one run, with --before-scenario and --after-scenario\n"
    )


def test_a_scenario_that_a_run_does_not_have_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = refused(capsys, BEFORE, AFTER, "--before-scenario", "hd")
    assert status == 2
    assert f'run {BEFORE}: no scenario "hd"; allowed: hdd (did you mean "hdd"?)' in said


def test_a_metric_that_no_cell_has_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = refused(capsys, BEFORE, AFTER, "--metric", "clat_p99")
    assert status == 2
    assert 'metric "clat_p99": no compared cell has it in both runs' in said
    with pytest.raises(SystemExit) as ended:
        main(["compare", BEFORE, AFTER, "--metric", "p99"])
    assert ended.value.code == 2


def test_a_damaged_run_is_an_error_that_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    store = RunStore.open(Path("reports") / AFTER)
    store.results_path.write_text(store.results_path.read_text()[:-100])
    status, said = refused(capsys, BEFORE, AFTER)
    assert status == 1
    assert str(store.results_path) in said


def test_a_run_of_a_newer_schema_is_an_error_that_names_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    store = RunStore.open(Path("reports") / AFTER)
    document = json.loads(store.results_path.read_text())
    store.results_path.write_text(json.dumps({**document, "schema": document["schema"] + 1}))
    status, said = refused(capsys, BEFORE, AFTER)
    assert status == 1
    assert "read it with the virt-overhead that wrote it, or a newer one" in said
