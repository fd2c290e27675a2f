"""All layouts of a run on one node: on a disk that the run may overwrite, or as volumes on existing storages.

A storage must have enough free space for a volume before it is created, and keeps a reserve while it is filled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from harness.errors import HostError, SafetyError, Unsupported
from harness.feature import FeatureStorage, find_brought
from harness.features.proxmox import ROOT, ApiSpec
from harness.features.proxmox.client import Client
from harness.features.proxmox.creation import PveVolume, Store, Stores
from harness.features.proxmox.disk_users import find_stable_path, require_unclaimed
from harness.features.proxmox.vm_config import (
    MOUNTS,
    Maker,
    find_node_storage,
    list_root_options,
    locate_storage,
    refuse_drive,
)
from harness.lab.created import CreationLog
from harness.lab.guard.room import filling_up, part_of, unallocated_bytes
from harness.lab.inventory import AnyDisk, DiskById, DiskByStorage, StoredLayout
from harness.lab.pin import TAG, disks_below
from harness.lab.storages import Allocation, StorageSpace, look_at, read_space, shortages
from harness.lab.transport.base import Runner
from harness.layout import BlockSource, Sources
from harness.layout.build import Layouts, SharedStorage
from harness.layout.disks import partitioned_disks
from harness.layout.layers import BARE, Alone, LayerBuilder
from harness.layout.regions import Need, Region
from harness.model.attach import Vfio
from harness.model.base import Device
from harness.model.layout import Filesystem, Layout, Lvm, LvmThin, OnFilesystem, Partition, Qcow2, RawFile, Rbd, Zvol
from harness.model.mode import Mode
from harness.units import format_size

Allocated = Literal["in full", "as a file", "when written"]
"""How a storage allocates a volume: when it is created, what its file has, or each time when something is written."""
MIB, GIB = 1024**2, 1024**3

# In addition to the volumes. PVE gives a thin pool 1 % of metadata, at least 1 GiB, twice: PVE::API2::Disks::LVMThin.
_LVM = Need(2 * 4 * MIB, 0)
_THIN = Need(2 * GIB + 160 * MIB, 0.03)
_ZFS = Need(256 * MIB, 0.15)
# mkfs with its defaults: a journal, and 5 % that are reserved for root, who can use them here.
_FILES: Mapping[Filesystem, Need] = {"ext4": Need(160 * MIB, 0.05), "xfs": Need(300 * MIB, 0.05)}
_QCOW2 = Need(8 * MIB, 0.01)

Stored = Lvm | LvmThin | RawFile | Qcow2 | Zvol | Rbd


def allocated(entry: Mapping[str, Any]) -> Allocated:
    """How the storage with this entry of storage.cfg allocates its volumes. Pure."""
    kind = str(entry.get("type", ""))
    if kind == "lvm" or (kind == "zfspool" and not int(entry.get("sparse", 0))):
        return "in full"
    # A write to btrfs takes new blocks.
    return "as a file" if kind in ("dir", "nfs", "cifs", "cephfs") else "when written"


@dataclass(frozen=True, slots=True)
class Filled:
    """A volume of the run on an existing storage."""

    storage: str
    allocated: Allocated


@dataclass(frozen=True, slots=True)
class StoresReserve:
    """Keeps the reserve of existing storages free while the volumes of a run are filled and measured: a `Reserve`.

    `volumes` has the volumes by their paths on the node.
    """

    client: Client
    runner: Runner
    volumes: Mapping[str, Filled]

    def require(self, size_bytes: int) -> None:
        for storage in dict.fromkeys(volume.storage for volume in self.volumes.values()):
            self._require(Allocation(storage, size_bytes))

    def require_for(self, path: str, size_bytes: int, part_bytes: int) -> None:
        volume = self.volumes[path]
        match volume.allocated:
            case "in full":
                missing = 0
            case "as a file":
                missing = unallocated_bytes(self.runner, path, size_bytes)
            case "when written":
                missing = size_bytes
        self._require(part_of(volume.storage, part_bytes, missing=missing, size_bytes=size_bytes))

    def _require(self, wanted: Allocation) -> None:
        if why := "; ".join(shortages(_read_places(self.client, self.runner, [wanted.storage]), [wanted])):
            raise filling_up(f"host {self.client.host}: nothing more is written to storage {wanted.storage}", why)


def require_room(client: Client, runner: Runner, wanted: Sequence[Allocation]) -> None:
    """Raises Unsupported if too little space would remain free on a storage, SafetyError if the space is unknown."""
    places = _read_places(client, runner, list(dict.fromkeys(allocation.storage for allocation in wanted)))
    if reasons := list(shortages(places, wanted)):
        raise Unsupported(
            f"host {client.host}: " + "; ".join(reasons),
            hint="free space there, measure a smaller span (a lighter profile), select fewer modes with -k, or name "
            "another storage",
        )


def _read_places(client: Client, runner: Runner, names: Sequence[str]) -> list[StorageSpace]:
    """The places from which these storages take space. Raises SafetyError if they are unknown."""
    entries = client.storages()
    words = [word for name in names for word in _describe_place(client, name, entries.get(name, {}))]
    try:
        places = read_space(runner, words)
    except HostError as error:
        raise SafetyError(
            f"host {client.host}: the free space on {', '.join(names)} is unknown: {error.message}",
            hint="see pvesm status, vgs, lvs and df on the node",
        ) from error
    if unknown := [name for name in names if name not in {place.storage for place in places}]:
        raise SafetyError(f"host {client.host}: the node does not report the free space on {', '.join(unknown)}")
    return places


def _describe_place(client: Client, name: str, entry: Mapping[str, Any]) -> tuple[str, str, str]:
    kind = str(entry.get("type", ""))
    at = {
        "lvm": str(entry.get("vgname", "")),
        "lvmthin": f"{entry.get('vgname', '')}/{entry.get('thinpool', '')}",
        "zfspool": str(entry.get("pool", "")),
        **dict([locate_storage(entry) or ("", "")]),
    }.get(kind, str(entry.get("path", "")))
    if not at.strip("/"):
        raise SafetyError(f"host {client.host}: the place of storage {name} of type {kind or '(none)'} is unknown")
    return name, kind, at


def refuse_layout(layout: Layout) -> str | None:
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
        "Proxmox VE makes directories on ext4 or xfs only, and sets no attributes of files: use a host with libvirt": (
            isinstance(layout, OnFilesystem) and layout.filesystem == "btrfs"
        ),
        "Proxmox VE has no option for a data file of qcow2": isinstance(layout, Qcow2) and layout.data_file,
        f"Proxmox VE has no storage for the layout {layout.kind}": not isinstance(layout, Device | Partition | Stored),
    }
    return next((why for why, applies in refused.items() if applies), None)


@dataclass(frozen=True, slots=True)
class StoreLayer:
    """The modes whose volumes share one storage that PVE creates on a region: a `LayerBuilder`."""

    stores: Stores
    maker: Maker
    region: str
    overhead: Need
    """The space in addition to the volumes. Its shares are relative to the size of the volumes."""
    modes: tuple[tuple[str, Stored], ...]
    options: Mapping[str, str]

    @property
    def need(self) -> Need:
        needs = [compute_volumes_need(layout) for _, layout in self.modes]
        shares = sum(need.shares for need in needs)
        return Need(self.overhead.fixed + sum(need.fixed for need in needs), shares * (1 + self.overhead.shares))

    @contextmanager
    def build(self, log: CreationLog, region: Region, name: str, span: int) -> Iterator[Mapping[str, Sources]]:
        with ExitStack() as stack:
            store = stack.enter_context(self.stores.made(self.maker, f"{name}-{self.region}", region, self.options))
            if self.options.get("filesystem") == "ext4":
                # PVE lets the kernel write the inode tables in the background, which would disturb the measurement.
                remount = ["mount", "-o", "remount,noinit_itable", f"{MOUNTS}/{store.name}"]
                log.runner.run(remount, deadline=60)
            yield {
                mode: stack.enter_context(create_volumes(self.stores, store, 2 * number, layout, span))
                for number, (mode, layout) in enumerate(self.modes)
            }


def compute_volumes_need(layout: Stored) -> Need:
    """The space for a mode's volumes: a qcow2 file has a RAW twin. A sparse file counts with its full size."""
    return Need(_QCOW2.fixed, 2 + _QCOW2.shares) if isinstance(layout, Qcow2) else Need(0, 1)


def compute_stored_bytes(layout: Stored, span: int) -> int:
    """The size of a mode's volumes on an existing storage, when every block is written."""
    need = compute_volumes_need(layout)
    return Need(need.fixed, need.shares * (1 + _ZFS.shares) if isinstance(layout, Zvol) else need.shares).bytes(span)


@contextmanager
def create_volumes(stores: Stores, store: Store, number: int, layout: Stored, span: int) -> Iterator[Sources]:
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
        properties = layout.properties if isinstance(layout, Zvol) else {}
        volume = stores.volume(store, number, span, "raw", file=file, properties=properties)
        yield Sources.same(stack.enter_context(volume))


def store_layers(stores: Stores, modes: Sequence[Mode]) -> list[LayerBuilder]:
    """A storage for each kind of layout in `modes`, in the order of their regions."""
    on_disk = [(mode.name, mode.layout) for mode in modes if not isinstance(mode.layout, Device | Partition)]
    layers: list[LayerBuilder] = []

    def add(maker: Maker, region: str, overhead: Need, kinds: Sequence[tuple[str, Layout]], **options: str) -> None:
        stored = tuple((name, layout) for name, layout in kinds if isinstance(layout, Stored))
        if stored:
            layers.append(StoreLayer(stores, maker, region, overhead, stored, options))

    add("lvm", "lvm", _LVM, [item for item in on_disk if isinstance(item[1], Lvm)])
    add("lvmthin", "thin", _THIN, [item for item in on_disk if isinstance(item[1], LvmThin)])
    for filesystem in _FILES:
        files = [item for item in on_disk if isinstance(item[1], RawFile | Qcow2) and item[1].filesystem == filesystem]
        add("directory", filesystem, _FILES[filesystem], files, filesystem=filesystem)
    add("zfs", "zfs", _ZFS, [item for item in on_disk if isinstance(item[1], Zvol)], raidlevel="single")
    return layers


FILE_STORAGES = ("dir", "nfs", "cifs", "cephfs", "btrfs")
STORAGE_TYPES: Mapping[str, tuple[str, ...]] = {
    "lvm": ("lvm",),
    "lvm-thin": ("lvmthin",),
    "raw": FILE_STORAGES,
    "qcow2": FILE_STORAGES,
    "zvol": ("zfspool",),
    "rbd": ("rbd",),
}
"""The types of storage whose volumes have this layout."""

_LAYOUTS: tuple[StoredLayout, ...] = ("lvm", "lvm-thin", "raw", "qcow2", "zvol", "rbd")


def list_offered(kind: str) -> tuple[StoredLayout, ...]:
    """The layouts of volumes on a storage of this type; empty if the type is not supported. Pure."""
    return tuple(layout for layout in _LAYOUTS if kind in STORAGE_TYPES[layout])


def refuse_settings(client: Client, disk: DiskByStorage, mode: Mode) -> str | None:
    """Why volumes on this storage do not have what the layout of a mode requests, with the remedy; None if they do.

    PVE sets it for a storage and not for a volume, and a run does not change the settings of a storage in use.
    """
    if isinstance(mode.layout, Device):
        # The baseline is on the first storage.
        storage = next(iter(disk.storages.values()), None)
    else:
        storage = next((name for layout, name in disk.storages.items() if layout == mode.layout.kind), None)
    entry = client.storages().get(storage, {}) if storage is not None else {}
    known = find_node_storage(str(entry.get("type", "")))
    return known.refuse(entry, mode) if known is not None else None


def add_layouts(client: Client, disk: DiskByStorage) -> DiskByStorage:
    """The same storage, with the layouts that its volumes can have.

    Raises Unsupported if the node has no storage with this name, or if its type is not supported.
    """
    if disk.storages:
        return disk
    known = {name: str(entry["type"]) for name, entry in client.storages(of_node=True).items()}
    where = f"host {client.host}: {disk.identity}"
    if disk.at not in known:
        raise Unsupported(f"{where}: the node has no storage with this name", hint=f"it has: {', '.join(known)}")
    layouts = list_offered(known[disk.at])
    if not layouts:
        types = dict.fromkeys(type_ for types in STORAGE_TYPES.values() for type_ in types)
        why = f"{where} is of type {known[disk.at]}"
        raise Unsupported(why, hint=f"allowed: a storage of type {', '.join(types)}")
    return replace(disk, storages=dict.fromkeys(layouts, disk.at))


_BASELINE: Mapping[StoredLayout, Stored] = {
    "lvm": Lvm(),
    "lvm-thin": LvmThin(),
    "raw": RawFile(),
    "qcow2": RawFile(),
    "zvol": Zvol(),
    "rbd": Rbd(),
}
"""The layout of the volume for the host's baseline, by the layout of the first storage."""


def refuse_mode(spec: ApiSpec, mode: Mode, disk: AnyDisk) -> str | None:
    """Why this mode is not possible on this disk with the lab's login, with the remedy; None if it is. Pure."""
    why = refuse_layout(mode.layout) or (refuse_drive(mode.attach) if mode.attach else None)
    if why:
        return why
    if (options := list_root_options(mode.guest, mode.attach)) and not spec.may_pass_devices:
        return (
            f"{', '.join(options)}: Proxmox VE accepts this only from {ROOT} with a password, not from {spec.who}: "
            f"log in as {ROOT} without a token, or leave it out"
        )
    if isinstance(disk, DiskByStorage):
        return _refuse_stored(mode, disk)
    by_path = mode.attach is not None and not isinstance(mode.attach, Vfio)
    if by_path and isinstance(mode.layout, Device | Partition) and (why := spec.why_no_devices):
        return f"{why}: log in as {ROOT} without a token, or select modes on storages"
    return None


def _refuse_stored(mode: Mode, disk: DiskByStorage) -> str | None:
    if isinstance(mode.layout, Device):
        # The host's baseline uses a volume on the first storage instead of a device.
        return None if mode.attach is None else f"{disk.identity} is not a device; allowed: {', '.join(disk.storages)}"
    if mode.layout.kind not in disk.storages and disk.at:
        return f"its layout is {mode.layout.kind}; {disk.identity} offers: {', '.join(disk.storages)}"
    if mode.layout.kind not in disk.storages:
        return f"no storage for {mode.layout.kind}: add one to storages of disk {disk.name} in the lab file"
    return None


@contextmanager
def on_disk(stores: Stores, disk: DiskById, modes: Sequence[Mode], *, span: int) -> Iterator[Layouts]:
    """The disk divided into regions, with a storage of PVE for each kind of layout. It is blank again at the end.

    Raises SafetyError if a storage or guest of the node uses the disk, Unsupported, HostError.
    """
    log = stores.log
    alone = Alone.group([(mode.name, mode.layout) for mode in modes])
    layers: list[LayerBuilder] = [*alone, *store_layers(stores, modes)]
    needs = {BARE: Need(0, 1)} | {layer.region: layer.need for layer in layers}
    with ExitStack() as stack:
        require_unclaimed(stores.client, log.runner, disk)
        try:
            (partitioned, *_), span = stack.enter_context(partitioned_disks(log, [disk], [needs], span=span))
        except Unsupported as error:
            overhead = ", ".join(f"{name} {format_size(need.fixed)}" for name, need in needs.items() if need.fixed)
            raise Unsupported(f"{error.message}; in addition, Proxmox VE needs: {overhead}", hint=error.hint) from None
        bare = BlockSource(disk.id, "block", partitioned.regions[BARE].offset, span, grant=partitioned.device)
        sources = {mode.name: Sources.same(bare) for mode in modes if isinstance(mode.layout, Device)}
        for layer in layers:
            region = partitioned.regions[layer.region]
            built = stack.enter_context(layer.build(log, region, f"{TAG}-{log.run_id}", span))
            sources |= _name_stable_paths(log.runner, built, disk) if isinstance(layer, Alone) else built
        yield _make_layouts(bare, sources, span, partitioned.device.name)


def _name_stable_paths(runner: Runner, built: Mapping[str, Sources], disk: DiskById) -> dict[str, Sources]:
    """Partitions by paths that survive a reboot, because PVE stores the path in the VM's configuration."""
    return {
        name: Sources.same(replace(partition.guest, path=find_stable_path(runner, partition.guest.path, disk.id)))
        for name, partition in built.items()
    }


@contextmanager
def build_on_storages(stores: Stores, disk: DiskByStorage, modes: Sequence[Mode], *, span: int) -> Iterator[Layouts]:
    """A volume per mode on the storage for its layout, and one more for the host's baseline.

    The baseline is on the first storage in the lab file. Raises Unsupported if a storage has the wrong type or too
    little space, SafetyError if the storages are not all on the same disks, HostError.
    """
    runner = stores.log.runner
    first_kind, first_storage = next(iter(disk.storages.items()))
    with ExitStack() as stack:
        file = first_kind in ("raw", "qcow2")
        bare = stack.enter_context(stores.volume(Store(first_storage), 0, span, "raw", file=file))
        below, known = _look_below(stores, first_storage, bare.path)
        sources = {mode.name: Sources.same(bare) for mode in modes if isinstance(mode.layout, Device)}
        number = 1
        for mode in modes:
            if isinstance(mode.layout, Stored):
                storage = disk.storages[mode.layout.kind]
                sources[mode.name] = stack.enter_context(
                    create_volumes(stores, Store(storage), number, mode.layout, span)
                )
                number += 2
                if (other := _look_below(stores, storage, sources[mode.name].twin.path)[0]) != below:
                    raise SafetyError(
                        f"{runner.name}: storages {first_storage} and {storage} are on different disks, "
                        f"{', '.join(below)} and {', '.join(other)}, so their figures cannot be compared",
                        hint=f"name storages of one disk under disk.{disk.name}",
                    )
        entries = stores.client.storages()
        every = [source for pair in sources.values() for source in (pair.guest, pair.twin)]
        filled = {
            source.path: Filled(storage, allocated(entries[storage]))
            for source in (bare, *every)
            if isinstance(source, PveVolume)
            for storage in [source.volid.partition(":")[0]]
        }
        facts = {
            f"{key} of {storage}": str(entries[storage][key])
            for storage in dict.fromkeys(volume.storage for volume in filled.values())
            for key in ("blocksize", "sparse", "krbd")
            if key in entries[storage]
        }
        kinds = ((mode, find_brought(FeatureStorage, key=mode.layout.kind)) for mode in modes)
        notes = {mode.name: note for mode, kind in kinds if kind is not None and (note := kind.describe(mode))}
        reserve = StoresReserve(stores.client, runner, filled)
        shared = SharedStorage(disk.identity, below, reserve, {**facts, **known}, notes)
        yield _make_layouts(bare, sources, span, below[0] if below else "", shared)


def _look_below(stores: Stores, storage: str, path: str) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The kernel's names of the disks below a volume at this path, and what else is known of its storage."""
    if not (place := locate_storage(stores.client.storages()[storage])):
        return disks_below(stores.log.runner, path), {}
    found = look_at(stores.log.runner, *place)
    return found.disks or (), dict(found.facts)


def require_storages(client: Client, runner: Runner, disk: DiskByStorage, modes: Sequence[Mode], *, span: int) -> None:
    """Require that the storages can hold the volumes of these modes. Call this before anything is created.

    Raises Unsupported if a storage has the wrong type or too little space would remain free, SafetyError if the free
    space is unknown.
    """
    known = client.storages(of_node=True)
    for layout, storage in disk.storages.items():
        _require_storage(client, known.get(storage), storage, layout)
    first_kind, first_storage = next(iter(disk.storages.items()))
    layouts = [(first_storage, _BASELINE[first_kind])]
    layouts += [(disk.storages[mode.layout.kind], mode.layout) for mode in modes if isinstance(mode.layout, Stored)]
    # A write to a file on btrfs takes new blocks before it frees the old ones.
    copies = {name: 2 if entry["type"] == "btrfs" else 1 for name, entry in known.items()}
    wanted = [Allocation(storage, copies[storage] * compute_stored_bytes(layout, span)) for storage, layout in layouts]
    require_room(client, runner, wanted)


def _make_layouts(
    bare: BlockSource, sources: dict[str, Sources], span: int, disk: str, shared: SharedStorage | None = None
) -> Layouts:
    return Layouts(
        device=bare,
        by_mode={name: pair.guest for name, pair in sources.items()},
        span=span,
        disk=disk,
        twins={name: pair.twin for name, pair in sources.items() if pair.twin != pair.guest},
        shared=shared,
    )


def _require_storage(client: Client, entry: Any, storage: str, layout: str) -> None:
    where = f"host {client.host}: storage {storage}"
    if entry is None:
        raise Unsupported(
            f"{where}: the node has no storage with this name, or {client.spec.who} may not see it",
            hint=f"pvesm status lists the storages; to see it, a login needs Datastore.Audit on /storage/{storage}",
        )
    if entry["type"] not in STORAGE_TYPES[layout]:
        raise Unsupported(
            f"{where} is of type {entry['type']}, whose volumes do not have the layout {layout}",
            hint=f"allowed: a storage of type {' or '.join(STORAGE_TYPES[layout])}",
        )
    if "images" not in str(entry.get("content", "")).split(",") or not entry.get("active"):
        raise Unsupported(
            f"{where} is not active, or does not accept disk images", hint=f"pvesm set {storage} --content images"
        )
