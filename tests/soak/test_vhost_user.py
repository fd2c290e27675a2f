"""A disk of a storage daemon against one of QEMU, in one run of the lab: both are measured, and nothing is void."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.lab.transport.ssh import SshRunner
from harness.model.attach import Attach
from tests.e2e.attaching import Lab
from tests.e2e.conftest import host, lab_host
from tests.e2e.machines import latest, measure
from tests.patience import patience
from tests.soak.test_attach import served

__all__ = ["host", "lab_host"]

OPTIONS = {
    "daemon-cached": Attach("virtio-blk", "writeback", "threads", iothread=False, server="storage-daemon"),
    "daemon-through": Attach("virtio-blk", "directsync", "io_uring", event_idx=False, server="storage-daemon"),
    "qcow2": Attach("virtio-blk", discard="unmap", detect_zeroes="unmap", server="storage-daemon"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_of_a_storage_daemon_works_and_reads_back(name: str, lab_host: Lab) -> None:
    served(lab_host, name, OPTIONS[name])


def test_a_storage_daemon_is_measured_against_qemu(host: SshRunner, tmp_path: Path) -> None:
    done = measure(tmp_path, "-k", "vhost_user", "--profile=smoke", "--lab=embedded")
    assert done.returncode == 0, done.stdout
    cells = [cell for cell in latest(tmp_path).cells if cell.mode in ("blk", "vhost")]
    assert {cell.mode: cell.effective.qemu_device for cell in cells} == {
        "blk": "virtio-blk-pci",
        "vhost": "vhost-user-blk-pci",
    }
    assert all(check.ok for cell in cells for check in cell.validity), [cell.validity for cell in cells]
    assert all(cell.metrics["iops"].overhead is not None for cell in cells)
    # No daemon is left on the host.
    assert host.run(["sh", "-c", "ls -d /run/voh-*"], deadline=patience(30), check=False).status != 0
