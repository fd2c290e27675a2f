"""Storages and volumes of ours: made through the API on a partition of ours, or volumes on storages that are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from harness.errors import HostError
from harness.guest.proxmox.client import Client, Expected, PveError
from harness.lab.paths import TAG
from harness.lab.transport.base import Runner
from harness.layout.source import BlockSource
from harness.units import format_duration

Maker = Literal["lvm", "lvmthin", "directory", "zfs"]
"""What PVE makes of a device under `nodes/NODE/disks/`."""

Image = Literal["raw", "qcow2"]

STORE_SECONDS = 300.0
VOLUME_SECONDS = 300.0
SLOWEST_BYTES_PER_SECOND = 20e6
"""At which a volume that is written in full is expected to grow at least: a worn-out disk's rate."""
_POLL_SECONDS = 0.5
_BEING_WRITTEN = 'shared "write" lock'
"""What qemu-img says of a qcow2 file that another one is writing."""
KIB = 1024
MOUNTS = "/mnt/pve"
"""Where PVE mounts the directories that it makes of a disk."""

_CREATES: Mapping[Maker, str] = {
    "lvm": "lvmcreate",
    "lvmthin": "lvmthincreate",
    "directory": "dircreate",
    "zfs": "zfscreate",
}
_REMOVES: Mapping[Maker, str] = {
    "lvm": "lvmremove",
    "lvmthin": "lvmthinremove",
    "directory": "dirremove",
    "zfs": "zfsremove",
}
"""Kinds of tasks; see PVE::API2::Disks."""

# $1: a volume's path. PVE makes volumes that are active, and lets go of them when their VM stops. The link of a zvol is
# udev's, which may take its time.
_ACTIVATE = r"""
export PATH="$PATH:/usr/sbin:/sbin"
[ -e "$1" ] || udevadm settle --timeout=20
[ -e "$1" ] || lvchange --activate y --ignoreactivationskip "$1"
"""


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
            cleanup.by(f"storage {name}", lambda: remove_store(self.client, name))
            self.client.task(
                "post",
                f"{self.client.node}/disks/{maker}",
                {"name": name, "add_storage": 1, **where, **options},
                # The last thing that the task does.
                seen=lambda: name in storage_ids(self.client),
                expected=Expected(_CREATES[maker], name),
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

        def listed() -> list[Mapping[str, Any]]:
            return [each for each in self.client.get(path, {"vmid": self.vmid}) if each["volid"] == volid]

        def written() -> int | None:
            """Bytes that it has so far; None where it is not there."""
            try:
                return next((int(each.get("size", 0)) for each in listed()), None)
            except PveError as error:
                if _BEING_WRITTEN not in error.said:
                    raise
                return 0

        def free() -> None:
            if storage in storage_ids(self.client) and listed():
                self.client.task(
                    "delete", f"{path}/{volid}", {"delay": 10}, seen=lambda: not listed(), deadline=VOLUME_SECONDS
                )

        with self.client.cleanup() as cleanup:
            if _is_ours(storage):
                cleanup.by(f"volume {volid}", free)
            settings = {"vmid": self.vmid, "filename": name, "format": image, "size": size // KIB}
            answer = self.client.write(
                "post", path, settings, seen=lambda: written() is not None, deadline=VOLUME_SECONDS
            )
            if answer is None:
                # PVE has no task for this: its proxy gives up after 30 s, while a file may still be written in full.
                self._await(lambda: (written() or 0) >= size, volid, VOLUME_SECONDS + size / SLOWEST_BYTES_PER_SECOND)
            where = str(self.client.get(f"{path}/{volid}")["path"])
            self.runner.run(["sh", "-c", _ACTIVATE, "sh", where], deadline=60)
            kind: Literal["file", "block"] = "file" if file else "block"
            yield PveVolume(where, kind, 0, size, image, volid, self.vmid)

    def _await(self, is_whole: Callable[[], bool], volid: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not is_whole():
            if time.monotonic() >= end:
                raise HostError(
                    f"host {self.client.host}: volume {volid} is still being written after {format_duration(seconds)}",
                    hint=f"see what {self.client.spec.node} is busy with, then: virt-overhead reap",
                )
            time.sleep(_POLL_SECONDS)

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


def remove_store(client: Client, name: str) -> None:
    """Remove what PVE made of a device under this name, which is wiped, and the storage; nothing where there is none.

    By what is there, not by what was asked for: of a thin pool that could not be made, its volume group is left.
    """
    for maker in [maker for maker, made in made_stores(client) if made == name]:
        group = {"volume-group": name} if maker == "lvmthin" else {}
        client.task(
            "delete",
            f"{client.node}/disks/{maker}/{name}",
            {"cleanup-config": 1, "cleanup-disks": 1, **group},
            seen=partial(_is_unmade, client, maker, name),
            expected=Expected(_REMOVES[maker], f"{name}-{name}" if maker == "lvmthin" else name),
            deadline=STORE_SECONDS,
        )
    if name in storage_ids(client):
        client.write("delete", f"storage/{name}", {}, seen=partial(_is_gone, client, name))


def _is_unmade(client: Client, maker: Maker, name: str) -> bool:
    return (maker, name) not in made_stores(client) and _is_gone(client, name)


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


def reap_stores(client: Client) -> list[str]:
    """Remove every storage of ours, with what is on the node of it, whichever run made it, and tell their names."""
    names = dict.fromkeys(name for _, name in made_stores(client))
    # Of storages whose device is gone, only the cluster's configuration is left.
    names |= dict.fromkeys(sorted(name for name in storage_ids(client) if _is_ours(name)))
    for name in names:
        remove_store(client, name)
    return list(names)


def _is_gone(client: Client, storage: str) -> bool:
    return storage not in storage_ids(client)
