"""A run through Proxmox VE that is killed: `reap` removes its VM, its storages and the partitions of the disk."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from tests.e2e.conftest import host
from tests.e2e.machines import background, command, pytest_command
from tests.e2e.test_proxmox import DISK, ONE_JOB, SECRETS, Node, node, nothing_left
from tests.patience import patience

__all__ = ["host", "node", "nothing_left"]


def test_reap_removes_the_vm_and_the_storages_of_a_killed_run(tmp_path: Path, node: Node) -> None:
    lab = node.lab(tmp_path)
    selected = ("-k", "optane and (passthrough or lvm or raw) and not cached and randread", *ONE_JOB)
    with background(pytest_command(tmp_path, f"--lab={lab}", *selected), env=SECRETS) as run:
        _wait_for_a_guest(node, run)
        run.kill()
        run.communicate(timeout=patience(60))
    started = node.runner.run(["qm", "showcmd", "9000"], deadline=patience(60)).stdout
    assert DISK in started
    done = command("reap", f"--lab={lab}", "--yes", env=SECRETS)
    assert done.returncode == 0, done.stdout + done.stderr
    for what in ("VM 9000, of run", "volume voh-", "storage voh-", "the partitions on "):
        assert f"removed after a killed run: {what}" in done.stdout


def _wait_for_a_guest(node: Node, run: subprocess.Popen[str]) -> None:
    end = time.monotonic() + patience(180)
    while (
        node.runner.run(["test", "-s", "/var/run/qemu-server/9000.pid"], deadline=patience(20), check=False).status != 0
    ):
        assert run.poll() is None, "the run ended before it started a guest"
        assert time.monotonic() < end, "no guest was started"
        time.sleep(0.5)
