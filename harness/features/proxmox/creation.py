"""Creates VMs, storages and volumes on a node, with ids that nothing else has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from harness.errors import HostError, LabUnavailable, SafetyError
from harness.feature import FeatureStorage, find_brought
from harness.features.proxmox import GuestRules
from harness.features.proxmox.client import Client, Expected, PveError
from harness.features.proxmox.machine import VirtualMachine, has_vm, require_all
from harness.features.proxmox.removal import (
    STORE_SECONDS,
    read_identity,
    remove_store,
    remove_vm,
    remove_volume,
    require_no_mount_point,
)
from harness.features.proxmox.vm_config import (
    CreatedStore,
    CreatedVm,
    CreatedVolume,
    Maker,
    build_marks,
    free_ids,
    list_owners,
    list_volumes,
    locate_storage,
    read_uuid,
)
from harness.files import read_script
from harness.lab.created import CreationLog, Entry, Removal
from harness.lab.guard.writable import created
from harness.lab.pin import TAG
from harness.lab.transport.base import HeldCommand, HoldingRunner, Runner
from harness.layout import BlockSource, NetworkDisk
from harness.layout.regions import Region
from harness.model.layout import Zvol
from harness.signals import cleaning_up, wait_until
from harness.units import format_duration
from harness.untrusted import reading

_HOLDS_VOLUMES = frozenset({"images", "rootdir"})


@reading("Proxmox VE's answer about its storages", SafetyError)
def list_used_ids(client: Client) -> set[int]:
    """Ids of VMs and containers of the cluster, and of the owners of volumes on every active storage of the node.

    A volume remains if its storage was not available when its VM was removed. Raises SafetyError if the login may not
    see all volumes of a storage.
    """
    taken = {int(vm["vmid"]) for vm in client.get("cluster/resources", {"type": "vm"})}
    for storage in client.get(f"{client.node}/storage"):
        if storage.get("active") and _HOLDS_VOLUMES & set(str(storage.get("content", "")).split(",")):
            taken |= list_owners(_list_volumes(client, str(storage["storage"])))
    return taken


def _list_volumes(client: Client, storage: str) -> list[dict[str, Any]]:
    client.require_volumes_visible(storage)
    try:
        volumes: list[dict[str, Any]] = client.get(f"{client.node}/storage/{storage}/content")
    except PveError as error:
        raise SafetyError(
            f"host {client.host}: the volumes on storage {storage} cannot be listed, so their VM ids are unknown: "
            f"{error.reason}",
            hint=f"see `pvesm list {storage}` on the node; if it is not needed there: pvesm set {storage} --disable 1",
        ) from error
    return volumes


class Together:
    """The VMs of a run on one node. `rules` are those of the lab file."""

    def __init__(self, rules: GuestRules) -> None:
        self._rules = rules
        self._of: dict[int, GuestRules] = {}
        self._guests: set[int] = set()

    def of(self, vmid: int) -> GuestRules:
        """The rules of this VM, with the address that only this one has."""
        return self._of.get(vmid, self._rules)

    @property
    def following(self) -> GuestRules:
        """The rules for the next VM: with the first address that no VM of the run has."""
        taken = {rules.address for rules in self._of.values()}
        return replace(
            self._rules, address=next((address for address in self._rules.addresses if address not in taken), None)
        )

    @contextmanager
    def having(self, vmid: int, rules: GuestRules) -> Iterator[None]:
        """This VM exists during the block and has these rules, so no other one gets its address."""
        self._of[vmid] = rules
        try:
            yield
        finally:
            del self._of[vmid]

    def is_guest(self, vmid: int) -> bool:
        return vmid in self._guests

    @contextmanager
    def as_guest(self, vmid: int) -> Iterator[None]:
        """This VM is a guest during the block, so another guest gets another VM."""
        self._guests.add(vmid)
        try:
            yield
        finally:
            self._guests.discard(vmid)


def refuse_number(number: int, client: Client, rules: GuestRules) -> str | None:
    """Why so many guests cannot exist at the same time: ids or addresses are missing. With the remedy; else None.

    Raises SafetyError as `list_used_ids`.
    """
    first, last = rules.vmids
    key = f"host.{client.host}.guest"
    if (free := len(list(free_ids(rules.vmids, list_used_ids(client))))) < number:
        return (
            f"{number} guests need {number} VM ids, but only {free} from {first} to {last} are free: widen "
            f"{key}.vmids, or remove what killed runs left: virt-overhead reap --host {client.host}"
        )
    if rules.address and (given := len(rules.addresses)) < number:
        return (
            f"{number} guests need {number} addresses, but {key}.address has {given}: list {number} free ones there, "
            'or use DHCP with network = "agent"'
        )
    return None


CREATE_SECONDS = 180.0
CLONE_SECONDS = 900.0


@contextmanager
def create_vm(
    client: Client, log: CreationLog, rules: GuestRules, settings: Mapping[str, object]
) -> Iterator[tuple[VirtualMachine, CreatedVm]]:
    """A VM with these settings and a free id of the lab's range. It is removed at the end.

    If another client takes the id first, the next one is tried.
    """

    def make(machine: VirtualMachine, vm: CreatedVm, _entry: Entry) -> None:
        end = client.task(
            "post",
            f"{client.node}/qemu",
            {"vmid": vm.vmid, **build_marks(log.run_id, vm.token), "smbios1": f"uuid={vm.uuid}", **settings},
            expected=Expected("qmcreate", str(vm.vmid)),
            is_done=lambda: has_vm(client, vm.vmid),
            deadline=CREATE_SECONDS,
        )
        require_all(machine, end, "create")

    with _create_with_free_id(client, log, rules, make) as new:
        yield new


@contextmanager
def clone_vm(client: Client, log: CreationLog, rules: GuestRules) -> Iterator[tuple[VirtualMachine, CreatedVm]]:
    """A clone of the lab's template, with the run's name and notes from the beginning. It is removed at the end.

    PVE makes a linked clone of a template, and a full copy of any other VM. Its volumes are not in the log yet.
    """
    template = VirtualMachine(client, int(rules.template or 0))

    def make(machine: VirtualMachine, vm: CreatedVm, entry: Entry) -> None:
        known = build_marks(log.run_id, vm.token)
        end = client.task(
            "post",
            f"{template.path}/clone",
            {"newid": vm.vmid, "name": known["name"], "description": known["description"]},
            expected=Expected("qmclone", str(template.vmid)),
            is_done=lambda: has_vm(client, vm.vmid),
            deadline=CLONE_SECONDS,
        )
        require_all(machine, end, "clone")
        log.amend(entry, vm.model_copy(update={"uuid": read_uuid(machine.config())}))

    with _create_with_free_id(client, log, rules, make, clone=True) as new:
        yield new


@contextmanager
def _create_with_free_id(
    client: Client,
    log: CreationLog,
    rules: GuestRules,
    make: Callable[[VirtualMachine, CreatedVm, Entry], None],
    *,
    clone: bool = False,
) -> Iterator[tuple[VirtualMachine, CreatedVm]]:
    for vmid in free_ids(rules.vmids, list_used_ids(client)):
        if not _is_free(client, vmid):
            continue
        vm = CreatedVm.planned(client.spec.node, vmid, log.run_id, clone=clone)
        taken: list[int] = []
        with log.making(vm, partial(_remove_own, client, log, vm, taken)) as entry:
            machine = VirtualMachine(client, vmid)
            try:
                make(machine, vm, entry)
            except PveError as error:
                if "already exists" not in error.reason:
                    raise
                taken.append(vmid)
            else:
                yield machine, vm
                return
    first, last = rules.vmids
    raise LabUnavailable(
        f"host {client.host}: no VM id from {first} to {last} is free",
        hint=f"virt-overhead reap --host {client.host}, or widen host.{client.host}.guest.vmids",
    )


def _remove_own(client: Client, log: CreationLog, vm: CreatedVm, taken: list[int]) -> Removal:
    return Removal("absent") if taken else remove_vm(client, log.runner, vm)


def _is_free(client: Client, vmid: int) -> bool:
    """Whether the id is free in the cluster. This call also covers VMs that the login may not see."""
    try:
        client.get("cluster/nextid", {"vmid": vmid})
    except PveError as error:
        if "already exists" in error.reason:
            return False
        raise
    return True


Image = Literal["raw", "qcow2"]

VOLUME_SECONDS = 300.0
SLOWEST_BYTES_PER_SECOND = 20e6
"""The slowest expected growth of a volume that is written in full: the rate of a worn-out disk."""
ZVOLS = "/dev/zvol/"
"""Below it, udev has a link for each zvol, with the name of its dataset."""
_PROPERTIES = Zvol().properties
"""Of a zvol for which nothing is requested: reads come from the disks and not from ZFS's own cache (ARC)."""
_POLL_SECONDS = 0.5
_BEING_WRITTEN = 'shared "write" lock'
"""Part of qemu-img's error for a qcow2 file that another process is writing."""
_TAKEN = ("already exists", "File exists")
"""PVE's words if another client has created a volume of this name, the latter of Ceph."""
KIB = 1024
_REPLY_SECONDS = 60.0

_CREATES: Mapping[Maker, str] = {
    "lvm": "lvmcreate",
    "lvmthin": "lvmthincreate",
    "directory": "dircreate",
    "zfs": "zfscreate",
}
"""Kinds of tasks; see PVE::API2::Disks."""

_ACTIVATE = read_script("harness.features.proxmox", "activate_volume.sh")
_HOLD = read_script("harness.features.proxmox", "hold_devices.sh")


class OpenDevices:
    """Devices of a node that stay open, by one command: sshd allows few sessions.

    PVE deactivates the logical volumes of a VM when it stops it (LVMPlugin.pm), and unmaps its images of Ceph. At the
    next start, each would be another device to the kernel. What is open stays the same device.
    """

    def __init__(self) -> None:
        self._command: HeldCommand | None = None

    @contextmanager
    def hold(self, runner: Runner, path: str) -> Iterator[None]:
        """The device at `path`, open until the end of the block. The last block ends first. Raises HostError."""
        if not isinstance(runner, HoldingRunner):
            raise HostError(f"{runner.name}: nothing can be held open there")
        if (command := self._command) is None:
            with runner.hold(["sh", "-c", _HOLD], what="the command that holds volumes open", deadline=60) as command:
                self._command = command
                try:
                    with self.hold(runner, path):
                        yield
                finally:
                    self._command = None
            return
        if not (reply := _ask(command, path)).isdecimal():
            raise HostError(f"{runner.name}: {path} cannot be held open: {reply or 'there was no answer'}")
        try:
            yield
        finally:
            # If the command has ended, nothing is open.
            with cleaning_up(), suppress(HostError):
                _ask(command, "")


def _ask(command: HeldCommand, line: str) -> str:
    """The reply to a line; empty if there is none in time. Raises HostError."""
    before = command.lines
    command.send(line)
    return command.lines[-1] if command.wait(lambda lines: tuple(lines) != before, _REPLY_SECONDS) else ""


@dataclass(frozen=True, slots=True)
class PveVolume(BlockSource):
    """A volume of a storage: `path` on the node, `volid` for the API, and the VM that it belongs to."""

    volid: str = ""
    vmid: int = 0


@dataclass(frozen=True, slots=True)
class Store:
    """A storage for new volumes. `disks` are the serial numbers of the disks under test below it.

    `made`: the run created it. The settings of a storage that existed before are not changed.
    """

    name: str
    disks: tuple[str, ...] = ()
    made: bool = False


@dataclass(frozen=True, slots=True)
class Stores:
    """Creates storages on a node, and volumes that belong to the VM `vm`. Everything is in the log before it exists."""

    client: Client
    log: CreationLog
    vm: CreatedVm | None
    _devices: OpenDevices = field(default_factory=OpenDevices)

    @contextmanager
    def made(self, maker: Maker, name: str, region: Region, options: Mapping[str, str]) -> Iterator[Store]:
        """The storage `name` on the region, which PVE formats. At the end it is removed and its region wiped."""
        client, log, device = self.client, self.log, region.device
        node, disks = client.spec.node, device.disks
        store = CreatedStore(node=node, name=name, maker=maker, partuuid=region.partuuid, disks=disks)
        if maker == "directory":
            require_no_mount_point(log.runner, name)
        with log.making(store, lambda: remove_store(client, log.runner, store)):

            def undo() -> bool:
                """PVE configures the storage last. If it does not get the lock for this in time, the rest remains."""
                if (removal := remove_store(client, log.runner, store)).outcome == "foreign":
                    raise HostError(f"host {client.host}: {store.words} is not removed: {removal.why}")
                device.run(["true"], deadline=30)
                return True

            # PVE gets a path. This command checks immediately before that the path leads to the region.
            device.run(["true"], deadline=30)
            where = {"devices": device.path} if maker == "zfs" else {"device": device.path}
            client.task(
                "post",
                f"{client.node}/disks/{maker}",
                {"name": name, "add_storage": 1, **where, **options},
                # The last step of the task.
                is_done=lambda: name in client.storages(),
                expected=Expected(_CREATES[maker], name),
                deadline=STORE_SECONDS,
                undo=undo,
            )
            yield Store(name, disks, made=True)

    @contextmanager
    def volume(
        self,
        store: Store,
        number: int,
        size: int,
        image: Image,
        *,
        file: bool,
        properties: Mapping[str, str] = _PROPERTIES,
    ) -> Iterator[PveVolume]:
        """A volume of `size` bytes (whole KiB) with the number `number` in its name. It is removed at the end.

        `file`: the storage stores volumes as files, whose names end with their format. `properties`: of a zvol. Raises
        SafetyError if a volume with this name already exists.
        """
        client, vm = self.client, self._vm
        # PVE requires the VM's id at the beginning. The rest must differ from a clone's own disk-0.
        name = f"vm-{vm.vmid}-{TAG}-{number}" + (f".{image}" if file else "")
        volid = f"{store.name}:{vm.vmid}/{name}" if file else f"{store.name}:{name}"
        path = f"{client.node}/storage/{store.name}/content"

        def written() -> int | None:
            """Bytes that it has so far; None if it does not exist."""
            try:
                return next(
                    (int(volume.get("size", 0)) for volume in self._list_volumes(store) if volume["volid"] == volid),
                    None,
                )
            except PveError as error:
                if _BEING_WRITTEN not in error.reason:
                    raise
                return 0

        if written() is not None:
            raise SafetyError(
                f"host {client.host}: volume {volid} already exists, and this run did not create it",
                hint="find its owner (pvesm list on the node), then remove it or set other vmids in the lab file",
            )
        planned = self._plan_volume(volid, store)
        known = [planned]
        runner = self.log.runner
        with self.log.making(planned, lambda: _remove_known(client, runner, known)) as entry:
            settings = {"vmid": vm.vmid, "filename": name, "format": image, "size": size // KIB}
            try:
                answer = client.write(
                    "post", path, settings, is_done=lambda: written() is not None, deadline=VOLUME_SECONDS
                )
            except PveError as error:
                if any(word in error.reason for word in _TAKEN):
                    known.clear()
                raise
            if answer is None:
                # PVE has no task for this. Its proxy gives up after 30 s, but writing a full file may take longer.
                self._await(lambda: (written() or 0) >= size, volid, VOLUME_SECONDS + size / SLOWEST_BYTES_PER_SECOND)
            reported = client.find_path(volid)
            where, network = self._open(planned, reported)
            with nullcontext() if file else self._devices.hold(runner, where):
                known.append(planned.model_copy(update={"identity": read_identity(runner, reported, planned)}))
                self.log.amend(entry, known[-1])
                (grant,) = created(runner, entry, [where])
                if where.startswith(ZVOLS):
                    # PVE has no option for these.
                    words = [f"{name}={value}" for name, value in properties.items()]
                    grant.run(["zfs", "set", *words, where.removeprefix(ZVOLS)], deadline=60)
                kind: Literal["file", "block"] = "file" if file else "block"
                yield PveVolume(where, kind, 0, size, image, grant, volid, vm.vmid, network=network)

    def _open(self, volume: CreatedVolume, path: str) -> tuple[str, NetworkDisk | None]:
        """The volume on the node, where fio opens it, and how QEMU opens it if not there. Raises HostError."""
        if volume.place:
            key, at = volume.place
            kind = find_brought(FeatureStorage, key=key)
            if kind is not None and kind.on_node is not None and kind.on_node.open is not None:
                return kind.on_node.open(self.log.runner, at, volume.name, path)
        self.log.runner.run(["sh", "-c", _ACTIVATE, "sh", path], deadline=60)
        return path, None

    @contextmanager
    def of_clone(self, config: Mapping[str, Any]) -> Iterator[None]:
        """The volumes that PVE created for a clone with this configuration. They are removed at the end."""
        client, runner = self.client, self.log.runner
        with ExitStack() as stack:
            for volid in list_volumes(config, self._vm.vmid):
                store = Store(volid.partition(":")[0])
                planned = self._plan_volume(volid, store)
                identity = read_identity(runner, client.find_path(volid), planned)
                volume = planned.model_copy(update={"identity": identity})
                stack.enter_context(self.log.making(volume, partial(remove_volume, client, runner, volume)))
            yield

    @property
    def _vm(self) -> CreatedVm:
        if self.vm is None:
            raise ValueError("these stores cannot create volumes: there is no VM to own them")
        return self.vm

    def _plan_volume(self, volid: str, store: Store) -> CreatedVolume:
        vm, place = self._vm, locate_storage(self.client.storages().get(store.name, {}))
        return CreatedVolume(
            node=vm.node,
            volid=volid,
            vmid=vm.vmid,
            token=vm.token,
            in_store=store.made,
            place=place,
            disks=store.disks,
        )

    def _list_volumes(self, store: Store) -> list[Mapping[str, Any]]:
        path = f"{self.client.node}/storage/{store.name}/content"
        volumes: list[Mapping[str, Any]] = self.client.get(path, {"vmid": self._vm.vmid})
        return volumes

    def _await(self, is_whole: Callable[[], bool], volid: str, seconds: float) -> None:
        if not wait_until(is_whole, deadline=seconds, every=_POLL_SECONDS):
            raise HostError(
                f"host {self.client.host}: volume {volid} is still being written after {format_duration(seconds)}",
                hint=f"see which tasks {self.client.spec.node} runs, then: virt-overhead reap",
            )

    def preallocate(self, store: Store, preallocation: str) -> None:
        """Set how the storage preallocates its next files."""
        self._set(store, "preallocation", preallocation)

    def block_size(self, store: Store, size: int) -> None:
        """Set the block size of the storage's next zvols, in bytes."""
        self._set(store, "blocksize", str(size))

    def _set(self, store: Store, key: str, value: str) -> None:
        """Change an option of the storage for its next volumes: PVE has no such option for a single volume.

        The settings of a storage that existed before are not changed.
        """
        if not store.made:
            return
        path = f"storage/{store.name}"
        self.client.write("put", path, {key: value}, is_done=lambda: bool(str(self.client.get(path).get(key)) == value))


def _remove_known(client: Client, runner: Runner, known: Sequence[CreatedVolume]) -> Removal:
    """Remove the volume; do nothing if another client took its name at the last moment."""
    return remove_volume(client, runner, known[-1]) if known else Removal("absent")
