"""A run that is killed during a backup in the lab: after `reap`, nothing of the backup is left on the host."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.lab.transport.ssh import SshRunner
from tests.e2e.conftest import host
from tests.e2e.machines import background, command, traces, wait_for_measurements
from tests.patience import patience
from tests.soak.own_disks import own_disks, project
from tests.soak.test_backup import BACKUPS, DISK, SCENARIO

__all__ = ["host"]

# The description of each backup job that runs now.
_BACKED_UP = 'for each in $(virsh list --name); do virsh backup-dumpxml "$each" 2>/dev/null; done; true'
# Every guest, QEMU process and file that a backup could leave; libvirt stores checkpoints in files.
_LEFT = f"""
virsh list --all --name
pgrep -a qemu-system
find {BACKUPS} /var/lib/virt-overhead/created /var/lib/libvirt -type f | sort
true
"""


def ask(host: SshRunner, script: str) -> str:
    return host.run(["sh", "-c", script], deadline=patience(60)).stdout.strip()


@pytest.fixture
def as_before(host: SshRunner) -> Iterator[None]:
    """The disk of the scenario. Afterwards the host has what it had before."""
    found, left = traces(host), ask(host, _LEFT)
    with own_disks(host, DISK):
        yield
        assert ask(host, _LEFT) == left
    assert traces(host) == found


@pytest.mark.usefixtures("as_before")
def test_after_a_kill_during_a_backup_reap_leaves_neither_its_job_nor_its_file(tmp_path: Path, host: SshRunner) -> None:
    # Many rounds: the run must not end by itself first.
    directory = project(tmp_path, [DISK.spec], {"saved": SCENARIO.replace("rounds = 3", "rounds = 12")})
    run_tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--lab=lab.toml"]
    with background(run_tests, cwd=directory) as run:
        wait_for_measurements(directory / "reports", run)
        end = time.monotonic() + patience(60)
        while not (backed_up := ask(host, _BACKED_UP)):
            assert run.poll() is None, "the run ended before another backup began"
            assert time.monotonic() < end, "no backup began in a minute"
        os.kill(run.pid, signal.SIGKILL)
        run.communicate(timeout=patience(60))
    assert f"{BACKUPS}/voh-" in backed_up
    assert ask(host, f"ls {BACKUPS}").startswith("voh-")

    done = command("reap", f"--lab={directory / 'lab.toml'}", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"removed after a killed run: the file {BACKUPS}/voh-" in done.stdout
    assert ask(host, _BACKED_UP) == ""
    again = command("reap", f"--lab={directory / 'lab.toml'}", "--yes")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "nothing was left" in again.stdout
