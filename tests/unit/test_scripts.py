"""The scripts for hosts and guests: each is used, and the programs that run it accept it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.files import read_script

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path for suffix in ("sh", "bash", "pl", "ps1") for path in (ROOT / "harness").rglob(f"*.{suffix}") if path.is_file()
)
SHELLS = [words for words in (["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(words[0]) is not None]


def read(path: Path) -> str:
    return read_script(".".join(path.relative_to(ROOT).parent.parts), path.name)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_read_by_a_module_of_its_own_directory(path: Path) -> None:
    package = ".".join(path.relative_to(ROOT).parent.parts)
    calls = re.compile(rf'read_script\(\s*"{re.escape(package)}",\s*"{re.escape(path.name)}"')
    assert any(calls.search(module.read_text(encoding="utf-8")) for module in path.parent.glob("*.py"))


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_each_shell_accepts_every_script(shell: list[str], tmp_path: Path) -> None:
    for path in SCRIPTS:
        if path.suffix == ".sh" or (path.suffix == ".bash" and shell == ["bash"]):
            copy = tmp_path / path.name
            copy.write_text(read(path), encoding="utf-8")
            done = subprocess.run([*shell, "-n", copy], capture_output=True, text=True, check=False, timeout=60)
            assert done.returncode == 0, f"{path}: {done.stderr}"


def test_perl_accepts_every_program(tmp_path: Path) -> None:
    for path in SCRIPTS:
        if path.suffix == ".pl":
            copy = tmp_path / path.name
            copy.write_text(read(path), encoding="utf-8")
            done = subprocess.run(["perl", "-c", copy], capture_output=True, text=True, check=False, timeout=60)
            assert done.returncode == 0, f"{path}: {done.stderr}"


def test_comments_are_not_sent_and_words_are_replaced() -> None:
    assert "\n# " not in "\n" + read_script("harness.lab.guard", "inspect_disk.sh")
    sent = read_script("harness.features.breakdown", "hold_tracing.sh", MOST_CPUS=64)
    assert "most=64\n" in sent
    assert "MOST_CPUS" not in sent


def test_the_first_line_of_a_file_that_a_script_writes_is_no_comment() -> None:
    assert "\n#!/bin/sh\n" in read_script("harness.features.own_image", "install_fio.sh")
