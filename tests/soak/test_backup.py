"""A backup by libvirt beside a guest in the lab: it runs during the slices, and its cost is visible."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest

from harness.features.embedded.disks import NullBlkDisk
from harness.lab.transport.ssh import SshRunner
from harness.report.terminal import difference_lines
from tests.e2e.conftest import host
from tests.patience import patience
from tests.soak.own_disks import measured, only_disks, project

__all__ = ["host"]

DISK = NullBlkDisk("saved", 2 << 30, completion_ns=10_000_000, queue_depth=8)
"""Eight requests at a time, 10 ms each: the guest waits for seconds, so its slices become longer (6 s). A backup of the
volume lasts still longer."""
SCENARIO = """
title = "A backup beside a guest"
disk = "saved"
modes = ["host", "own"]
workloads = ["randread-4k"]
write_rate = "500 MiB/s"
guest = { vcpus = 1, memory = "512 MiB" }

[profile.smoke]
iodepth = [4]
runtime = "1.5 s"
span = "1 GiB"
blocks = 3
rounds = 3
most_rounds = 3

[mode.own]
layout = { kind = "lvm" }
attach = {}
backup = true
"""
BACKUPS = "/var/lib/virt-overhead/backup"


@pytest.fixture
def before(host: SshRunner) -> Iterator[None]:
    # The lab host's own disk has no room for a backup of this size.
    mount = f"mkdir -p {BACKUPS} && mount -t tmpfs -o size=2200m,mode=0700 none {BACKUPS}"
    with only_disks(host, DISK):
        host.run(["sh", "-c", mount], deadline=patience(30))
        try:
            yield
            assert not host.run(["ls", "-A", BACKUPS], deadline=patience(30)).stdout
        finally:
            host.run(["umount", BACKUPS], deadline=patience(30))


@pytest.mark.usefixtures("before")
def test_a_backup_runs_during_the_slices_and_its_cost_is_visible(tmp_path: Path) -> None:
    run = measured(project(tmp_path, [DISK.spec], {"saved": SCENARIO}), "--lab=lab.toml")
    (found,) = (each for each in run.cells if each.mode == "own-backup")
    assert found.skipped is None, found.skipped
    assert all(check.ok for check in found.validity), [check for check in found.validity if not check.ok]
    assert "backup" in {check.check for check in found.validity}
    assert found.backup is not None
    assert fmean(found.backup.bw) > 1 << 20
    latency = found.metrics["clat_mean"].difference
    assert latency is not None
    assert latency.low is not None
    assert latency.low > 0.2, latency
    (line,) = (each for each in difference_lines(run) if "during a backup" in each)
    assert line.endswith("worse"), line
    (alone,) = (each for each in run.cells if each.mode == "own")
    assert all(check.ok for check in alone.validity), alone.validity
