"""Layouts as Proxmox VE makes them: a storage on a region of a disk, and a volume of it per mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from harness.guest.proxmox.stores import Store, Stores
from harness.guest.proxmox.things import MOUNTS, Maker
from harness.lab.created import CreationLog
from harness.layout.layer import Layer
from harness.layout.regions import Need, Region
from harness.layout.source import Sources
from harness.model.layout import (
    Device,
    Filesystem,
    Layout,
    Lvm,
    LvmThin,
    Partition,
    Qcow2,
    RawFile,
    ZfsFile,
    Zvol,
)
from harness.model.mode import Mode

MIB, GIB = 1024**2, 1024**3
_FILESYSTEMS: tuple[Filesystem, ...] = ("ext4", "xfs")

# Beside the volumes. A thin pool of PVE's has metadata of 1 %, 1 GiB at least, twice; see PVE::API2::Disks::LVMThin.
_LVM = Need(2 * 4 * MIB, 0)
_THIN = Need(2 * GIB + 160 * MIB, 0.03)
_ZFS = Need(256 * MIB, 0.15)
# mkfs with its defaults: 5 % are kept for root, who is the one that writes here, and a journal.
_FILES: Mapping[Filesystem, Need] = {"ext4": Need(160 * MIB, 0.05), "xfs": Need(300 * MIB, 0.05)}
_QCOW2 = Need(8 * MIB, 0.01)

"""How the RAW file beside a qcow2 file is allocated, for the host to work on."""

Stored = Lvm | LvmThin | RawFile | Qcow2 | Zvol


def not_made(layout: Layout) -> str | None:
    """What of a layout cannot be had through PVE, in words; None where it can be."""
    if not isinstance(layout.base, Device):
        return "layouts on md arrays are not made through Proxmox VE, which knows none"
    if isinstance(layout, ZfsFile):
        return "Proxmox VE keeps volumes of VMs as zvols on ZFS, not as files: use the layout zvol"
    if isinstance(layout, LvmThin) and layout != LvmThin():
        return "Proxmox VE leaves the chunk of a thin pool to LVM"
    if isinstance(layout, Zvol) and layout != Zvol():
        return "volblocksize is that of Proxmox VE's default here"
    if isinstance(layout, Qcow2) and (layout.cluster_size, layout.lazy_refcounts) != (Qcow2().cluster_size, False):
        return "Proxmox VE makes qcow2 files with clusters of 64 KiB and without lazy_refcounts"
    return None


@dataclass(frozen=True, slots=True)
class StoreLayer:
    """The modes whose volumes share one storage that PVE makes on a region: a `Layer`."""

    stores: Stores
    maker: Maker
    region: str
    beside: Need
    """Room beside the volumes; its shares are of them."""
    modes: tuple[tuple[str, Stored], ...]
    options: Mapping[str, str]

    @property
    def need(self) -> Need:
        each = [volumes_need(layout) for _, layout in self.modes]
        shares = sum(need.shares for need in each)
        return Need(self.beside.fixed + sum(need.fixed for need in each), shares * (1 + self.beside.shares))

    @contextmanager
    def built(self, log: CreationLog, region: Region, name: str, span: int) -> Iterator[Mapping[str, Sources]]:
        with ExitStack() as stack:
            store = stack.enter_context(self.stores.made(self.maker, f"{name}-{self.region}", region, self.options))
            if self.options.get("filesystem") == "ext4":
                # PVE leaves it to the kernel to write the inode tables in the background, while we would measure.
                remount = ["mount", "-o", "remount,noinit_itable", f"{MOUNTS}/{store.name}"]
                log.runner.run(remount, deadline=60)
            yield {
                mode: stack.enter_context(volumes(self.stores, store, 2 * number, layout, span))
                for number, (mode, layout) in enumerate(self.modes)
            }


def volumes_need(layout: Stored) -> Need:
    """The room of a mode's volumes: a qcow2 file has a RAW one beside it. A sparse file counts in full."""
    return Need(_QCOW2.fixed, 2 + _QCOW2.shares) if isinstance(layout, Qcow2) else Need(0, 1)


def stored_bytes(layout: Stored, span: int) -> int:
    """What a mode's volumes take up on a storage that is there, once every block of them is written."""
    need = volumes_need(layout)
    return Need(need.fixed, need.shares * (1 + _ZFS.shares) if isinstance(layout, Zvol) else need.shares).bytes(span)


@contextmanager
def volumes(stores: Stores, store: Store, number: int, layout: Stored, span: int) -> Iterator[Sources]:
    """What the guest of a mode gets of a storage, and what fio on the host works on; numbers `number` and the next."""
    with ExitStack() as stack:
        if isinstance(layout, Qcow2):
            stores.preallocate(store, layout.preallocation)
            image = stack.enter_context(stores.volume(store, number, span, "qcow2", file=True))
            stores.preallocate(store, layout.twin.preallocation)
            yield Sources(image, stack.enter_context(stores.volume(store, number + 1, span, "raw", file=True)))
            return
        if isinstance(layout, RawFile):
            stores.preallocate(store, layout.preallocation)
        file = isinstance(layout, RawFile)
        yield Sources.same(stack.enter_context(stores.volume(store, number, span, "raw", file=file)))


def store_layers(stores: Stores, modes: Sequence[Mode]) -> list[Layer]:
    """A storage per kind of layout that `modes` have, in the order of their regions."""
    on_disk = [(mode.name, mode.layout) for mode in modes if not isinstance(mode.layout, Device | Partition)]
    layers: list[Layer] = []

    def add(maker: Maker, region: str, beside: Need, kinds: Sequence[tuple[str, Layout]], **options: str) -> None:
        stored = tuple((name, layout) for name, layout in kinds if isinstance(layout, Stored))
        if stored:
            layers.append(StoreLayer(stores, maker, region, beside, stored, options))

    add("lvm", "lvm", _LVM, [each for each in on_disk if isinstance(each[1], Lvm)])
    add("lvmthin", "thin", _THIN, [each for each in on_disk if isinstance(each[1], LvmThin)])
    for filesystem in _FILESYSTEMS:
        files = [each for each in on_disk if isinstance(each[1], RawFile | Qcow2) and each[1].filesystem == filesystem]
        add("directory", filesystem, _FILES[filesystem], files, filesystem=filesystem)
    add("zfs", "zfs", _ZFS, [each for each in on_disk if isinstance(each[1], Zvol)], raidlevel="single")
    return layers
