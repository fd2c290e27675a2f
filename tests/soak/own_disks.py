"""Disks with a known speed, created in the lab host's memory for one test, and scenarios that measure them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from harness.features.calibrate.memory_disk import NULL_BLK
from harness.features.embedded import lab_host as embedded
from harness.features.embedded.disks import NullBlkDisk
from harness.lab.inventory import DiskById
from harness.lab.transport.ssh import SshRunner
from harness.results import Run
from tests.e2e.machines import ROOT, latest, ran, traces
from tests.patience import patience

SECONDS = 900.0
_REMOVE = 'cd "$1" && echo 0 >"$2/power" && rmdir "$2"'


@contextmanager
def own_disks(host: SshRunner, *disks: NullBlkDisk) -> Iterator[None]:
    """The disks, on the lab host."""
    for disk in disks:
        host.run(["sh", "-s"], stdin=f"cd {NULL_BLK}\n{disk.creation()}\nudevadm settle", deadline=patience(60))
    try:
        yield
    finally:
        for disk in disks:
            host.run(["sh", "-c", _REMOVE, "sh", NULL_BLK, disk.device], deadline=patience(60))


@contextmanager
def only_disks(host: SshRunner, *disks: NullBlkDisk) -> Iterator[None]:
    """The disks, on a lab host that has the same afterwards as before."""
    before = traces(host)
    with own_disks(host, *disks):
        yield
    assert traces(host) == before


def project(directory: Path, disks: Iterable[DiskById], scenarios: Mapping[str, str]) -> Path:
    """A directory to run pytest in: its lab has only these disks, and it has only these scenarios, by name."""
    machine = embedded.state().running()
    assert machine is not None, "the embedded lab is not running"
    own = directory / "scenarios"
    own.mkdir()
    shutil.copy(ROOT / "conftest.py", directory)
    shutil.copy(ROOT / "scenarios" / "test_overhead.py", own)
    (directory / "pytest.ini").write_text("[pytest]\n")
    for name, text in scenarios.items():
        (own / f"{name}.toml").write_text(text)
    lines = [
        'profile = "smoke"',
        "[host.lab]",
        'kind = "ssh"',
        'address = "127.0.0.1"',
        f"port = {machine.port}",
        f"key = {json.dumps(machine.key)}",
        f"host_key = {json.dumps(machine.host_key)}",
    ]
    for disk in disks:
        lines += [f"[host.lab.disk.{disk.name}]", f'id = "{disk.id}"', f'serial = "{disk.serial}"', "destroy = true"]
    (directory / "lab.toml").write_text("\n".join(lines) + "\n")
    return directory


def tried(directory: Path, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`pytest ARGUMENTS` in a project."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return ran(command, env=env, cwd=directory, seconds=SECONDS)


def measured(directory: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Run:
    """The run of `pytest ARGUMENTS` in a project, stored in its `reports`."""
    done = tried(directory, *arguments, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return latest(directory / "reports")
