"""Each feature can be deleted: its directory and its name in the list. What does not ask for it works as before."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.feature import features
from harness.features import NAMES

ROOT = Path(__file__).parents[2]
RECORDED = next((ROOT / "docs" / "gallery").glob("*/results.json"))
_PAGE = """
import sys
from pathlib import Path
import harness
from harness.report.html import render_html
from harness.results import RunStore

assert Path(harness.__path__[0]).parent == Path.cwd(), harness.__path__
page = render_html(RunStore.open(Path(sys.argv[1])).read_results())
print([name for name in sys.modules if name.startswith("harness.features." + sys.argv[2])], page.count("<section"))
"""


@pytest.fixture(params=NAMES)
def without(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A copy of the project without one feature, and the feature's name."""
    name: str = request.param
    for directory in ("harness", "pve_double", "scenarios", "images"):
        shutil.copytree(ROOT / directory, tmp_path / directory, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    shutil.rmtree(tmp_path / "harness" / "features" / name)
    listed = tmp_path / "harness" / "features" / "__init__.py"
    lines = listed.read_text(encoding="utf-8").splitlines(keepends=True)
    listed.write_text("".join(line for line in lines if line.strip() != f'"{name}",'), encoding="utf-8")
    _remove_scenarios(name, tmp_path / "scenarios")
    return name, tmp_path


def _remove_scenarios(name: str, directory: Path) -> None:
    """Remove the scenarios that ask for the feature: their files would be refused."""
    removed = [feature for feature in features() if feature.name == name]
    keys = {feature.tables.key for feature in removed if feature.tables is not None}
    of_modes = {
        key for feature in removed if feature.mode_keys is not None for key in feature.mode_keys.table.model_fields
    }
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


def test_a_feature_can_be_deleted(without: tuple[str, Path]) -> None:
    name, project = without
    run(project, str(Path(sys.executable).with_name("lint-imports")), "--no-cache")
    run(project, sys.executable, "-m", "harness.cli", "--help")
    collected = run(project, sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
    assert "optane-lvm-randread-4k" in collected
    loaded, sections = run(project, sys.executable, "-c", _PAGE, str(RECORDED.parent), name).rsplit(maxsplit=1)
    assert loaded == "[]"
    assert int(sections) > 0
