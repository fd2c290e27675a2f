"""`virt-overhead run` in a directory that is no checkout, and pytest in projects of other people."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from harness.cli import pytest_arguments
from harness.files import shipped
from tests.unit.warm_pytest import Request, WarmPytest, warm_pytest

ROOT = Path(__file__).parents[2]
ENTRY = "harness.pytest_entry"

SCENARIO = """
title = "A disk"
disk = "optane"
modes = ["host", "passthrough"]
workloads = ["randread-4k"]
write_rate = "1 GiB/s"
"""
MINE = ["mine-host-randread-4k-qd32", "mine-passthrough-randread-4k-qd32"]
RUN_ID = "scenarios/test_overhead.py::test_overhead[{}]"

Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmPytest]:
    with warm_pytest() as ready:
        yield ready


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's directory: a scenario, and a configuration of pytest that is for other tests."""
    directory = tmp_path / "project"
    (directory / "disks").mkdir(parents=True)
    (directory / "disks" / "mine.toml").write_text(SCENARIO)
    (directory / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    return directory


@pytest.fixture
def run(warm: WarmPytest, project: Path, tmp_path: Path) -> Run:
    """`virt-overhead run` in the project: its status, and what it printed."""

    def run(*arguments: str) -> tuple[int, str]:
        output, errors = tmp_path / "stdout", tmp_path / "stderr"
        words = ["-p", "no:cacheprovider", *pytest_arguments(project, arguments)]
        status = warm.run(Request(words, str(project), dict(os.environ), str(output), str(errors)), timeout=600)
        return status, output.read_text() + errors.read_text()

    return run


def test_the_scenarios_and_recipes_of_the_project_are_found() -> None:
    assert (shipped("scenarios") / "test_overhead.py").is_file()
    assert (shipped("images") / "guest" / "build").is_file()


@pytest.mark.parametrize("how", ["option", "table"])
def test_scenarios_of_the_user_are_added_to_the_shipped_ones(run: Run, project: Path, how: str) -> None:
    if how == "table":
        (project / "pyproject.toml").write_text('[tool.virt-overhead]\nscenarios = ["disks"]\n')
    option = ["--scenarios=disks"] if how == "option" else []
    status, printed = run("--collect-only", "-q", "-k", "mine or (optane and lvm and randwrite)", *option)
    assert status == 0
    expected = [RUN_ID.format(cell) for cell in ("optane-lvm-randwrite-4k-qd32", *MINE)]
    assert [line for line in printed.splitlines() if "::" in line] == expected


def test_a_scenario_of_the_directory_that_is_not_measured_names_the_option(run: Run, project: Path) -> None:
    (project / "disks").rename(project / "scenarios")
    status, printed = run("--collect-only", "-q", "-k", "mine")
    assert status == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "-k: mine is a scenario of this directory: add --scenarios=scenarios" in printed.splitlines()


def test_a_scenario_with_the_name_of_a_shipped_one_is_refused(run: Run, project: Path) -> None:
    (project / "disks" / "optane.toml").write_text(SCENARIO)
    status, printed = run("--collect-only", "--scenarios=disks")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert f"{project}/disks/optane.toml: {shipped('scenarios')}/optane.toml is a scenario of the same name" in printed


def test_a_directory_without_scenarios_is_named(run: Run, project: Path) -> None:
    status, printed = run("--collect-only", "--scenarios=disk")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert f"{project}/disk: no scenario files (*.toml) here" in printed


def test_a_wrong_key_of_the_table_is_one_message(run: Run, project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.virt-overhead]\nscenario = "disks"\n')
    status, printed = run("--collect-only")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert f"{project}/pyproject.toml: [tool.virt-overhead] scenario" in printed
    assert "Traceback" not in printed


def test_lab_file_and_runs_are_in_the_users_directory(run: Run, project: Path) -> None:
    (project / "lab.toml").write_text("[host.node1]\nkind = 'tape'\n")
    status, printed = run("--collect-only")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert f"{project}/lab.toml" in printed


def pytest_in(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest as any project of the environment starts it: with the entry point of this package."""
    installed = entry_points(group="pytest11", name="virt-overhead")
    entry = [] if installed else ["-p", ENTRY]  # The environment may be older than the entry point.
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *entry, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=600
    )


def test_a_project_of_others_is_unaffected_also_if_its_options_have_the_same_names(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "uses-virt-overhead"\n[tool.ruff]\n')
    (tmp_path / "conftest.py").write_text('def pytest_addoption(parser):\n    parser.addoption("--profile")\n')
    (tmp_path / "test_other.py").write_text(
        "import json, sys\n"
        "def test_it(pytestconfig, tmp_path_factory, request):\n"
        "    loaded = sorted(name for name in sys.modules if name.startswith('harness'))\n"
        "    (pytestconfig.rootpath / 'loaded.json').write_text(json.dumps(loaded))\n"
        "    assert pytestconfig.getoption('profile') == 'theirs'\n"
    )
    done = pytest_in(tmp_path, "--profile=theirs", "-W", "error")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "loaded.json").read_text()) == ["harness", ENTRY]


def test_a_project_with_the_table_has_the_plugin_once(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.virt-overhead]\nscenarios = ["scenarios"]\n')
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "mine.toml").write_text(SCENARIO)
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (tmp_path / "test_mine.py").write_text("def test_mine(record, verdict):\n    assert record.verdict\n")
    done = pytest_in(tmp_path, "--collect-only", "-q", "-k", "mine-host or hdd-raw-randread-4k")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if "::" in line] == [
        "test_mine.py::test_mine[hdd-raw-randread-4k-qd8]",
        "test_mine.py::test_mine[mine-host-randread-4k-qd32]",
    ]
