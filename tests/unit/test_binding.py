"""Without libvirt's Python binding, only hosts with libvirt are out of reach, and the message has the remedy."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.machines import ROOT

_IMPORTS = """
import importlib, pkgutil, harness
from harness.errors import LabUnavailable
for module in pkgutil.walk_packages(harness.__path__, "harness."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except LabUnavailable:
            print(module.name)
"""
# One process, because each start takes longer than the command.
_COMMANDS = """
import json, sys
from harness.cli import main

def run(words):
    try:
        return main(words)
    except SystemExit as end:
        return end.code or 0

sys.stderr = sys.stdout
for words in json.loads(sys.argv[1]):
    print("status:", run(words))
"""
STORED = ROOT / "tests" / "unit" / "data" / "stored_run"


@dataclass(frozen=True, slots=True)
class Without:
    """This machine without the binding, also for programs that a command starts."""

    path: Path

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            env=os.environ | {"PYTHONPATH": str(self.path), "COLUMNS": "500"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            cwd=ROOT,
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "harness.cli", *words)

    def run_all(self, commands: Sequence[Sequence[str]]) -> list[tuple[int, str]]:
        """Of each command its status, and what it printed as one line."""
        done = self.python("-c", _COMMANDS, json.dumps(commands))
        assert done.returncode == 0, done.stdout + done.stderr
        parts = re.split(r"^status: (\d+)$", done.stdout, flags=re.M)
        return [(int(status), " ".join(text.split())) for status, text in zip(parts[1::2], parts[::2], strict=False)]


@pytest.fixture
def without(tmp_path: Path) -> Without:
    directory = tmp_path / "without"
    directory.mkdir()
    for name in ("libvirt", "libvirt_qemu"):
        (directory / f"{name}.py").write_text(f'raise ModuleNotFoundError("No module named {name}", name="{name}")\n')
    return Without(directory)


def test_a_host_with_libvirt_names_the_remedy(tmp_path: Path, without: Without) -> None:
    lab, new = tmp_path / "lab.toml", tmp_path / "new"
    lab.write_text('[host.here]\nkind = "local"\n[host.here.storage.vms]\ndirectory = "/srv"\n')
    commands = [
        ["reap", f"--lab={lab}"],
        ["init", f"--output={new}"],
        ["quick", f"--reports={new}"],
        ["doctor", f"--lab={lab}", "--json"],
    ]
    ended = without.run_all(commands)
    # It becomes the process of pytest.
    commands.append(["run", f"--lab={lab}", "--require-lab", f"--reports={new}", "-k", "storage and randread and qd32"])
    run = without.run(*commands[-1])
    ended.append((run.returncode, " ".join((run.stdout + run.stderr).split())))
    for words, (status, printed) in zip(commands, ended, strict=True):
        assert status != 0, words
        assert re.search(r"libvirt's Python binding\W.*not installed", printed), words
        assert "python3-libvirt" in printed, words
        assert "internal error" not in printed, words


def test_every_other_module_is_imported_without_it(without: Without) -> None:
    done = without.python("-c", _IMPORTS)
    assert done.returncode == 0, done.stderr
    needing = done.stdout.split()
    assert "harness.guest.libvirt.binding" in needing
    of_features = ("borrow.libvirt", "borrow.plugged", "neighbours.backups")
    of_libvirt = ("harness.guest.libvirt.", *(f"harness.features.{name}" for name in of_features))
    assert [name for name in needing if not name.startswith(of_libvirt)] == []


def test_everything_else_works(tmp_path: Path, without: Without) -> None:
    run = str(tmp_path / "run")
    shutil.copytree(STORED, run)
    expected = [
        (["--help"], 0),
        ([], 0),
        (["report", run], 0),
        (["advise", run], 2),  # it recommends nothing, as with the binding
        (["export", run, "--csv", f"{run}/run.csv"], 0),
        (["compare", run, run], 2),  # both are the same
        (["completion", "bash"], 0),
    ]
    ended = without.run_all([words for words, _ in expected])
    assert [status for status, _ in ended] == [status for _, status in expected]
    printed = " ".join(text for _, text in ended)
    assert "libvirt's Python binding" not in printed
    assert "ModuleNotFoundError" not in printed


def test_cells_are_collected_without_it(without: Without) -> None:
    done = without.run("run", "--collect-only", "-q", "-k", "optane")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "libvirt's Python binding" not in done.stdout + done.stderr
    assert "ModuleNotFoundError" not in done.stdout + done.stderr
