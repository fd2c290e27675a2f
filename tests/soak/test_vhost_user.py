"""A disk of a storage daemon against one of QEMU, in one run of the lab: both are measured, and nothing is void."""

from __future__ import annotations

from pathlib import Path

from harness.lab.transport.ssh import SshRunner
from tests.e2e.conftest import host
from tests.e2e.machines import latest, measure

__all__ = ["host"]


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
    assert host.run(["sh", "-c", "ls -d /run/voh-*"], deadline=30, check=False).status != 0
