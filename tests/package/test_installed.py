"""The installed wheel outside of any checkout, as far as no lab is needed. Its main job: tests/soak/test_package.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.results import RunStore
from harness.run_id import RunId
from tests.package.installed import ROOT, Installed, install
from tests.unit.runs import RUN_ID, synthetic_run
from tests.unit.transport_servers import closed_port, make_key


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("package"))


def ids(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if "::" in line]


def test_nothing_of_the_checkout_is_used(installed: Installed) -> None:
    done = installed.run("python", "-c", "import harness; print(harness.__file__)")
    assert done.stdout.startswith(str(installed.environment))


def test_it_collects_the_same_cells_as_the_checkout(installed: Installed) -> None:
    here = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "--lab=embedded"]
    checkout = subprocess.run(here, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    done = installed.run("virt-overhead", "run", "--collect-only", "-q", "--lab=embedded")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ids(done.stdout) == ids(checkout.stdout)
    assert len(ids(done.stdout)) > 400


def test_two_workers_find_the_plugin_and_the_lab_file(installed: Installed) -> None:
    with closed_port() as port:
        key = installed.directory / "key"
        make_key(key)
        disk = '[host.node1.disk.optane]\nid = "/dev/disk/by-id/nvme-A"\nserial = "A"\ndestroy = true\n'
        (installed.directory / "lab.toml").write_text(
            f'[host.node1]\nkind = "ssh"\naddress = "127.0.0.1"\nport = {port}\nkey = "{key}"\n{disk}'
        )
        done = installed.run("virt-overhead", "run", "-n", "2", "-k", "optane and lvm and randread", "--require-lab")
    (installed.directory / "lab.toml").unlink()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "node1" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


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
    script = "from harness.image.recipe import load_recipes; print([each.digest for each in load_recipes('key')])"
    here = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert installed.run("python", "-c", script).stdout == here.stdout
    for words in (("completion", "bash"), ("man",)):
        done = installed.run("virt-overhead", *words)
        assert done.returncode == 0, done.stderr
        assert "calibrate" in done.stdout
