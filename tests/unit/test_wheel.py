"""What is in the wheel. tests/package installs it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import pytest

pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel() -> Iterator[ZipFile]:
    with TemporaryDirectory() as directory, build_wheel(ROOT, Path(directory)) as archive:
        yield archive


def build_wheel(project: Path, directory: Path) -> ZipFile:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=project, env=dict(os.environ), capture_output=True, check=True, timeout=600)
    (path,) = directory.glob("*-py3-none-any.whl")
    return ZipFile(path)


def tracked(directory: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", directory], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is no clone")
    return set(listed.stdout.split())


@pytest.mark.parametrize("directory", ["scenarios", "images"])
def test_every_scenario_and_recipe_is_in_it_and_nothing_else(wheel: ZipFile, directory: str) -> None:
    prefix = "harness/data/"
    packed = {name.removeprefix(prefix) for name in wheel.namelist() if name.startswith(f"{prefix}{directory}/")}
    assert packed == tracked(directory)


def test_it_has_every_module_and_data_file_of_the_packages(wheel: ZipFile) -> None:
    assert tracked("harness") <= set(wheel.namelist())
    assert not [name for name in wheel.namelist() if name.startswith(("tests/", "conftest", "pve_double"))]


def test_the_double_of_a_node_is_a_distribution_of_its_own(tmp_path: Path) -> None:
    with build_wheel(ROOT / "pve_double", tmp_path) as double:
        files = {name for name in double.namelist() if name.startswith("pve_double/")}
    beside = ("pve_double/tests/", "pve_double/pyproject.toml", "pve_double/README.md", "pve_double/LICENSE")
    assert files == {name for name in tracked("pve_double") if not name.startswith(beside)}


def test_commands_entry_point_and_licence_are_there(wheel: ZipFile) -> None:
    (points,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    text = wheel.read(points).decode()
    for command in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]:
        assert f"{command} = " in text
    assert "[pytest11]\nvirt-overhead = harness.pytest_entry" in text
    (licence,) = (name for name in wheel.namelist() if name.endswith("licenses/LICENSE"))
    assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    assert "License-Expression: Apache-2.0" in wheel.read(metadata).decode()
