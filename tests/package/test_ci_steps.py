"""The shell steps of docs/ci.md and of action.yml, with the commands of the installed wheel.

A run of an example only collects its cells. Steps that need a host (doctor, reap) are not run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from harness.config.names import RunId
from harness.results import RunStore
from tests.build import RUN_ID, synthetic_run
from tests.package.installed import Installed
from tests.patience import patience
from tests.unit.ci_examples import EXAMPLES, GATE, GITHUB, GITLAB, list_action_steps, steps

LATER = RunId("20260102-120000-0002")
LAB = """
[host.node1]
kind = "ssh"
address = "192.0.2.7"
key = "/dev/null"
[host.node1.storage.images]
directory = "/srv"
"""


class Runner:
    """A machine of a CI service as far as the steps see it: a project's directory, and variables."""

    def __init__(self, path: Path, installed: Installed) -> None:
        self.directory = path / "project"
        self.summary = path / "summary.md"
        self.output = path / "output"
        self.store = path / "store"
        for each in (self.directory, self.store):
            each.mkdir()
        (path / "lab.toml").write_text(LAB)
        (self.directory / "overhead").mkdir()
        shutil.copy(GATE, self.directory / "overhead")
        self.environment = {
            "PATH": f"{installed.environment}/bin:{os.environ['PATH']}",
            "HOME": str(path),
            "PYTEST_ADDOPTS": "--collect-only -q -p no:cacheprovider",
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_OUTPUT": str(self.output),
            "VIRT_OVERHEAD_LAB": str(path / "lab.toml"),
            "STORE": str(self.store),
            "CI_COMMIT_BRANCH": "a-change",
            "CI_DEFAULT_BRANCH": "main",
        }

    def reports(self, example: str) -> Path:
        return (self.store if "pve" in example else self.directory) / "reports"

    def add_run(self, example: str, run_id: RunId) -> None:
        run = synthetic_run()
        RunStore.create(self.reports(example), run_id).write_results(replace(run, run=replace(run.run, id=run_id)))

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=patience(120),
        )

    def does(self, script: str) -> str:
        done = self.run(script)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def runner(tmp_path: Path, installed: Installed) -> Runner:
    return Runner(tmp_path, installed)


def step(example: str, name: str) -> str:
    (found,) = (each.script for each in steps(example) if each.name == name)
    return found


def script_line(example: str, part: str, containing: str) -> str:
    (found,) = (each.script for each in steps(example) if each.name == part and containing in each.script)
    return found


@pytest.mark.parametrize("example", list(EXAMPLES))
def test_the_run_of_an_example_selects_cells(runner: Runner, example: str) -> None:
    printed = runner.does(
        step(example, "Measure") if example in GITHUB else script_line(example, "script", "virt-overhead run")
    )
    cells = [line for line in printed.splitlines() if line.startswith("scenarios/test_overhead.py::")]
    wanted = "[images_gate-" if "pve" in example else "[optane-"
    assert cells
    assert all(wanted in cell for cell in cells)


@pytest.mark.parametrize("example", GITHUB)
def test_summary_annotations_baseline_and_comparison_on_github(runner: Runner, example: str) -> None:
    runner.add_run(example, RUN_ID)
    name = next(each.name for each in steps(example) if each.name.startswith("Compare"))
    runner.does(step(example, name))  # There is no baseline yet.
    printed = runner.does(step(example, "Show the result"))
    assert "| cell | host | guest |" in runner.summary.read_text()
    assert "::warning title=" in printed
    runner.does(step(example, "Set the baseline"))
    assert list(runner.reports(example).glob("baselines/main/*/results.json"))
    runner.summary.unlink()
    runner.add_run(example, LATER)
    runner.does(step(example, name))
    assert "optane" in runner.summary.read_text()


def test_the_name_of_the_version_is_an_output(runner: Runner) -> None:
    runner.does(step(GITHUB[0], "Name the version"))
    assert re.fullmatch(r"version=[0-9][0-9.a-z+]*\n", runner.output.read_text())


@pytest.mark.parametrize("example", GITHUB[1:])
def test_the_report_is_copied_as_a_directory(runner: Runner, example: str) -> None:
    runner.add_run(example, RUN_ID)
    runner.does(step(example, "Copy the report"))
    assert (runner.directory / "report" / "results.json").is_file()


def test_baseline_and_comparison_on_gitlab(runner: Runner) -> None:
    example = GITLAB[0]
    decide = script_line(example, "script", "baseline set")
    runner.add_run(example, RUN_ID)
    runner.does(decide)  # A change, and no baseline yet.
    runner.environment["CI_COMMIT_BRANCH"] = "main"
    runner.does(decide)
    assert list(runner.reports(example).glob("baselines/main/*/results.json"))
    runner.environment["CI_COMMIT_BRANCH"] = "a-change"
    runner.add_run(example, LATER)
    runner.does(decide)
    assert "optane" in (runner.directory / "compare.md").read_text()
    for line in (each.script for each in steps(example) if each.name == "after_script"):
        runner.does(line.replace("/opt/virt-overhead/bin/", ""))
    assert (runner.directory / "summary.md").stat().st_size
    assert (runner.directory / "report" / "results.json").is_file()


def act(runner: Runner, name: str, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run a step of the action with these inputs."""
    (step,) = [step for step in list_action_steps(**inputs) if step.name == name]
    runner.environment |= step.environment
    return runner.run(step.script)


def test_the_action_measures_what_its_inputs_select(runner: Runner) -> None:
    done = act(runner, "Measure", select="hdd and randread", options="--max-writes=20GiB --rounds=2")
    assert done.returncode == 0, done.stderr
    cells = [line for line in done.stdout.splitlines() if line.startswith("scenarios/test_overhead.py::")]
    assert cells
    assert all("[hdd-" in cell and "randread" in cell for cell in cells)
    assert not runner.output.exists()  # nothing was measured


def test_the_action_names_the_results_and_the_page_also_if_the_run_failed(runner: Runner) -> None:
    runner.add_run("action", RUN_ID)
    runner.environment["PYTEST_ADDOPTS"] = "--collect-only -q -p no:cacheprovider --no-such-option"
    assert act(runner, "Measure").returncode == 4
    directory = runner.directory / "reports" / RUN_ID
    assert runner.output.read_text() == f"results={directory}/results.json\npage={directory}/index.html\n"
    assert act(runner, "Show the result").returncode == 0
    assert "| cell | host | guest |" in runner.summary.read_text()


def test_the_action_compares_with_a_run_of_elsewhere(runner: Runner, tmp_path: Path) -> None:
    runner.add_run("action", RUN_ID)
    before = RunStore.create(tmp_path / "elsewhere", LATER)
    run = synthetic_run()
    before.write_results(replace(run, run=replace(run.run, id=LATER)))
    done = act(runner, "Compare with the baseline", baseline=str(before.results_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "optane" in runner.summary.read_text()
    other = replace(run, run=replace(run.run, id=LATER, profile="publish"))
    before.write_results(other)
    done = act(runner, "Compare with the baseline", baseline=str(before.results_path))
    assert done.returncode == 0
    assert "::notice title=not comparable::" in done.stdout


def test_the_action_names_its_version(runner: Runner) -> None:
    assert act(runner, "Name the version").returncode == 0
    assert runner.output.read_text().startswith("version=")
