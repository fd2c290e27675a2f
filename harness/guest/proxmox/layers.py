"""Layouts that Proxmox VE creates: a storage on a region of a disk, with a volume per mode."""

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
from harness.model.base import Device
from harness.model.layout import Filesystem, Layout, Lvm, LvmThin, Partition, Qcow2, RawFile, Zvol
from harness.model.mode import Mode

MIB, GIB = 1024**2, 1024**3
_FILESYSTEMS: tuple[Filesystem, ...] = ("ext4", "xfs")

# In addition to the volumes. PVE gives a thin pool 1 % of metadata, at least 1 GiB, twice: PVE::API2::Disks::LVMThin.
_LVM = Need(2 * 4 * MIB, 0)
_THIN = Need(2 * GIB + 160 * MIB, 0.03)
_ZFS = Need(256 * MIB, 0.15)
# mkfs with its defaults: a journal, and 5 % that are reserved for root, who can use them here.
_FILES: Mapping[Filesystem, Need] = {"ext4": Need(160 * MIB, 0.05), "xfs": Need(300 * MIB, 0.05)}
_QCOW2 = Need(8 * MIB, 0.01)

Stored = Lvm | LvmThin | RawFile | Qcow2 | Zvol


def not_made(layout: Layout) -> str | None:
    """Why PVE cannot create a layout; None if it can."""
    chunk = isinstance(layout, LvmThin) and layout.chunk != LvmThin().chunk
    clusters = isinstance(layout, Qcow2) and layout.cluster_size != Qcow2().cluster_size
    refcounts = isinstance(layout, Qcow2) and layout.lazy_refcounts
    chain = isinstance(layout, Qcow2) and layout.snapshots > 0
    refused = {
        "Proxmox VE has no option for LUKS below its storages: use a host with libvirt": layout.encrypted,
        "Proxmox VE does not support md arrays": not isinstance(layout.base, Device),
        "Proxmox VE stores volumes of VMs on ZFS as zvols, not as files: use the layout zvol": layout.kind == "zfs",
        "Proxmox VE has no option for the chunk of a thin pool: LVM chooses it": chunk,
        "Proxmox VE creates qcow2 files with clusters of 64 KiB and without lazy_refcounts": clusters or refcounts,
        "virt-overhead makes chains of snapshots only on a host with libvirt": chain,
        "Proxmox VE has no option for a data file of qcow2": isinstance(layout, Qcow2) and layout.data_file,
        f"Proxmox VE has no storage for the layout {layout.kind}": not isinstance(layout, Device | Partition | Stored),
    }
    return next((why for why, applies in refused.items() if applies), None)


@dataclass(frozen=True, slots=True)
class StoreLayer:
    """The modes whose volumes share one storage that PVE creates on a region: a `Layer`."""

    stores: Stores
    maker: Maker
    region: str
    overhead: Need
    """The space in addition to the volumes. Its shares are relative to the size of the volumes."""
    modes: tuple[tuple[str, Stored], ...]
    options: Mapping[str, str]

    @property
    def need(self) -> Need:
        each = [volumes_need(layout) for _, layout in self.modes]
        shares = sum(need.shares for need in each)
        return Need(self.overhead.fixed + sum(need.fixed for need in each), shares * (1 + self.overhead.shares))

    @contextmanager
    def built(self, log: CreationLog, region: Region, name: str, span: int) -> Iterator[Mapping[str, Sources]]:
        with ExitStack() as stack:
            store = stack.enter_context(self.stores.made(self.maker, f"{name}-{self.region}", region, self.options))
            if self.options.get("filesystem") == "ext4":
                # PVE lets the kernel write the inode tables in the background, which would disturb the measurement.
                remount = ["mount", "-o", "remount,noinit_itable", f"{MOUNTS}/{store.name}"]
                log.runner.run(remount, deadline=60)
            yield {
                mode: stack.enter_context(volumes(self.stores, store, 2 * number, layout, span))
                for number, (mode, layout) in enumerate(self.modes)
            }


def volumes_need(layout: Stored) -> Need:
    """The space for a mode's volumes: a qcow2 file has a RAW twin. A sparse file counts with its full size."""
    return Need(_QCOW2.fixed, 2 + _QCOW2.shares) if isinstance(layout, Qcow2) else Need(0, 1)


def stored_bytes(layout: Stored, span: int) -> int:
    """The size of a mode's volumes on an existing storage, when every block is written."""
    need = volumes_need(layout)
    return Need(need.fixed, need.shares * (1 + _ZFS.shares) if isinstance(layout, Zvol) else need.shares).bytes(span)


@contextmanager
def volumes(stores: Stores, store: Store, number: int, layout: Stored, span: int) -> Iterator[Sources]:
    """The volume for the guest of a mode, and its twin for fio on the host. Uses `number` and the next number."""
    with ExitStack() as stack:
        if isinstance(layout, Qcow2):
            stores.preallocate(store, layout.preallocation)
            image = stack.enter_context(stores.volume(store, number, span, "qcow2", file=True))
            stores.preallocate(store, layout.twin.preallocation)
            yield Sources(image, stack.enter_context(stores.volume(store, number + 1, span, "raw", file=True)))
            return
        if isinstance(layout, RawFile):
            stores.preallocate(store, layout.preallocation)
        if isinstance(layout, Zvol):
            stores.block_size(store, layout.volblocksize)
        file = isinstance(layout, RawFile)
        yield Sources.same(stack.enter_context(stores.volume(store, number, span, "raw", file=file)))


def store_layers(stores: Stores, modes: Sequence[Mode]) -> list[Layer]:
    """A storage for each kind of layout in `modes`, in the order of their regions."""
    on_disk = [(mode.name, mode.layout) for mode in modes if not isinstance(mode.layout, Device | Partition)]
    layers: list[Layer] = []

    def add(maker: Maker, region: str, overhead: Need, kinds: Sequence[tuple[str, Layout]], **options: str) -> None:
        stored = tuple((name, layout) for name, layout in kinds if isinstance(layout, Stored))
        if stored:
            layers.append(StoreLayer(stores, maker, region, overhead, stored, options))

    add("lvm", "lvm", _LVM, [each for each in on_disk if isinstance(each[1], Lvm)])
    add("lvmthin", "thin", _THIN, [each for each in on_disk if isinstance(each[1], LvmThin)])
    for filesystem in _FILESYSTEMS:
        files = [each for each in on_disk if isinstance(each[1], RawFile | Qcow2) and each[1].filesystem == filesystem]
        add("directory", filesystem, _FILES[filesystem], files, filesystem=filesystem)
    add("zfs", "zfs", _ZFS, [each for each in on_disk if isinstance(each[1], Zvol)], raidlevel="single")
    return layers
