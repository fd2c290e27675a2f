"""A qcow2 image with a data file, and disks in one throttle group, measured in the lab and read back from QEMU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest

from harness.features.embedded.disks import NullBlkDisk
from harness.lab.transport.ssh import SshRunner
from tests.e2e.conftest import host
from tests.soak.own_disks import measured, only_disks, project

__all__ = ["host"]

DISK = NullBlkDisk("apart", 1 << 30, completion_ns=100_000, queue_depth=64)
SCENARIO = """
title = "Data apart from the tables of qcow2, and a throttle group"
disk = "apart"
modes = ["host", "image", "apart", "limited", "also"]
workloads = ["randread-4k"]
write_rate = "500 MiB/s"

[profile.smoke]
iodepth = [8]
span = "32 MiB"
runtime = "2 s"
rounds = 2
most_rounds = 2

[mode.image]
layout = { kind = "qcow2" }
attach = { bus = "virtio-blk" }

[mode.apart]
layout = { kind = "qcow2", data_file = true }
attach = { bus = "virtio-blk" }

[mode.limited]
layout = { kind = "lvm" }
attach = { bus = "virtio-blk", iops = 300, throttle_group = "both" }

[mode.also]
layout = { kind = "lvm" }
attach = { bus = "virtio-scsi", iops = 300, throttle_group = "both" }
"""


@pytest.fixture
def before(host: SshRunner) -> Iterator[None]:
    with only_disks(host, DISK):
        yield


@pytest.mark.usefixtures("before")
def test_each_is_measured_and_read_back(tmp_path: Path) -> None:
    run = measured(project(tmp_path, [DISK.spec], {"apart": SCENARIO}), "--lab=lab.toml")
    cells = {cell.mode: cell for cell in run.cells}
    assert {name: cell.skipped for name, cell in cells.items() if cell.skipped} == {}
    wrong = [check for cell in cells.values() for check in cell.validity if not check.ok]
    assert wrong == []
    assert cells["image"].effective.qemu_data_file is False
    assert cells["apart"].effective.qemu_data_file is True
    for mode in ("limited", "also"):
        assert cells[mode].effective.qemu_throttle_group == "both"
        assert fmean(cells[mode].metrics["iops"].guest) < 400
