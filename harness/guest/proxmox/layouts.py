"""All layouts of a run on one node: on a disk that the run may overwrite, or as volumes on existing storages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from harness.errors import SafetyError, Unsupported
from harness.guest.proxmox.client import Client
from harness.guest.proxmox.drive import not_offered
from harness.guest.proxmox.fitness import STORAGE_TYPES
from harness.guest.proxmox.layers import Stored, not_made, store_layers, stored_bytes, volumes
from harness.guest.proxmox.node import require_unclaimed, stable_path
from harness.guest.proxmox.room import Filled, StoresReserve, allocated, require_room
from harness.guest.proxmox.stores import PveVolume, Store, Stores
from harness.lab.inventory import AnyDisk, DiskById
from harness.lab.members import disks_below
from harness.lab.paths import TAG
from harness.lab.proxmox import ROOT, ApiSpec, StoredLayout
from harness.lab.storage import DiskByStorage
from harness.lab.storage_space import Allocation
from harness.lab.transport.base import Runner
from harness.layout.build import Layouts
from harness.layout.disks import partitioned_disks
from harness.layout.layer import Layer
from harness.layout.layers import BARE, Alone
from harness.layout.regions import Need
from harness.layout.shared import SharedStorage
from harness.layout.source import BlockSource, Sources
from harness.model.base import Device
from harness.model.layout import Lvm, LvmThin, Partition, RawFile, Zvol
from harness.model.mode import Mode
from harness.units import format_size

_BASELINE: Mapping[StoredLayout, Stored] = {
    "lvm": Lvm(),
    "lvm-thin": LvmThin(),
    "raw": RawFile(),
    "qcow2": RawFile(),
    "zvol": Zvol(),
}
"""The layout of the volume for the host's baseline, by the layout of the first storage."""


def missing(spec: ApiSpec, mode: Mode, disk: AnyDisk) -> str | None:
    """Why this mode is not possible on this disk with the lab's login, with the remedy; None if it is. Pure."""
    why = not_made(mode.layout) or (not_offered(mode.attach) if mode.attach else None)
    if why:
        return why
    if isinstance(disk, DiskByStorage):
        return _not_stored(mode, disk)
    if mode.attach is not None and isinstance(mode.layout, Device | Partition) and (why := spec.why_no_devices):
        return f"{why}: log in as {ROOT} without a token, or select modes on storages"
    return None


def _not_stored(mode: Mode, disk: DiskByStorage) -> str | None:
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
    partitions = [mode.name for mode in modes if isinstance(mode.layout, Partition)]
    alone = [Alone(name, f"part{number}") for number, name in enumerate(partitions, start=1)]
    layers: list[Layer] = [*alone, *store_layers(stores, modes)]
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
            built = stack.enter_context(layer.built(log, region, f"{TAG}-{log.run_id}", span))
            sources |= _by_stable_path(log.runner, built, disk) if isinstance(layer, Alone) else built
        yield _layouts(bare, sources, span, partitioned.device.name)


def _by_stable_path(runner: Runner, built: Mapping[str, Sources], disk: DiskById) -> dict[str, Sources]:
    """Partitions by paths that survive a reboot, because PVE stores the path in the VM's configuration."""
    return {
        name: Sources.same(replace(each.guest, path=stable_path(runner, each.guest.path, disk.id)))
        for name, each in built.items()
    }


@contextmanager
def on_storages(stores: Stores, disk: DiskByStorage, modes: Sequence[Mode], *, span: int) -> Iterator[Layouts]:
    """A volume per mode on the storage for its layout, and one more for the host's baseline.

    The baseline is on the first storage in the lab file. Raises Unsupported if a storage has the wrong type or too
    little space, SafetyError if the storages are not all on the same disks, HostError.
    """
    runner = stores.log.runner
    first_kind, first_storage = next(iter(disk.storages.items()))
    with ExitStack() as stack:
        file = first_kind in ("raw", "qcow2")
        bare = stack.enter_context(stores.volume(Store(first_storage), 0, span, "raw", file=file))
        below = disks_below(runner, bare.path)
        sources = {mode.name: Sources.same(bare) for mode in modes if isinstance(mode.layout, Device)}
        number = 1
        for mode in modes:
            if isinstance(mode.layout, Stored):
                storage = disk.storages[mode.layout.kind]
                sources[mode.name] = stack.enter_context(volumes(stores, Store(storage), number, mode.layout, span))
                number += 2
                if (other := disks_below(runner, sources[mode.name].twin.path)) != below:
                    raise SafetyError(
                        f"{runner.name}: storages {first_storage} and {storage} are on different disks, "
                        f"{', '.join(below)} and {', '.join(other)}, so their figures cannot be compared",
                        hint=f"name storages of one disk under disk.{disk.name}",
                    )
        entries = {str(each["storage"]): each for each in stores.client.get("storage")}
        own = [source for each in sources.values() for source in (each.guest, each.twin)]
        filled = {
            source.path: Filled(storage, allocated(entries[storage]))
            for source in (bare, *own)
            if isinstance(source, PveVolume)
            for storage in [source.volid.partition(":")[0]]
        }
        shared = SharedStorage(disk.identity, below, StoresReserve(stores.client, runner, filled))
        yield _layouts(bare, sources, span, below[0] if below else "", shared)


def require_storages(client: Client, runner: Runner, disk: DiskByStorage, modes: Sequence[Mode], *, span: int) -> None:
    """Require that the storages can hold the volumes of these modes. Call this before anything is created.

    Raises Unsupported if a storage has the wrong type or too little space would remain free, SafetyError if the free
    space is unknown.
    """
    known = {str(each["storage"]): each for each in client.get(f"{client.node}/storage")}
    for layout, storage in disk.storages.items():
        _require_storage(client, known.get(storage), storage, layout)
    first_kind, first_storage = next(iter(disk.storages.items()))
    layouts = [(first_storage, _BASELINE[first_kind])]
    layouts += [(disk.storages[mode.layout.kind], mode.layout) for mode in modes if isinstance(mode.layout, Stored)]
    # A write to a file on btrfs takes new blocks before it frees the old ones.
    copies = {name: 2 if entry["type"] == "btrfs" else 1 for name, entry in known.items()}
    wanted = [Allocation(storage, copies[storage] * stored_bytes(layout, span)) for storage, layout in layouts]
    require_room(client, runner, wanted)


def _layouts(
    bare: BlockSource, sources: dict[str, Sources], span: int, disk: str, shared: SharedStorage | None = None
) -> Layouts:
    return Layouts(
        device=bare,
        by_mode={name: each.guest for name, each in sources.items()},
        span=span,
        disk=disk,
        twins={name: each.twin for name, each in sources.items() if each.twin != each.guest},
        shared=shared,
    )


def _require_storage(client: Client, found: Any, storage: str, layout: str) -> None:
    where = f"host {client.host}: storage {storage}"
    if found is None:
        raise Unsupported(
            f"{where}: the node has no storage with this name, or {client.spec.who} may not see it",
            hint=f"pvesm status lists the storages; to see it, a login needs Datastore.Audit on /storage/{storage}",
        )
    if found["type"] not in STORAGE_TYPES[layout]:
        raise Unsupported(
            f"{where} is of type {found['type']}, whose volumes do not have the layout {layout}",
            hint=f"allowed: a storage of type {' or '.join(STORAGE_TYPES[layout])}",
        )
    if "images" not in str(found.get("content", "")).split(",") or not found.get("active"):
        raise Unsupported(
            f"{where} is not active, or does not accept disk images", hint=f"pvesm set {storage} --content images"
        )
