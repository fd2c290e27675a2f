"""What a host lacks for a layout, and the package that brings it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from harness.lab.facts import HostFacts
from harness.layout.md import MODULES
from harness.scenario.layouts import (
    Layout,
    Lvm,
    LvmThin,
    Md,
    Qcow2,
    RawFile,
    ZfsFile,
    Zvol,
    base_of,
)

_NO_DEVICE_MAPPER = "its kernel has no device-mapper, which LVM needs: load dm_mod, or measure on another host"


def missing_prerequisite(layout: Layout, facts: HostFacts) -> str | None:
    """Why this layout cannot be built on the host, with the remedy; None where it can."""
    return next(_missing(layout, facts), None)


def _missing(layout: Layout, facts: HostFacts) -> Iterator[str]:
    base = base_of(layout)
    if isinstance(base, Md):
        yield from _of_md(base, facts)
    if isinstance(layout, Lvm | LvmThin):
        if not facts.has_tool("lvm"):
            yield "LVM is not installed there: apt-get install lvm2"
        if not facts.has_device_mapper:
            yield _NO_DEVICE_MAPPER
    if isinstance(layout, LvmThin):
        if not facts.has_tool("thin_check"):
            yield "the tools of thin pools are not installed there: apt-get install thin-provisioning-tools"
        if not facts.has_module("dm_thin_pool"):
            yield "its kernel has no thin pools: load dm_thin_pool, or measure on another host"
    if isinstance(layout, RawFile | Qcow2):
        yield from _of_files(layout, facts)
    if isinstance(layout, Zvol | ZfsFile):
        if not facts.has_tool("zpool") or not facts.has_tool("zfs"):
            yield "ZFS is not installed there: apt-get install zfsutils-linux"
        if not facts.has_module("zfs"):
            yield "its kernel has no ZFS: apt-get install zfs-dkms, or measure on a Proxmox VE node, which has it"


def _of_md(base: Md, facts: HostFacts) -> Iterator[str]:
    if not facts.has_tool("mdadm"):
        yield "mdadm is not installed there: apt-get install mdadm"
    for level in (base.level, 0) if base.legs == 2 else (base.level,):
        if not facts.has_module(MODULES[level]):
            yield f"its kernel has no RAID {level}: load {MODULES[level]}, or measure on another host"


def _of_files(layout: RawFile | Qcow2, facts: HostFacts) -> Iterator[str]:
    packages = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}
    if not facts.has_tool(f"mkfs.{layout.filesystem}"):
        yield f"mkfs.{layout.filesystem} is not installed there: apt-get install {packages[layout.filesystem]}"
    if not facts.has_module(layout.filesystem):
        yield f"its kernel has no {layout.filesystem}: load the module {layout.filesystem}, or measure on another host"
    if isinstance(layout, Qcow2) and not facts.has_tool("qemu-img"):
        yield "qemu-img is not installed there: apt-get install qemu-utils"
