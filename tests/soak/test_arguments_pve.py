"""Options that Proxmox VE lacks, as arguments of a QEMU that runs in the lab: each is read back from its monitor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machines import on_lab_host
from tests.e2e.test_proxmox import SECRETS, Node, running_node
from tests.soak.own_disks import measured, own_disks, project
from tests.soak.test_neighbours import DISK, cell

# The lab host's QEMU 10.0.13 gives the guest queues of 1024, whatever is requested.
SCENARIO = """
title = "Arguments of QEMU"
disk = "optane"
modes = ["host", "queue-size", "no-polling", "split", "block-4kn", "limited", "solid", "mapped", "mapped-scsi"]
workloads = ["randread-4k"]
write_rate = "500 MiB/s"
guest = { vcpus = 1, memory = "512 MiB" }

[profile.smoke]
iodepth = [8]
runtime = "1 s"
span = "32 MiB"
blocks = 3
rounds = 1
most_rounds = 1

[mode.queue-size]
layout = { kind = "lvm" }
attach = { bus = "virtio-blk", queue_size = 1024 }

[mode.no-polling]
layout = { kind = "lvm" }
attach = { poll_max_ns = 0 }

[mode.split]
layout = { kind = "lvm" }
attach = { bus = "virtio-blk", packed = true, event_idx = false, queues = 1 }

[mode.block-4kn]
layout = { kind = "lvm" }
attach = { logical_block_size = "4 KiB", physical_block_size = "4 KiB" }

[mode.limited]
layout = { kind = "lvm" }
attach = { read_iops = 200, write_bw = "10 MiB/s" }

[mode.solid]
layout = { kind = "lvm" }
attach = { ssd = true }

[mode.mapped]
layout = { kind = "lvm" }
attach = { bus = "virtio-blk", queues = 1, iothread_vq_mapping = 1, iothread = false, poll_max_ns = 4096 }

[mode.mapped-scsi]
layout = { kind = "lvm" }
attach = { queues = 1, iothread_vq_mapping = 1, iothread = false }
"""
READ_BACK: dict[str, dict[str, object]] = {
    "queue-size": {"qemu_queue_size": 1024},
    "no-polling": {"qemu_poll_max_ns": 0, "qemu_iothreads": 1},
    "split": {"qemu_packed": True, "qemu_event_idx": False, "guest_packed": True, "qemu_queues": 1},
    "block-4kn": {"qemu_logical_block_size": 4096, "guest_logical_block_size": 4096},
    "limited": {"qemu_iops_limit": "iops-read=200", "qemu_bw_limit": "bps-write=10485760"},
    "solid": {"qemu_rotation_rate": 1, "guest_rotational": False},
    "mapped": {"qemu_iothreads": 1, "qemu_poll_max_ns": 4096, "qemu_queues": 1},
    "mapped-scsi": {"qemu_iothreads": 1, "qemu_queues": 1},
}


@pytest.fixture
def node(lab: None) -> Iterator[Node]:  # noqa: ARG001 - it has to be up
    """The node with a disk of this test. Afterwards it has what it had before."""
    with on_lab_host() as host, own_disks(host, DISK), running_node([DISK]) as found:
        before = found.left()
        yield found
        assert found.left() == before


def test_each_option_is_in_effect(tmp_path: Path, node: Node) -> None:
    directory = project(tmp_path, [], {"arguments": SCENARIO})
    node.lab(directory, id=DISK.spec.id, serial=DISK.spec.serial)
    run = measured(directory, "--lab=lab.toml", env=SECRETS)
    for mode, settings in READ_BACK.items():
        found = dict(cell(run, mode).effective.settings())
        assert {name: found.get(name) for name in settings} == settings
    assert all(iops < 400 for iops in cell(run, "limited").metrics["iops"].guest)
