"""How large the regions of a disk are, and what a host lacks for a layout."""

from __future__ import annotations

import pytest

from harness.errors import Unsupported
from harness.lab.facts import HostFacts
from harness.layout.regions import STEP, choose_span
from harness.model.base import Device, Md
from harness.model.layout import (
    Layout,
    Lvm,
    LvmThin,
    Partition,
    Qcow2,
    RawFile,
    ZfsFile,
    Zvol,
    find_missing_requirement,
)

MIB = 1024**2
GIB = 1024**3
TOOLS = (
    "lvm",
    "thin_check",
    "mdadm",
    "mkfs.ext4",
    "mkfs.xfs",
    "mkfs.btrfs",
    "chattr",
    "lsattr",
    "qemu-img",
    "zpool",
    "zfs",
)
MODULES = ("raid0", "raid1", "raid10", "raid456", "dm_thin_pool", "ext4", "xfs", "btrfs", "zfs")
READY = {
    "device_mapper": "252 device-mapper",
    **{f"tool_{tool}": f"/sbin/{tool}" for tool in TOOLS},
    **{f"module_{module}": "yes" for module in MODULES},
}


@pytest.mark.parametrize(
    ("disk", "fixed", "shares", "wanted", "span"),
    [
        (256 * GIB, 0, 1, 4 * GIB, 4 * GIB),
        (1 * GIB, 0, 1, 64 * MIB, 64 * MIB),
        (1 * GIB, 0, 1, 4 * GIB, 1020 * MIB),
        (1 * GIB, 4 * MIB, 2, 4 * GIB, 508 * MIB),
        (1 * GIB, 68 * MIB, 4.1, 4 * GIB, 232 * MIB),
        (18 * MIB, 0, 1, 4 * GIB, 16 * MIB),
    ],
    ids=["as wanted", "small", "the whole disk but its table", "two regions", "files with their share", "smallest"],
)
def test_a_span_is_what_is_wanted_or_what_fits_in_whole_steps(
    disk: int, fixed: int, shares: float, wanted: int, span: int
) -> None:
    found = choose_span(disk, fixed=fixed, shares=shares, wanted=wanted)
    assert found == span
    assert found % STEP == 0
    assert found * shares + fixed < disk


@pytest.mark.parametrize(("disk", "shares"), [(17 * MIB, 1), (64 * MIB, 4), (0, 1)])
def test_a_disk_without_room_says_how_many_regions_do_not_fit_and_what_to_do(disk: int, shares: float) -> None:
    with pytest.raises(Unsupported, match=f"no room for {shares} regions of 16 MiB") as error:
        choose_span(disk, fixed=0, shares=shares, wanted=GIB)
    assert error.value.hint == "select fewer modes with -k, or use a larger disk"


EVERY = [
    *(Device(), Partition(), Lvm(), LvmThin(), RawFile(), RawFile("xfs"), Qcow2(), Qcow2("btrfs"), Zvol(), ZfsFile()),
    *(Md(0, 2), Md(1, 2), Md(5, 3), Md(6, 4), Md(10, 4), Md(5, 6, legs=2), Lvm(on=Md(5, 3)), Qcow2(on=Md(10, 4))),
]


@pytest.mark.parametrize("layout", EVERY, ids=str)
def test_a_host_with_everything_lacks_nothing(layout: Layout) -> None:
    assert find_missing_requirement(layout, HostFacts(READY)) is None


@pytest.mark.parametrize(
    ("layout", "lacking", "why"),
    [
        (Lvm(), "tool_lvm", "LVM is not installed there: apt-get install lvm2"),
        (
            Lvm(),
            "device_mapper",
            "its kernel has no device-mapper, which LVM and LUKS need: load dm_mod, or measure on another host",
        ),
        (
            LvmThin(),
            "tool_thin_check",
            "the tools of thin pools are not installed there: apt-get install thin-provisioning-tools",
        ),
        (
            LvmThin(),
            "module_dm_thin_pool",
            "its kernel has no thin pools: load dm_thin_pool, or measure on another host",
        ),
        (RawFile(), "tool_mkfs.ext4", "mkfs.ext4 is not installed there: apt-get install e2fsprogs"),
        (Qcow2("btrfs"), "tool_mkfs.btrfs", "mkfs.btrfs is not installed there: apt-get install btrfs-progs"),
        (RawFile("btrfs"), "tool_lsattr", "chattr is not installed there: apt-get install e2fsprogs"),
        (Qcow2("xfs"), "tool_mkfs.xfs", "mkfs.xfs is not installed there: apt-get install xfsprogs"),
        (
            RawFile("xfs"),
            "module_xfs",
            "its kernel has no xfs: load the module xfs, or measure on another host",
        ),
        (Qcow2(), "tool_qemu-img", "qemu-img is not installed there: apt-get install qemu-utils"),
        (Md(5, 3), "tool_mdadm", "mdadm is not installed there: apt-get install mdadm"),
        (Md(6, 4), "module_raid456", "its kernel has no RAID 6: load raid456, or measure on another host"),
        (Lvm(on=Md(10, 4)), "module_raid10", "its kernel has no RAID 10: load raid10, or measure on another host"),
        (Md(5, 6, legs=2), "module_raid0", "its kernel has no RAID 0: load raid0, or measure on another host"),
        (Lvm(on=Md(5, 3)), "tool_lvm", "LVM is not installed there: apt-get install lvm2"),
        (Zvol(), "tool_zpool", "ZFS is not installed there: apt-get install zfsutils-linux"),
        (
            ZfsFile(),
            "module_zfs",
            "its kernel has no ZFS: apt-get install zfs-dkms, or measure on a Proxmox VE node, which has it",
        ),
    ],
)
def test_what_a_host_lacks_for_a_layout_is_told_with_the_remedy(layout: Layout, lacking: str, why: str) -> None:
    assert find_missing_requirement(layout, HostFacts(READY | {lacking: ""})) == why


@pytest.mark.parametrize("layout", [Device(), Partition()])
def test_the_bare_device_needs_nothing_of_a_host(layout: Layout) -> None:
    assert find_missing_requirement(layout, HostFacts({})) is None
