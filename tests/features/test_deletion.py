"""Each feature can be deleted: its directory and its name in the list. What does not ask for it works as before.

Several are deleted at a time: of any two, each is once deleted without the other, so that neither the kernel nor
another feature needs it. For that, no feature's cases may be all among those of another, so all have equally many, and
each has others (Sperner 1928).
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path

import pytest

from harness.feature import FeatureTables, ModeKeys, features
from harness.features import NAMES

ROOT = Path(__file__).parents[2]
RECORDED = next((ROOT / "docs" / "gallery").glob("*/results.json"))
COUNT = next(count for count in itertools.count(1) if math.comb(count, count // 2) >= len(NAMES))
SETS = list(itertools.combinations(range(COUNT), COUNT // 2))
DELETED_IN = {name: SETS[number * len(SETS) // len(NAMES)] for number, name in enumerate(NAMES)}
CASES = {f"case {case}": [name for name in NAMES if case in DELETED_IN[name]] for case in range(COUNT)}
CASES["all"] = list(NAMES)
CASES["proxmox"] = ["proxmox"]
"""Other features depend on it on nodes of Proxmox VE, and only there."""
LAB = """
[host.here.disk.optane]
id = "/dev/disk/by-id/nvme-INTEL_SSDPED1D280GA_PHM1234567890"
serial = "PHM1234567890"
destroy = true

[host.here]
kind = "local"
"""
"""Without a lab file, the feature `embedded` is measured."""
# One process, as each start of Python costs as much as what it shows.
_USE = """
import sys
from pathlib import Path
import pytest

status = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider"])
assert status == 0, status
import harness
from harness.cli import main
from harness.report.html import render_html
from harness.results import RunStore

assert Path(harness.__path__[0]).parent == Path.cwd(), harness.__path__
try:
    main(["--help"])
except SystemExit as end:
    assert not end.code, end.code
print("sections:", render_html(RunStore.open(Path(sys.argv[1])).read_results()).count("<section"))
"""


@pytest.fixture(params=CASES)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the project without some of its features. The copy has the compiled modules, too: compiling is slow."""
    for directory in ("harness", "pve_double", "scenarios", "images"):
        shutil.copytree(ROOT / directory, tmp_path / directory)
    for file in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    deleted = CASES[request.param]
    for name in deleted:
        shutil.rmtree(tmp_path / "harness" / "features" / name)
    listed = tmp_path / "harness" / "features" / "__init__.py"
    lines = listed.read_text(encoding="utf-8").splitlines(keepends=True)
    names = {f'"{name}",' for name in deleted}
    listed.write_text("".join(line for line in lines if line.strip() not in names), encoding="utf-8")
    _remove_scenarios(deleted, tmp_path / "scenarios")
    (tmp_path / "lab.toml").write_text(LAB, encoding="utf-8")
    return tmp_path


def _remove_scenarios(deleted: Collection[str], directory: Path) -> None:
    """Remove the scenarios that ask for these features: their files would be refused."""
    removed = [feature for feature in features() if feature.name in deleted]
    keys = {tables.key for feature in removed for tables in feature.of(FeatureTables)}
    of_modes = {key for feature in removed for keys in feature.of(ModeKeys) for key in keys.table.model_fields}
    for path in directory.glob("*.toml"):
        scenario = tomllib.loads(path.read_text(encoding="utf-8"))
        if keys & scenario.keys() or any(of_modes & mode.keys() for mode in scenario.get("mode", {}).values()):
            path.unlink()


def run(directory: Path, *command: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_features_can_be_deleted(project: Path) -> None:
    used = run(project, sys.executable, "-c", _USE, str(RECORDED.parent))
    assert "optane-lvm-randread-4k" in used
    assert "usage: virt-overhead" in used
    assert int(used.rpartition("sections:")[2]) > 0


def test_of_any_two_features_each_is_once_deleted_without_the_other() -> None:
    for one, other in itertools.permutations(NAMES, 2):
        assert any(one in deleted and other not in deleted for deleted in CASES.values())


@pytest.mark.parametrize("project", ["proxmox"], indirect=True)
def test_without_the_feature_proxmox_a_lab_file_cannot_name_a_node(project: Path) -> None:
    node = """
[host.pve1]
kind = "proxmox"
[host.pve1.api]
url = "https://192.0.2.9:8006"
node = "pve1"
secret = { env = "PVE_PASSWORD" }
"""
    (project / "lab.toml").write_text(node, encoding="utf-8")
    refused = subprocess.run(
        [sys.executable, "-m", "harness.cli", "doctor", "--lab=lab.toml"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    printed = " ".join((refused.stdout + refused.stderr).split())
    assert refused.returncode == 2, printed
    assert 'lab.toml: host.pve1.kind = "proxmox": allowed: local, ssh' in printed
    assert "lab.toml: host.pve1.api: no such key; allowed: kind, " in printed
    assert "hosts of further kinds need a feature that is not installed" in printed
    assert "PVE_PASSWORD" not in printed


@pytest.mark.parametrize("project", ["all"], indirect=True)
def test_the_import_contracts_need_no_feature(project: Path) -> None:
    run(project, str(Path(sys.executable).with_name("lint-imports")), "--no-cache")
