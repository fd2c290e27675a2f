"""What a storage is on, asked of real devices: partitions by their UUID, mounts, and what was put there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.features.proxmox.removal import LOOK
from tests.unit.loop_disks import RUNNER, loop, require, run, sparse

MIB = 1024**2


@pytest.fixture
def partitions(tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """The first partition of a loop device with its UUID, and the second one."""
    require("sfdisk", "blkid", "mkfs.ext4", "findmnt")
    ours = str(uuid.uuid4())
    table = f"label: gpt\nsize=16MiB, uuid={ours}\nsize=16MiB\n"
    with loop(sparse(tmp_path / "disk", 64 * MIB)) as device:
        run("sfdisk", "--quiet", device, text=table)
        # A kernel built without GPT takes the partitions from partx.
        RUNNER.run(["partx", "--update", device], deadline=30, check=False)
        if not Path(f"{device}p1").exists():
            pytest.skip("this kernel makes no partitions of loop devices")
        yield f"{device}p1", ours, f"{device}p2"


@pytest.fixture
def mount_point() -> Iterator[Path]:
    """A directory where Proxmox VE would mount it."""
    path = Path("/mnt/pve") / f"voh-test-{uuid.uuid4().hex[:8]}"
    was_there = path.parent.exists()
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        path.rmdir()
        if not was_there:
            # Another test may have a directory of its own there by now.
            with suppress(OSError):
                path.parent.rmdir()


def look(maker: str, name: str, partuuid: str, device: str = "") -> str:
    return run("sh", "-c", LOOK, "sh", maker, name, partuuid, device).strip()


def test_a_directory_is_ours_if_it_is_empty_and_our_partition_is_mounted(
    partitions: tuple[str, str, str], mount_point: Path
) -> None:
    ours, partuuid, other = partitions
    name = mount_point.name
    run("mkfs.ext4", "-q", ours)
    run("mkfs.ext4", "-q", other)
    assert look("directory", name, partuuid) == "absent"
    # The unit file of Proxmox VE names the device, also while it is not mounted.
    assert look("directory", name, partuuid, ours) == "ours"
    assert look("directory", name, partuuid, other).startswith(f"foreign: {name} is on {other}, which is not")
    run("mount", ours, str(mount_point))
    try:
        (mount_point / "images" / "9000").mkdir(parents=True)
        assert look("directory", name, partuuid) == "ours"
        assert look("directory", name, str(uuid.uuid4())).startswith(f"foreign: {name} is on {ours}")
        (mount_point / "dump").mkdir()
        (mount_point / "dump" / "backup of mine.vma").touch()
        assert look("directory", name, partuuid) == f"holds: {mount_point}/dump/backup of mine.vma"
    finally:
        run("umount", str(mount_point))
    with pytest.raises(HostError, match=f"{name} is on /dev/gone, which does not exist"):
        look("directory", name, partuuid, "/dev/gone")


def test_a_device_that_is_not_a_partition_is_not_ours(partitions: tuple[str, str, str], mount_point: Path) -> None:
    ours, partuuid, _ = partitions
    disk = ours.removesuffix("p1")
    assert look("directory", mount_point.name, partuuid, disk).startswith("foreign: ")
