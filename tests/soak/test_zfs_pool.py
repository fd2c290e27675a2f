"""A pool of ZFS that a run makes on a disk: its volume is measured, and nothing of it is left."""

from __future__ import annotations

from pathlib import Path

from harness.features.embedded.disks import DISKS
from harness.lab.transport.ssh import SshRunner
from tests.e2e.machines import traces
from tests.soak.own_disks import measured, project
from tests.soak.test_zfs import host

__all__ = ["host"]

SCENARIO = """
title = "A volume of a pool on a disk"
disk = "optane"
modes = ["host", "volume"]
workloads = ["randwrite-4k"]
write_rate = "2200 MiB/s"

[mode.volume]
layout = { kind = "zvol" }
attach = {}
"""


def test_a_volume_of_a_pool_on_a_disk_is_measured_and_the_pool_is_gone(tmp_path: Path, host: SshRunner) -> None:
    before = traces(host)
    disks = [disk.spec for disk in DISKS if disk.spec.name == "optane"]
    run = measured(project(tmp_path, disks, {"pooled": SCENARIO}), "--lab=lab.toml", "--profile=smoke", "--rounds=1")
    cell = run.cell("pooled-volume-randwrite-4k-qd32")
    assert cell.skipped is None, cell.skipped
    assert cell.verdict != "void", cell.validity
    assert cell.metrics["iops"].guest
    assert cell.effective.host_zfs_volblocksize is not None
    assert traces(host) == before
