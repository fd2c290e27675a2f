"""Ways to serve a disk that no host offers today: which versions add their parts, and what is missing there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.guest.libvirt.requirements import Versions, lacking
from harness.model.attach import Server


@dataclass(frozen=True, slots=True)
class _Way:
    """The versions of libvirt and QEMU that add it (0: none does), and why it is missing also with these."""

    libvirt: int
    qemu: int
    missing: str


# libvirt's NEWS of 9.8.0; QEMU's block-drivers manual: libblkio since 7.2, passing descriptors to it since 8.1.
_WAYS: Mapping[Server, _Way] = {
    "ublk": _Way(
        0,
        0,
        "no release of QEMU serves a disk by ublk, whose kernel part is in Linux 6.0, and virt-overhead starts no "
        "other server",
    ),
    "nvme-io_uring": _Way(
        0,
        7_002_000,
        "no release of libvirt can request it, and it needs a QEMU with libblkio (Fedora: qemu-block-blkio)",
    ),
    "vhost-vdpa": _Way(
        9_008_000,
        8_001_000,
        "it needs a device /dev/vhost-vdpa-N, which virt-overhead does not create, and a QEMU with libblkio (Fedora: "
        "qemu-block-blkio)",
    ),
}


def unoffered(server: Server, has: Versions) -> str | None:
    """Why no host with these versions serves a disk in this way, with the remedy; None if it may."""
    way = _WAYS.get(server)
    if way is None:
        return None
    what = f'server = "{server}"'
    needs = [(what, "libvirt", way.libvirt, has.libvirt), (what, "QEMU", way.qemu, has.qemu)]
    return lacking(needs) or f"{what}: {way.missing}: measure server qemu or storage-daemon instead"
