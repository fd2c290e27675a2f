"""Storages and volumes of ours: made through the API on a partition of ours, or volumes on storages that are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from harness.guest.proxmox.client import Client, PveError
from harness.lab.paths import TAG
from harness.lab.transport.base import Runner
from harness.layout.source import BlockSource

Maker = Literal["lvm", "lvmthin", "directory", "zfs"]
"""What PVE makes of a device under `nodes/NODE/disks/`."""

Image = Literal["raw", "qcow2"]

STORE_SECONDS = 300.0
VOLUME_SECONDS = 300.0
KIB = 1024
MOUNTS = "/mnt/pve"
"""Where PVE mounts the directories that it makes of a disk."""

# $1: a volume's path. PVE makes volumes that are active, and lets go of them when their VM stops.
_ACTIVATE = 'export PATH="$PATH:/usr/sbin:/sbin"; [ -e "$1" ] || lvchange --activate y --ignoreactivationskip "$1"'


@dataclass(frozen=True, slots=True)
class PveVolume(BlockSource):
    """A volume of a storage: `path` on the node, `volid` for the API, and the VM that it belongs to."""

    volid: str = ""
    vmid: int = 0


@dataclass(frozen=True, slots=True)
class Stores:
    """Makes and removes storages on a node, and volumes that belong to the VM `vmid`."""

    client: Client
    runner: Runner
    vmid: int

    @contextmanager
    def made(self, maker: Maker, name: str, device: str, options: Mapping[str, str]) -> Iterator[None]:
        """The storage `name` on the block device, which PVE formats; removed at the end, its device wiped."""
        where = {"devices": device} if maker == "zfs" else {"device": device}
        with self.client.cleanup() as cleanup:
            cleanup.by(f"storage {name}", lambda: remove_store(self.client, maker, name))
            self.client.task(
                "post",
                f"{self.client.node}/disks/{maker}",
                {"name": name, "add_storage": 1, **where, **options},
                seen=lambda: name in storage_ids(self.client),
                deadline=STORE_SECONDS,
            )
            yield

    @contextmanager
    def volume(self, storage: str, number: int, size: int, image: Image, *, file: bool) -> Iterator[PveVolume]:
        """A volume of `size` bytes (whole KiB), the VM's number `number`.

        Removing the VM frees it. On a storage of ours, which does not outlast the VM, it is freed before. `file` says
        that the storage keeps files, whose names end with their format.
        """
        # PVE wants the VM's id in front; what follows it may not be a clone's own disk-0.
        name = f"vm-{self.vmid}-{TAG}-{number}" + (f".{image}" if file else "")
        volid = f"{storage}:{self.vmid}/{name}" if file else f"{storage}:{name}"
        path = f"{self.client.node}/storage/{storage}/content"

        def is_there() -> bool:
            return any(each["volid"] == volid for each in self.client.get(path, {"vmid": self.vmid}))

        def free() -> None:
            if storage in storage_ids(self.client) and is_there():
                self.client.task(
                    "delete", f"{path}/{volid}", {"delay": 10}, seen=lambda: not is_there(), deadline=VOLUME_SECONDS
                )

        with self.client.cleanup() as cleanup:
            if _is_ours(storage):
                cleanup.by(f"volume {volid}", free)
            self.client.write(
                "post",
                path,
                {"vmid": self.vmid, "filename": name, "format": image, "size": size // KIB},
                seen=is_there,
                deadline=VOLUME_SECONDS,
            )
            where = str(self.client.get(f"{path}/{volid}")["path"])
            self.runner.run(["sh", "-c", _ACTIVATE, "sh", where], deadline=60)
            kind: Literal["file", "block"] = "file" if file else "block"
            yield PveVolume(where, kind, 0, size, image, volid, self.vmid)

    def preallocate(self, storage: str, preallocation: str) -> None:
        """How the storage makes its next files: PVE has no such option of a single volume.

        A storage that is not ours is left as its owner has set it.
        """
        if not _is_ours(storage):
            return
        path = f"storage/{storage}"
        self.client.write(
            "put",
            path,
            {"preallocation": preallocation},
            seen=lambda: bool(self.client.get(path).get("preallocation") == preallocation),
        )


def _is_ours(storage: str) -> bool:
    return storage.startswith(f"{TAG}-")


def storage_ids(client: Client) -> set[str]:
    return {str(each["storage"]) for each in client.get("storage")}


def made_stores(client: Client) -> list[tuple[Maker, str]]:
    """What of ours PVE has made of devices of the node, whichever run made it."""
    thin = [str(each["vg"]) for each in _listed(client, "lvmthin")]
    groups = [str(each["name"]) for each in children(_listed(client, "lvm"))]
    mounts = [str(each["path"]).removeprefix(f"{MOUNTS}/") for each in _listed(client, "directory")]
    pools = [str(each["name"]) for each in _listed(client, "zfs")]
    found: list[tuple[Maker, str]] = [
        *(("lvmthin", name) for name in dict.fromkeys(thin)),
        *(("lvm", name) for name in groups if name not in thin),
        *(("directory", name) for name in mounts),
        *(("zfs", name) for name in pools),
    ]
    return [(maker, name) for maker, name in found if _is_ours(name)]


def remove_store(client: Client, maker: Maker, name: str) -> None:
    """Remove the storage, and what PVE made for it on its device, which is wiped; nothing where neither is there."""
    if (maker, name) not in made_stores(client) and name not in storage_ids(client):
        return
    group = {"volume-group": name} if maker == "lvmthin" else {}
    client.task(
        "delete",
        f"{client.node}/disks/{maker}/{name}",
        {"cleanup-config": 1, "cleanup-disks": 1, **group},
        seen=lambda: (maker, name) not in made_stores(client) and name not in storage_ids(client),
        deadline=STORE_SECONDS,
    )


def children(tree: Any) -> list[Mapping[str, Any]]:
    """What PVE lists as a tree: volume groups, and below each its devices."""
    found: list[Mapping[str, Any]] = tree.get("children", []) if isinstance(tree, Mapping) else []
    return found


def _listed(client: Client, maker: Maker) -> Any:
    """What PVE lists; nothing where this login may not see it, for then it cannot have made anything there either."""
    try:
        return client.get(f"{client.node}/disks/{maker}")
    except PveError as error:
        if error.lost:
            raise
        return []


def remove_orphans(client: Client) -> list[str]:
    """Remove what the cluster's configuration has of storages of ours that no device has, and tell their names."""
    names = sorted(name for name in storage_ids(client) if _is_ours(name))
    for name in names:
        client.write("delete", f"storage/{name}", {}, seen=partial(_is_gone, client, name))
    return names


def _is_gone(client: Client, storage: str) -> bool:
    return storage not in storage_ids(client)
