"""Loop devices as disks under test, and what must be the same again after a test."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.config.names import RunId
from harness.lab.created import CreationLog, Entry, Removal
from harness.lab.transport.local import LocalRunner

RUNNER = LocalRunner("host here")
NO_PROCESS = "VIRT_OVERHEAD=00000000-0000-4000-8000-000000000000"
"""The mark of no process."""
_SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def require(*tools: str) -> None:
    """Skip the test where loop devices cannot be made, or a tool is missing."""
    if os.getuid() != 0:
        pytest.skip("loop devices are made by root")
    if not Path("/dev/loop-control").exists():
        pytest.skip("this kernel has no loop devices")
    for tool in ("losetup", "lsblk", "wipefs", *tools):
        if shutil.which(tool, path=_SYSTEM_PATH) is None:
            pytest.skip(f"{tool} is not installed here")


def sparse(path: Path, size_bytes: int) -> Path:
    path.touch()
    os.truncate(path, size_bytes)
    return path


class NoHypervisor:
    """Stands for the hypervisor where only commands have created something on a host: no entry is one of its own."""

    def remove(self, _entry: Entry) -> Removal | None:
        return None

    def _never(self, *_: object, **__: object) -> Any:
        raise AssertionError("no guest is asked for here")

    guest = missing = layouts = _never


NO_HYPERVISOR = NoHypervisor()


def creation_log(directory: Path, run_id: RunId = RunId("20260101-000000-abcd")) -> CreationLog:  # noqa: B008
    """The log of a run on this machine, kept below `directory`."""
    (directory / "created").mkdir(exist_ok=True)
    return CreationLog(RUNNER, run_id, str(directory / "created"))


@contextmanager
def loop(file: Path) -> Iterator[str]:
    """The loop device on `file`."""
    device = run("losetup", "--find", "--show", "--partscan", str(file)).strip()
    try:
        yield device
    finally:
        detach(device)


def detach(device: str) -> None:
    """Detach the loop device, and wait until it is gone: that is when the last program closes it, for example the lsblk
    of another test."""
    run("sh", "-c", 'losetup -d "$1"; while losetup "$1" >/dev/null 2>&1; do sleep 0.1; done', "sh", device)


@contextmanager
def mounted(device: str, at: Path) -> Iterator[None]:
    at.mkdir()
    run("mount", device, str(at))
    try:
        yield
    finally:
        run("umount", str(at))


def partition(device: str, *names: str) -> None:
    """A GPT with a partition of 16 MiB per name. The kernel is not asked to look at it."""
    lines = [f'size=16MiB, name="{name}"' for name in names]
    run("sfdisk", "--quiet", "--no-reread", device, text="\n".join(["label: gpt", *lines, ""]))


def run(*argv: str, text: str = "") -> str:
    return RUNNER.run(argv, deadline=60, stdin=text).stdout


def traces(directory: Path) -> set[str]:
    """Loop devices on files below `directory`, mounts there and the files themselves: what a test leaves as it was.

    Of the directory alone: other tests may use other loop devices at the same time.
    """
    listed = subprocess.run(["losetup", "-a"], check=True, capture_output=True, text=True).stdout
    lines = [*listed.splitlines(), *Path("/proc/self/mounts").read_text().splitlines()]
    return {line for line in lines if f"{directory}/" in line} | {str(path) for path in directory.rglob("*")}
