"""Storages and volumes of ours: made through the API on a partition of ours, or volumes on storages that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from harness.errors import HostError, SafetyError
from harness.guest.proxmox.client import Client, Expected, PveError
from harness.guest.proxmox.removal import identity_of, remove_volume
from harness.guest.proxmox.store_removal import STORE_SECONDS, remove_store, storage_ids
from harness.guest.proxmox.things import CreatedStore, CreatedVm, CreatedVolume, Maker, volumes_of
from harness.lab.created import CreationLog, Removal
from harness.lab.guard.writable import created
from harness.lab.paths import TAG
from harness.lab.transport.base import Runner
from harness.layout.regions import Region
from harness.layout.source import BlockSource
from harness.units import format_duration
from harness.waiting import wait_until

Image = Literal["raw", "qcow2"]

VOLUME_SECONDS = 300.0
SLOWEST_BYTES_PER_SECOND = 20e6
"""At which a volume that is written in full is expected to grow at least: a worn-out disk's rate."""
_POLL_SECONDS = 0.5
_BEING_WRITTEN = 'shared "write" lock'
"""What qemu-img says of a qcow2 file that another one is writing."""
KIB = 1024

_CREATES: Mapping[Maker, str] = {
    "lvm": "lvmcreate",
    "lvmthin": "lvmthincreate",
    "directory": "dircreate",
    "zfs": "zfscreate",
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
class Store:
    """A storage to make volumes on. `disks` are the serial numbers of the disks under test that it is on.

    `made` says that it was made for the run; a storage that was there before is left as its owner has set it.
    """

    name: str
    disks: tuple[str, ...] = ()
    made: bool = False


@dataclass(frozen=True, slots=True)
class Stores:
    """Makes storages on a node, and volumes that belong to the VM `vm`. All of it is in the log before it exists."""

    client: Client
    log: CreationLog
    vm: CreatedVm | None

    @contextmanager
    def made(self, maker: Maker, name: str, region: Region, options: Mapping[str, str]) -> Iterator[Store]:
        """The storage `name` on the region, which PVE formats; removed at the end, its region wiped."""
        client, log, device = self.client, self.log, region.device
        node, disks = client.spec.node, device.disks
        store = CreatedStore(node=node, name=name, maker=maker, partuuid=region.partuuid, disks=disks)
        with log.making(store, lambda: remove_store(client, log.runner, store)):
            # PVE is given a path; that it leads to our region is checked at the last moment.
            device.run(["true"], deadline=30)
            where = {"devices": device.path} if maker == "zfs" else {"device": device.path}
            client.task(
                "post",
                f"{client.node}/disks/{maker}",
                {"name": name, "add_storage": 1, **where, **options},
                # The last thing that the task does.
                seen=lambda: name in storage_ids(client),
                expected=Expected(_CREATES[maker], name),
                deadline=STORE_SECONDS,
            )
            yield Store(name, disks, made=True)

    @contextmanager
    def volume(self, store: Store, number: int, size: int, image: Image, *, file: bool) -> Iterator[PveVolume]:
        """A volume of `size` bytes (whole KiB), the VM's number `number`; removed at the end.

        `file` says that the storage keeps files, whose names end with their format. Raises SafetyError where there is
        a volume of that name already.
        """
        client, vm = self.client, self._vm
        # PVE wants the VM's id in front; what follows it may not be a clone's own disk-0.
        name = f"vm-{vm.vmid}-{TAG}-{number}" + (f".{image}" if file else "")
        volid = f"{store.name}:{vm.vmid}/{name}" if file else f"{store.name}:{name}"
        path = f"{client.node}/storage/{store.name}/content"

        def written() -> int | None:
            """Bytes that it has so far; None where it is not there."""
            try:
                return next((int(each.get("size", 0)) for each in self._listed(store) if each["volid"] == volid), None)
            except PveError as error:
                if _BEING_WRITTEN not in error.said:
                    raise
                return 0

        if written() is not None:
            raise SafetyError(
                f"host {client.host}: there is a volume {volid} already, which this run did not create",
                hint="see whose it is (pvesm list on the node), and remove it or choose other vmids in the lab file",
            )
        planned = self._planned(volid, store)
        known = [planned]
        runner = self.log.runner
        with self.log.making(planned, lambda: _removed(client, runner, known)) as entry:
            settings = {"vmid": vm.vmid, "filename": name, "format": image, "size": size // KIB}
            try:
                answer = client.write(
                    "post", path, settings, seen=lambda: written() is not None, deadline=VOLUME_SECONDS
                )
            except PveError as error:
                if "already exists" in error.said:
                    known.clear()
                raise
            if answer is None:
                # PVE has no task for this: its proxy gives up after 30 s, while a file may still be written in full.
                self._await(lambda: (written() or 0) >= size, volid, VOLUME_SECONDS + size / SLOWEST_BYTES_PER_SECOND)
            where = str(client.get(f"{path}/{volid}")["path"])
            runner.run(["sh", "-c", _ACTIVATE, "sh", where], deadline=60)
            known.append(planned.model_copy(update={"identity": identity_of(runner, where)}))
            self.log.amend(entry, known[-1])
            (grant,) = created(runner, entry, [where])
            kind: Literal["file", "block"] = "file" if file else "block"
            yield PveVolume(where, kind, 0, size, image, grant, volid, vm.vmid)

    @contextmanager
    def of_clone(self, config: Mapping[str, Any]) -> Iterator[None]:
        """The volumes that PVE made for a clone with this configuration; removed at the end."""
        client, runner = self.client, self.log.runner
        with ExitStack() as stack:
            for volid in volumes_of(config, self._vm.vmid):
                store = Store(volid.partition(":")[0])
                path = client.get(f"{client.node}/storage/{store.name}/content/{volid}")["path"]
                planned = self._planned(volid, store)
                volume = planned.model_copy(update={"identity": identity_of(runner, str(path))})
                stack.enter_context(self.log.making(volume, partial(remove_volume, client, runner, volume)))
            yield

    @property
    def _vm(self) -> CreatedVm:
        if self.vm is None:
            raise ValueError("these stores make no volumes: no VM was made to hold them")
        return self.vm

    def _planned(self, volid: str, store: Store) -> CreatedVolume:
        vm = self._vm
        return CreatedVolume(
            node=vm.node, volid=volid, vmid=vm.vmid, token=vm.token, in_store=store.made, disks=store.disks
        )

    def _listed(self, store: Store) -> list[Mapping[str, Any]]:
        path = f"{self.client.node}/storage/{store.name}/content"
        found: list[Mapping[str, Any]] = self.client.get(path, {"vmid": self._vm.vmid})
        return found

    def _await(self, is_whole: Callable[[], bool], volid: str, seconds: float) -> None:
        if not wait_until(is_whole, deadline=seconds, every=_POLL_SECONDS):
            raise HostError(
                f"host {self.client.host}: volume {volid} is still being written after {format_duration(seconds)}",
                hint=f"see what {self.client.spec.node} is busy with, then: virt-overhead reap",
            )

    def preallocate(self, store: Store, preallocation: str) -> None:
        """How the storage makes its next files: PVE has no such option of a single volume.

        A storage that was there before is left as its owner has set it.
        """
        if not store.made:
            return
        path = f"storage/{store.name}"
        self.client.write(
            "put",
            path,
            {"preallocation": preallocation},
            seen=lambda: bool(self.client.get(path).get("preallocation") == preallocation),
        )


def _removed(client: Client, runner: Runner, known: Sequence[CreatedVolume]) -> Removal:
    """Of a volume whose name somebody else took at the last moment, nothing is known, and nothing is removed."""
    return remove_volume(client, runner, known[-1]) if known else Removal("absent")
