"""The installed wheel outside of any checkout, as far as no lab is needed. Its main job: tests/soak/test_package.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness.config.names import RunId
from harness.results import RunStore
from tests.build import RUN_ID, synthetic_run
from tests.package.installed import ROOT, Installed
from tests.patience import patience


def ids(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if "::" in line]


def test_nothing_of_the_checkout_is_used(installed: Installed) -> None:
    done = installed.run("python", "-c", "import harness; print(harness.__file__)")
    assert done.stdout.startswith(str(installed.environment))


def test_it_collects_the_same_cells_as_the_checkout(installed: Installed) -> None:
    here = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "--lab=embedded"]
    checkout = subprocess.run(here, cwd=ROOT, capture_output=True, text=True, check=True, timeout=patience(300))
    done = installed.run("virt-overhead", "run", "--collect-only", "-q", "--lab=embedded")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ids(done.stdout) == ids(checkout.stdout)
    assert len(ids(done.stdout)) > 400


def test_two_workers_have_the_plugin_and_the_users_directory(installed: Installed) -> None:
    (installed.directory / "test_mine.py").write_text(
        "import os, pathlib, pytest\n"
        "@pytest.mark.parametrize('number', [1, 2])\n"
        "def test_mine(pytestconfig, number):\n"
        "    assert os.environ['PYTEST_XDIST_WORKER']\n"
        "    assert pytestconfig.pluginmanager.has_plugin('harness.plugin')\n"
        "    assert pytestconfig.getoption('project') == pathlib.Path.cwd()\n"
    )
    done = installed.run("virt-overhead", "run", "-n", "2", "-k", "test_mine", "test_mine.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_a_stored_run_is_reported(installed: Installed) -> None:
    store = RunStore.create(installed.directory / "reports", RunId(RUN_ID))
    store.write_results(synthetic_run())
    done = installed.run("virt-overhead", "report")
    assert done.returncode == 0, done.stdout + done.stderr
    page = installed.directory / "reports" / "latest" / "index.html"
    assert page.stat().st_size > 100_000
    table = installed.run("virt-overhead", "report", "--markdown")
    assert table.returncode == 0, table.stderr
    assert "optane" in table.stdout


def test_a_project_of_others_in_the_same_environment_is_unaffected(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('def pytest_addoption(parser):\n    parser.addoption("--profile")\n')
    (tmp_path / "test_other.py").write_text(
        "import sys\n"
        "def test_it(pytestconfig):\n"
        "    assert pytestconfig.getoption('profile') == 'theirs'\n"
        "    assert pytestconfig.pluginmanager.get_plugin('virt-overhead') is not None\n"
        "    assert 'harness.plugin' not in sys.modules\n"
    )
    done = installed.run("pytest", "-p", "no:cacheprovider", "-W", "error", "--profile=theirs", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_recipes_and_completion_come_with_it(installed: Installed) -> None:
    script = "from harness.image.build import load_recipes; print([each.digest for each in load_recipes('key')])"
    here = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert installed.run("python", "-c", script).stdout == here.stdout
    for words in (("completion", "bash"), ("man",)):
        done = installed.run("virt-overhead", *words)
        assert done.returncode == 0, done.stderr
        assert "calibrate" in done.stdout
