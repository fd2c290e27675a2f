"""Guests in the lab that lack fio or a driver: this is reported before anything is written to the disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.features.embedded.disks import NullBlkDisk
from harness.lab.transport.ssh import SshRunner
from tests.e2e.attaching import Lab
from tests.e2e.conftest import host, lab_host
from tests.e2e.machines import latest
from tests.patience import patience
from tests.soak.own_disks import only_disks, project, tried

__all__ = ["host", "lab_host"]

DISK = NullBlkDisk("looked", 2 << 30, completion_ns=400_000, queue_depth=64)
OWN = "/var/lib/libvirt/images/own-initramfs"
SCENARIO = f"""
title = "An initramfs that lacks something"
disk = "looked"
modes = ["host", "scsi", "blk"]
workloads = ["randread-4k"]
write_rate = "500 MiB/s"
guest = {{ initramfs = "{OWN}", vcpus = 1, memory = "512 MiB" }}

[profile.smoke]
iodepth = [1]
runtime = "0.5 s"
span = "256 MiB"
rounds = 1
most_rounds = 1

[mode.scsi]
layout = {{ kind = "lvm" }}
attach = {{ bus = "virtio-scsi" }}

[mode.blk]
layout = {{ kind = "lvm" }}
attach = {{ bus = "virtio-blk" }}
"""
# $1: the guest's initramfs, $2: the new one, in which the archive of standard input replaces files. The kernel unpacks
# one archive after the other, each from a multiple of 4 bytes.
_COPY = 'cp "$1" "$2" && truncate -s %4 "$2" && cat >>"$2"'
_WRITTEN = """awk '{ print $7 }' "/sys/class/block/$(basename "$(readlink -f "$1")")/stat\""""


def without(*paths: str) -> bytes:
    """An archive (newc) in which these files are empty and cannot be executed."""
    return b"".join(_member(path) for path in paths) + _member("TRAILER!!!", mode=0)


def _member(path: str, mode: int = 0o100644) -> bytes:
    # Inode, mode, user, group, links, time, size, four device numbers, size of the name, checksum.
    fields = (0, mode, 0, 0, 1, 0, 0, 0, 0, 0, 0, len(path) + 1, 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + path.encode() + b"\0"
    return head + b"\0" * (-len(head) % 4)


@contextmanager
def own_initramfs(lab: Lab, *lacking: str) -> Iterator[None]:
    """The guest's initramfs without these files, on the lab host."""
    words = ["sh", "-c", _COPY, "sh", lab.host.guest_files.initramfs, OWN]
    lab.host.runner.run(words, stdin=without(*lacking), deadline=patience(60))
    try:
        yield
    finally:
        lab.host.runner.run(["rm", "-f", OWN], deadline=patience(20))


def written(host: SshRunner) -> int:
    """The sectors that were written to the disk."""
    return int(host.run(["sh", "-c", _WRITTEN, "sh", DISK.spec.id], deadline=patience(20)).stdout)


@pytest.fixture
def disk(host: SshRunner) -> Iterator[None]:
    with only_disks(host, DISK):
        yield


@pytest.mark.usefixtures("disk")
def test_a_guest_without_fio_is_reported_and_nothing_is_written(tmp_path: Path, host: SshRunner, lab_host: Lab) -> None:
    with own_initramfs(lab_host, "usr/bin/fio"):
        done = tried(project(tmp_path, [DISK.spec], {"looked": SCENARIO}), "--lab=lab.toml", "-rs")
    assert f"in the guest of {OWN}, fio is not installed: apt-get install fio when the initramfs is made" in done.stdout
    assert " passed" not in done.stdout
    assert written(host) == 0


@pytest.mark.usefixtures("disk")
def test_a_guest_without_a_driver_is_measured_in_the_other_modes(
    tmp_path: Path, host: SshRunner, lab_host: Lab
) -> None:
    with own_initramfs(lab_host, "lib/modules/virtio_scsi.ko"):
        done = tried(project(tmp_path, [DISK.spec], {"looked": SCENARIO}), "--lab=lab.toml", "-rs")
    assert f"in the guest of {OWN}, the kernel has no driver virtio_scsi" in done.stdout
    cells = {cell.mode: cell for cell in latest(tmp_path / "reports").cells}
    assert "no driver virtio_scsi" in (cells["scsi"].skipped or "")
    assert cells["blk"].skipped is None, done.stdout
    assert cells["blk"].metrics["iops"].guest
    assert cells["blk"].effective.qemu_initramfs == OWN
    assert written(host) > 0
