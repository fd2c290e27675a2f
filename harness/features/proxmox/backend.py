"""Guests of Proxmox VE: VMs created through the API of one node, with the guest's ISO, and reached over SSH."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.errors import LabUnavailable, Unsupported
from harness.events import Events, Note
from harness.feature import PassedDevice
from harness.features.proxmox import ROOT, GuestRules, ProxmoxSpec, find_backups
from harness.features.proxmox.beyond_drives import (
    build_arguments,
    format_devices,
    has_own_threads,
    name_key,
    pass_disks,
    refuse_device,
)
from harness.features.proxmox.client import Client, Expected, open_client
from harness.features.proxmox.creation import PveVolume, Stores, Together, clone_vm, create_vm, refuse_number
from harness.features.proxmox.disk_users import require_same_node, require_unclaimed, require_unshared
from harness.features.proxmox.guest import PID_FILE, ProxmoxGuest
from harness.features.proxmox.layouts import (
    Stored,
    add_layouts,
    build_on_storages,
    on_disk,
    refuse_mode,
    refuse_settings,
    require_storages,
)
from harness.features.proxmox.machine import VirtualMachine, log_in
from harness.features.proxmox.removal import remove
from harness.features.proxmox.vm_config import (
    CreatedVm,
    build_clone_parameters,
    build_marks,
    build_shell_parameters,
    build_size_parameters,
    choose_controller,
    choose_drives,
    format_drive,
    list_by_arguments,
    refuse_drive,
    refuse_options,
)
from harness.files import write_stored
from harness.guest.booting import OwnSystems, Started, booted, choose_vcpus, refuse_memory, refuse_queues, refuse_size
from harness.guest.protocol import Guest, GuestDisk, Hypervisor, Remover
from harness.guest.qemu_process import find_qemu_threads
from harness.image.keys import read_public_key
from harness.lab.created import CreationLog, Entry, Removal
from harness.lab.hosts import GuestFiles, Host, ReachedHost
from harness.lab.inventory import AnyDisk, DiskById, DiskByStorage
from harness.lab.pin import TAG
from harness.lab.transport.base import Runner
from harness.layout.build import Layouts
from harness.model.attach import Attach, Attachment, Vfio
from harness.model.guest import ANY_GUEST, GuestOptions
from harness.model.layout import Rbd, Zvol, find_missing_requirement
from harness.model.mode import Mode
from harness.signals import wait_until
from harness.untrusted import read_stored

BOOT_TRIES = 2
_EXPECTED_BOOT_SECONDS = 20.0
_POLL_SECONDS = 10.0
"""`$updatetime` of PVE::Service::pvestatd."""

# A template does not run the guest image. This creates the files that the guest image creates in /run.
_ADOPT = r"""
[ -e /run/hypervisor ] || lscpu | sed -n 's/^Hypervisor vendor: *//p' >/run/hypervisor
: >/run/ready
"""


class ProxmoxRemover:
    """Removes what runs left on one node, through its API."""

    def __init__(self, runner: Runner, client: Client) -> None:
        self._runner = runner
        self._client = client

    @property
    def client(self) -> Client:
        """The API of the node."""
        return self._client

    def remove(self, entry: Entry) -> Removal | None:
        """Remove what a killed run created through Proxmox VE, if its identity still matches the creation log."""
        return remove(self._client, self._runner, entry)


class ProxmoxHypervisor(ProxmoxRemover):
    """Makes layouts and guests on one node. A VM owns the volumes of a run, and becomes its guest.

    With `owner`, the settings of a VM, the volumes belong to a VM with these settings, which never starts.
    """

    def __init__(
        self,
        host: Host,
        client: Client,
        rules: GuestRules,
        events: Events,
        *,
        owner: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(host.runner, client)
        self._owner = owner
        self._host = host
        self._rules = rules
        self._events = events
        self._together = Together(rules)
        self._own_systems = OwnSystems()
        self._set: dict[int, frozenset[str]] = {}
        """The settings that the last guest of each VM has set."""

    @property
    def poll_seconds(self) -> float:
        """How often pvestatd asks all storages for their space, which reads the metadata of every volume group."""
        return _POLL_SECONDS

    def unsupported_by_host(self, mode: Mode, disk: AnyDisk) -> str | None:
        """Why the node does not support `mode` on `disk`, with the remedy; None if it does."""
        if (why := self.why_no_disk(mode, disk)) or mode.attach is None:
            return why
        return self._refuse_number(mode) or self._refuse_guest(mode.guest, mode.attach)

    def why_no_disk(self, mode: Mode, disk: AnyDisk) -> str | None:
        """The same for the mode's disk alone: its layout, and how it is attached to any guest of the node."""
        try:
            disk = add_layouts(self._client, disk) if isinstance(disk, DiskByStorage) else disk
        except Unsupported as error:
            return error.with_hint
        why = refuse_mode(self._client.spec, mode, disk)
        if why is None and isinstance(mode.layout, Zvol | Rbd) and isinstance(disk, DiskById):
            # All other tools that PVE needs come with it.
            why = find_missing_requirement(mode.layout, self._host.facts)
        elif why is None and isinstance(disk, DiskByStorage):
            why = refuse_settings(self._client, disk, mode)
        if why is None and isinstance(mode.attach, Vfio) and isinstance(disk, DiskById):
            return refuse_device(self._client, self._host.runner, disk.id)
        if why is None and mode.attach is not None and mode.backup and (backups := find_backups()) is not None:
            return backups.refuse(self._client, self._rules, mode)
        return why

    def unsupported_by_guest_os(self, log: CreationLog, mode: Mode) -> str | None:
        """What the user's template lacks for measuring the mode, with the remedy; None if nothing."""
        template = self._rules.template
        if mode.attach is None or template is None:
            return None
        boot = partial(self.guest, log, [], mode.guest)
        words, otherwise = f"a clone of the template {template}", " in the template"
        return self._own_systems.unsupported_by_guest_os(template, mode.attach, boot, words=words, otherwise=otherwise)

    def _refuse_number(self, mode: Mode) -> str | None:
        """Why the node cannot run all guests of the mode at the same time, with the remedy; None if it can."""
        number = len(mode.volumes)
        if number == 1:
            return None
        return refuse_memory(number, mode.guest, self._host) or refuse_number(number, self._client, self._rules)

    def _refuse_guest(self, guest: GuestOptions, attach: Attachment) -> str | None:
        """Why the node cannot have a guest with these options for a disk that is attached in this way."""
        cpus = int(self._host.facts["cpus"] or 1)
        if why := refuse_queues(attach, cpus, guest) or refuse_options(guest):
            return why
        # Proxmox VE reserves huge pages itself when it starts the VM.
        return refuse_size(guest, self._host, reserved=False)

    @contextmanager
    def layouts(
        self, log: CreationLog, disks: Sequence[AnyDisk], modes: Sequence[Mode], *, span: int
    ) -> Iterator[Layouts]:
        """The layouts of `modes` on the first disk, created through Proxmox VE. Everything is removed at the end."""
        disk = add_layouts(self._client, first) if isinstance(first := disks[0], DiskByStorage) else first
        for mode in modes:
            if why := self.why_no_disk(mode, disk):
                raise Unsupported(f"host {self._host.name}: mode {mode.name} on disk {disk.name}: {why}")
        if not isinstance(disk, DiskById | DiskByStorage):
            raise Unsupported(
                f"host {self._host.name}: disk {disk.name} is a loop device, which Proxmox VE does not support"
            )
        require_same_node(self._client, log.runner)
        # Before anything is created. The claims on a disk are read again before the first write to it.
        if isinstance(disk, DiskById):
            require_unclaimed(self._client, log.runner, disk)
        else:
            require_storages(self._client, log.runner, disk, modes, span=span)
        if (copies := sum(mode.backup for mode in modes)) and (backups := find_backups()) is not None:
            backups.require_room(self._client, self._rules, log.runner, copies * span)
        with self._create_owner(log, disk, modes) as vm:
            stores = Stores(self._client, log, vm)
            if isinstance(disk, DiskByStorage):
                with build_on_storages(stores, disk, modes, span=span) as layouts:
                    yield layouts
            else:
                with on_disk(stores, disk, modes, span=span) as layouts:
                    yield layouts

    @contextmanager
    def guest(
        self,
        log: CreationLog,
        disks: Sequence[GuestDisk],
        options: GuestOptions = ANY_GUEST,
        *,
        variant: str = "",  # noqa: ARG002 - the id of the VM distinguishes it
    ) -> Iterator[Guest]:
        """A guest with these disks that answers over SSH. It is stopped at the end; its owner removes the VM.

        Variants have the same VM one after the other. A guest that runs beside others has a VM of its own.
        """
        require_attachable(self._client, disks)
        with (
            pass_disks(self._client, log, disks) as passed,
            self._choose_machine(log, disks) as machine,
            self._together.as_guest(machine.vmid),
        ):
            keys = self._attach(machine, disks, options, passed)
            start = partial(self._start, machine)
            with booted(start, tries=BOOT_TRIES, expected_s=_EXPECTED_BOOT_SECONDS, events=self._events) as up:
                pid_file = PID_FILE.format(vmid=machine.vmid)
                threads = find_qemu_threads(self._host.runner, pid_file, self._events)
                node, backups = self._host.runner, find_backups()
                with backups.open(log, machine, self._rules) if backups is not None else nullcontext() as back_up:
                    yield ProxmoxGuest(
                        up,
                        threads=threads,
                        node=node,
                        disks=disks,
                        keys=keys,
                        passed=passed,
                        back_up=back_up,
                    )

    @contextmanager
    def _start(self, machine: VirtualMachine) -> Iterator[Started[VirtualMachine]]:
        """The VM, logged in to. Its owner ends it."""
        if machine.running:
            # An earlier try failed.
            machine.stop()
        machine.start()
        runner = log_in(machine, self._host, self._together.of(machine.vmid))
        try:
            if self._rules.template is not None:
                runner.run(["sh", "-s"], stdin=_ADOPT, deadline=60)
            yield Started(machine, runner)
        finally:
            runner.close()

    @contextmanager
    def _create_owner(self, log: CreationLog, disk: AnyDisk, modes: Sequence[Mode]) -> Iterator[CreatedVm | None]:
        """The VM that owns the volumes of the run; None if there are no volumes."""
        if not isinstance(disk, DiskByStorage) and not any(isinstance(mode.layout, Stored) for mode in modes):
            yield None
            return
        with self._create_shell(log) as (_, vm):
            yield vm

    @contextmanager
    def _choose_machine(self, log: CreationLog, disks: Sequence[GuestDisk]) -> Iterator[VirtualMachine]:
        """The VM that owns the disks' volumes, or a new one if there is none or if it is a guest already."""
        owners = {disk.source.vmid for disk in disks if isinstance(disk.source, PveVolume)}
        if not owners or all(map(self._together.is_guest, owners)):
            with self._create_shell(log) as (machine, _):
                yield machine
            return
        (vmid,) = owners
        machine = VirtualMachine(self._client, vmid)
        with self._client.cleanup() as cleanup:
            # The layouts remove the volumes and the VM.
            cleanup.by(f"the running VM {vmid}", machine.end)
            yield machine

    @contextmanager
    def _create_shell(self, log: CreationLog) -> Iterator[tuple[VirtualMachine, CreatedVm]]:
        """A VM without disks under test. It is removed at the end."""
        rules, vcpus, client = self._together.following, choose_vcpus(self._host.facts), self._client
        if self._owner is not None:
            with create_vm(client, log, rules, self._owner) as owner:
                yield owner
            return
        if rules.template is None:
            iso = ensure_iso(client, rules.iso_storage, self._host.guest_files, self._events)
            with (
                create_vm(client, log, rules, build_shell_parameters(rules, iso, vcpus)) as (machine, vm),
                self._together.having(machine.vmid, rules),
            ):
                yield machine, vm
            return
        with (
            clone_vm(client, log, rules) as (machine, vm),
            self._together.having(machine.vmid, rules),
            Stores(client, log, vm).of_clone(machine.config()),
        ):
            public = read_public_key(self._host.guest_files.key)
            template = VirtualMachine(client, rules.template).config()
            settings = self._require_supported(lambda: build_clone_parameters(rules, template, vcpus, public))
            machine.set({"tags": build_marks(log.run_id, vm.token)["tags"], **settings})
            yield machine, vm

    def _attach(
        self,
        machine: VirtualMachine,
        disks: Sequence[GuestDisk],
        options: GuestOptions,
        passed: Mapping[str, PassedDevice],
    ) -> Mapping[str, str]:
        """Set size and disks in the VM's configuration. Returns the drive of each disk, or its device."""
        by_path = (disk for disk in disks if disk.name not in passed and not isinstance(disk.source, PveVolume))
        for path in dict.fromkeys(disk.source.path for disk in by_path):
            require_unshared(self._client, self._host.runner, path, machine.vmid)

        def settings() -> dict[str, Any]:
            buses = {disk.name: disk.attach.bus for disk in disks if isinstance(disk.attach, Attach)}
            keys.update(choose_drives(buses, machine.config().keys() - before))
            vcpus = choose_vcpus(self._host.facts, [disk.attach for disk in disks], options)
            wanted = build_size_parameters(options, vcpus, self._rules.cpu)
            if before:
                hardware = build_shell_parameters(self._together.of(machine.vmid), "", vcpus)
                wanted = {key: value for key, value in hardware.items() if key in before} | wanted
            wanted["scsihw"] = choose_controller(disk.attach for disk in disks)
            by_key = {keys[disk.name]: disk for disk in disks if disk.name in keys}
            wanted |= format_devices(self._client, passed)
            if arguments := build_arguments(by_key, options):
                wanted["args"] = arguments
            return wanted | dict(_yield_drives(by_key, options))

        keys: dict[str, str] = {}
        before = self._set.get(machine.vmid, frozenset())
        wanted = self._require_supported(settings)
        # What an earlier guest of this VM had, and this one does not request.
        gone = sorted(before - wanted.keys())
        machine.set(wanted | ({"delete": ",".join(gone)} if gone else {}))
        self._set[machine.vmid] = frozenset(wanted)
        return keys | {name: name_key(number) for number, name in enumerate(passed)}

    def _require_supported(self, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `make` returns. Raises Unsupported if PVE's configuration cannot express it."""
        try:
            return make()
        except ValueError as error:
            raise Unsupported(f"host {self._host.name}: {error}") from None


class ProxmoxBackend:
    """The Backend for the node of Proxmox VE in `spec`."""

    def __init__(self, spec: ProxmoxSpec) -> None:
        self._spec = spec

    @contextmanager
    def hypervisor(self, host: Host, events: Events) -> Iterator[Hypervisor]:
        with open_client(host.name, self._spec) as client:
            yield ProxmoxHypervisor(host, client, self._spec.guest, events)

    @contextmanager
    def remover(self, host: ReachedHost) -> Iterator[Remover]:
        with open_client(host.name, self._spec) as client:
            yield ProxmoxRemover(host.runner, client)


def _yield_drives(disks: Mapping[str, GuestDisk], options: GuestOptions) -> Iterator[tuple[str, str]]:
    """The drives of disks by their names. Disks that are arguments of QEMU as a whole have none."""
    for key, disk in disks.items():
        attach = disk.attach
        if isinstance(attach, Attach) and has_own_threads(attach, options):
            if attach.iothread_vq_mapping:
                continue
            attach = replace(attach, iothread=False, poll_max_ns=None)
        yield key, format_drive(name_source(disk), attach, disk.serial)


def name_source(disk: GuestDisk) -> str:
    """How a VM's configuration names the disk."""
    return disk.source.volid if isinstance(disk.source, PveVolume) else disk.source.path


def require_attachable(client: Client, disks: Sequence[GuestDisk]) -> None:
    """Raises Unsupported, with the remedy, if a VM of the node cannot have one of these disks."""
    for disk in disks:
        if why := refuse_drive(disk.attach):
            raise Unsupported(f"host {client.host}: {disk.name}: {why}")
        if (by_arguments := list_by_arguments(disk.attach)) and not client.spec.may_pass_devices:
            raise Unsupported(
                f"host {client.host}: {disk.name}: {', '.join(by_arguments)} needs arguments of QEMU, which Proxmox VE "
                f"accepts only from {ROOT} with a password, not from {client.spec.who}",
                hint=f"log in as {ROOT} without a token, or leave it out",
            )
        by_path = not isinstance(disk.source, PveVolume) and not isinstance(disk.attach, Vfio)
        if by_path and (why := client.spec.why_no_devices):
            raise Unsupported(
                f"host {client.host}: {disk.name}: {disk.source.path} is not attached: {why}",
                hint=f"log in as {ROOT} without a token, or select modes on storages",
            )


UPLOAD_SECONDS = 600.0
CLOCK_SECONDS = 1.1
"""PVE shows times in whole seconds. After this time, another upload has another time."""
_ISO_DIGITS = 16
_UPLOADS = "uploaded.json"


@dataclass(frozen=True, slots=True)
class ListedIso:
    """A file as PVE lists it: its size in bytes, and the time of its last change."""

    size: int
    changed: int


def ensure_iso(client: Client, storage: str, files: GuestFiles, events: Events) -> str:
    """The volume of the guest's ISO on `storage`, with the content that this machine has uploaded, once per image.

    The API shows name, size and time of a file, but not its content. Whoever may upload ISOs could put another one
    there. So this machine records the change time of what it has uploaded, which no upload can set. Anything else is
    left alone, and the ISO is uploaded under another name.

    Raises LabUnavailable if the storage accepts no ISOs, PveError if the upload fails.
    """
    _require_isos(client, storage)
    record = files.iso.with_name(_UPLOADS)
    at = f"{client.spec.host}:{client.spec.port}/{client.spec.node}/{files.digest}"
    known, present = _read_uploads(record), _list_isos(client, storage)
    name = f"{TAG}-{files.digest[:_ISO_DIGITS]}"
    prefix = f"{storage}:iso/{name}"
    for volid, listed in present.items():
        if volid.startswith(prefix) and known.get(f"{at}/{volid}") == listed:
            return volid
    file = f"{name}.iso" if f"{prefix}.iso" not in present else f"{name}-{secrets.token_hex(4)}.iso"
    volid = f"{storage}:iso/{file}"
    events(Note(f"host {client.host}: uploading the guest's ISO to storage {storage}"))
    if (uploaded := _upload(client, storage, files, file)) is not None:
        others = {key: value for key, value in _read_uploads(record).items() if not key.startswith(f"{at}/{prefix}")}
        _write_uploads(record, {**others, f"{at}/{volid}": uploaded})
    return volid


def _upload(client: Client, storage: str, files: GuestFiles, name: str) -> ListedIso | None:
    """Upload the ISO under a name that no file has. Returns how PVE lists it once another upload would show."""
    volid = f"{storage}:iso/{name}"
    size = files.iso.stat().st_size

    def is_whole() -> bool:
        listed = _list_isos(client, storage).get(volid)
        return listed is not None and listed.size == size

    with tempfile.TemporaryDirectory(prefix="virt-overhead-") as directory:
        # PVE gives the volume the name of the file, which proxmoxer takes from the file object.
        link = Path(directory) / name
        link.symlink_to(files.iso)
        with link.open("rb") as content:
            client.task(
                "post",
                f"{client.node}/storage/{storage}/upload",
                # pveproxy accepts the fields only in this order: it refuses an algorithm after its checksum.
                {
                    "content": "iso",
                    "checksum-algorithm": "sha256",
                    "checksum": files.iso_sha256,
                    "filename": content,
                },
                is_done=is_whole,
                expected=Expected("imgcopy", ""),
                deadline=UPLOAD_SECONDS,
            )
    listed = _list_isos(client, storage).get(volid)
    end = time.monotonic() + CLOCK_SECONDS
    wait_until(lambda: time.monotonic() >= end, deadline=2 * CLOCK_SECONDS, every=CLOCK_SECONDS / 4)
    return listed if listed == _list_isos(client, storage).get(volid) else None


def _list_isos(client: Client, storage: str) -> dict[str, ListedIso]:
    listed = client.get(f"{client.node}/storage/{storage}/content", {"content": "iso"})
    return {str(volume["volid"]): ListedIso(int(volume["size"]), int(volume.get("ctime", 0))) for volume in listed}


def _read_uploads(record: Path) -> Mapping[str, ListedIso]:
    """What this machine has uploaded. A record that is missing or damaged only costs another upload."""
    return read_stored(record, dict[str, ListedIso]) or {}


def _write_uploads(record: Path, uploads: Mapping[str, ListedIso]) -> None:
    with suppress(OSError):  # of a cache that cannot be written
        write_stored(record, {key: asdict(listed) for key, listed in uploads.items()})


def _require_isos(client: Client, storage: str) -> None:
    entry = {str(listed["storage"]): listed for listed in client.get(f"{client.node}/storage")}.get(storage)
    if entry is None or "iso" not in str(entry.get("content", "")).split(","):
        raise LabUnavailable(
            f"host {client.host}: storage {storage} {'does not accept ISOs' if entry else 'does not exist'}",
            hint=f"set host.{client.host}.guest.iso_storage to a storage for ISOs; `pvesm status` lists storages",
        )
