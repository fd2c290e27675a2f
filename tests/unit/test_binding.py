"""Without libvirt's Python binding, only hosts with libvirt are out of reach, and the message has the remedy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.machines import ROOT

_WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name in ("libvirt", "libvirt_qemu"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Without())
from harness.cli import main
sys.exit(main(sys.argv[1:]))
"""
STORED = ROOT / "tests" / "unit" / "data" / "stored_run"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT, *words], capture_output=True, text=True, check=False, timeout=300, cwd=ROOT
    )


def test_a_host_with_libvirt_names_the_remedy(tmp_path: Path) -> None:
    lab = tmp_path / "lab.toml"
    lab.write_text('[host.here]\nkind = "local"\n[host.here.storage.vms]\ndirectory = "/srv"\n')
    for words in (["reap", f"--lab={lab}"], ["init", f"--output={tmp_path / 'new.toml'}"]):
        done = run(*words)
        assert done.returncode != 0
        assert "libvirt's Python binding is not installed here" in done.stderr
        assert "python3-libvirt" in done.stderr
        assert "internal error" not in done.stderr


@pytest.mark.parametrize(
    "words", [["--help"], ["report", str(STORED)], ["run", "--collect-only", "-q", "-k", "optane"]]
)
def test_everything_else_works(words: list[str], tmp_path: Path) -> None:
    if words[0] == "report":
        shutil.copytree(STORED, tmp_path / "run")
        words = ["report", str(tmp_path / "run")]
    done = run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ModuleNotFoundError" not in done.stdout + done.stderr
