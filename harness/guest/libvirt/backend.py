"""Guests of libvirt: a transient domain from the guest image, reached over SSH through its host. Pools of storages."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property, partial
from typing import Literal, cast
from xml.etree import ElementTree

from harness.config.names import RunId
from harness.errors import HostError, Unsupported
from harness.events import Events
from harness.feature import GuestImages, features, find_brought
from harness.files import read_script
from harness.guest.booting import (
    LOOKED_AT,
    OwnSystems,
    Started,
    booted,
    choose_vcpus,
    find_missing_file,
    refuse_memory,
    refuse_queues,
    refuse_size,
)
from harness.guest.libvirt.connection import Connection, LibvirtRefusal, connect
from harness.guest.libvirt.domain import GuestSpec, refuse_machine
from harness.guest.libvirt.effective import PID_FILE
from harness.guest.libvirt.guest import LibvirtGuest, RunningDomain, ToStart, start_guest
from harness.guest.libvirt.requirements import (
    Versions,
    find_server,
    refuse_disk,
    refuse_guest,
    refuse_hardware,
    refuse_mode,
    resolve_attachments,
)
from harness.guest.protocol import Guest, GuestDisk, Hypervisor, Remover
from harness.guest.qemu_process import find_qemu_threads
from harness.lab.created import CreationLog, Entry, Removal, Thing, fenced
from harness.lab.guard import serial_of
from harness.lab.hosts import Host, ReachedHost
from harness.lab.inventory import AnyDisk, DiskByStorage
from harness.lab.pin import CONSOLE_DIRECTORY, FILE_IDENTITY, TAG
from harness.lab.storages import FoundStorage, Place, look_at
from harness.lab.transport.base import Runner
from harness.layout.build import Layouts, built
from harness.layout.storage import build_on_storage, refuse_on_storage
from harness.model.attach import Attachment
from harness.model.guest import ANY_GUEST, GuestOptions
from harness.model.layout import find_missing_requirement
from harness.model.mode import Mode

_PLACES: Mapping[str, tuple[Place, str]] = {
    "dir": ("directory", "target/path"),
    "fs": ("directory", "target/path"),
    "netfs": ("directory", "target/path"),
    "logical": ("volume_group", "source/name"),
    "zfs": ("dataset", "source/name"),
}
"""The place of each type of pool, and the element of its definition that names it (libvirt's formatstorage)."""


def place_of(connection: Connection, storage: DiskByStorage) -> tuple[Place, str]:
    """The place of a storage, and where it is. Raises Unsupported if it is a pool that cannot be used, HostError."""
    if storage.key == "storage":
        raise Unsupported(f"{storage.identity} belongs to Proxmox VE, but this host uses libvirt")
    if storage.key != "pool":
        return storage.key, storage.at
    where = f"host {connection.host}: libvirt pool {storage.at}"
    hint = "virsh pool-list --all lists the pools, and virsh pool-start NAME starts one"
    try:
        pool = connection.call(
            f"find the pool {storage.at}", partial(connection.handle.storagePoolLookupByName, storage.at)
        )
        active = connection.call(f"report whether the pool {storage.at} is active", pool.isActive)
        text = connection.call(f"describe the pool {storage.at}", pool.XMLDesc)
    except HostError as error:
        raise Unsupported(error.message, hint=hint) from error
    if not active:
        raise Unsupported(f"{where} is not active", hint=hint)
    return parse_pool(cast("str", text), where)


def parse_pool(text: str, where: str) -> tuple[Place, str]:
    """The place in the XML of a pool. `where` begins the message of Unsupported. Pure."""
    try:
        pool = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise Unsupported(f"{where}: libvirt describes it by XML that is not valid: {error}") from error
    kind = pool.get("type", "")
    place, element = _PLACES.get(kind, (None, ""))
    at = (pool.findtext(element) or "").strip()
    if place is None or not at:
        raise Unsupported(
            f"{where} has the type {kind or '(none)'}", hint=f"allowed: pools of the type {', '.join(_PLACES)}"
        )
    return place, at


BOOT_TRIES = 3
"""Under nested, emulated virtualisation, a booting kernel sometimes hangs or resets. Nothing is measured yet."""
_EXPECTED_BOOT_SECONDS = 12.0


_MAKE_CONSOLE = FILE_IDENTITY + read_script("harness.guest.libvirt", "create_console.sh")
_REMOVE_CONSOLE = FILE_IDENTITY + read_script("harness.guest.libvirt", "remove_console.sh")


class Domain(Thing):
    """A transient domain, identified by its UUID, and the file with the output of its console, with the file's inode
    and birth time once it exists."""

    kind: Literal["domain"] = "domain"
    name: str
    uuid: str
    console: str
    console_inode: str = ""

    @property
    def words(self) -> str:
        return f"the guest {self.name}"


class LibvirtRemover:
    """Ends the guests that runs left on one host, and removes what their features left there by libvirt."""

    def __init__(self, runner: Runner, connection: Connection) -> None:
        self._runner = runner
        self._connection = connection

    def remove(self, entry: Entry) -> Removal | None:
        """Remove the thing of the entry; None if libvirt did not make it."""
        if (made := entry.parsed([Domain])) is not None:
            return self._end_guest(made)
        removals = (feature.remove_from_libvirt(self._connection, self._runner, entry) for feature in features())
        return next((removal for removal in removals if removal is not None), None)

    def _end_guest(self, made: Domain) -> Removal:
        """End this guest if it still runs. Guests that run end with the connection that was lost."""
        self._connection.restore()
        self._connection.require_settled()
        words = [made.console, made.console_inode]
        self._runner.run(["sh", "-c", _REMOVE_CONSOLE, "sh", *words], deadline=20)
        look = partial(self._connection.handle.lookupByUUIDString, made.uuid)
        try:
            domain = self._connection.call(f"look for the guest {made.name}", look)
        except LibvirtRefusal as error:
            if error.gone:
                return Removal("absent")
            raise
        destroy = domain.destroy
        try:
            self._connection.call(f"end the guest {made.name}", destroy, deadline=60)
        except LibvirtRefusal as error:
            if not error.gone:
                raise
        return Removal("removed")


class LibvirtHypervisor(LibvirtRemover):
    """Makes guests on one host through its libvirt."""

    def __init__(self, host: Host, connection: Connection, events: Events) -> None:
        super().__init__(host.runner, connection)
        self._host = host
        self._events = events
        self._storages: dict[str, FoundStorage] = {}
        self._own_systems = OwnSystems()

    @contextmanager
    def guest(
        self, log: CreationLog, disks: Sequence[GuestDisk], options: GuestOptions = ANY_GUEST, *, variant: str = ""
    ) -> Iterator[Guest]:
        """A guest with these disks that answers over SSH. It is destroyed at the end, also after a failure."""
        name = "-".join(filter(None, (TAG, log.run_id, variant)))
        identity = str(uuid.uuid4())
        # The guests of a run have the same name, and the file of one may still be there.
        console = f"{CONSOLE_DIRECTORY}/{name}-{identity[:8]}.log"
        attached = resolve_attachments(self._host.runner, self._host.name, disks)
        made = Domain(disks=_list_serials(disks), name=name, uuid=identity, console=console)
        vcpus = choose_vcpus(self._host.facts, [disk.attach for disk in disks], options)
        with ExitStack() as stack:
            served = {
                disk.name: stack.enter_context(server.serve(log, disk, vcpus))
                for disk in disks
                if (server := find_server(disk.attach)) is not None
            }
            known = [made]
            entry = stack.enter_context(log.making(made, lambda: self._end_guest(known[-1])))
            make = fenced(entry, ["sh", "-c", _MAKE_CONSOLE, "sh", console])
            inode = self._host.runner.run(make, deadline=20).stdout.strip()
            known.append(made.model_copy(update={"console_inode": inode}))
            log.amend(entry, known[-1])
            spec = self._build_spec(
                made, log.run_id, disks, options, {disk: serving.socket for disk, serving in served.items()}
            )
            to_start = ToStart(self._host, self._connection, spec, log, self._events)
            start: Callable[[], AbstractContextManager[Started[RunningDomain]]] = partial(start_guest, to_start)
            tries, expected = BOOT_TRIES, _EXPECTED_BOOT_SECONDS
            if options.image is not None and (images := find_brought(GuestImages)) is not None:
                start, tries, expected = partial(images.start, to_start), images.tries, images.expected_seconds
            up = stack.enter_context(booted(start, tries=tries, expected_s=expected, events=self._events))
            pid_file = PID_FILE.format(name=name)
            threads = find_qemu_threads(self._host.runner, pid_file, self._events)
            host = self._host.runner
            yield LibvirtGuest(up, threads=threads, host=host, log=log, attached=attached, served=served)

    def _build_spec(
        self,
        made: Domain,
        run_id: RunId,
        disks: Sequence[GuestDisk],
        options: GuestOptions,
        sockets: Mapping[str, str],
    ) -> GuestSpec:
        host, files = self._host, self._host.guest_files
        # An emulated guest that runs on more than one CPU crashes, and crashes its host (docs/lab.md). It gets the last
        # CPU, because the first one handles most of the host's interrupts. QEMU's other threads get the other CPUs.
        # Otherwise, the iothreads run on the vCPU's CPU most of the time.
        emulated = bool(host.spec.simulated) or host.lab_kind == "emulated"
        return GuestSpec(
            name=made.name,
            uuid=made.uuid,
            run_id=run_id,
            accel=host.acceleration.accel,
            kernel=options.kernel or files.kernel,
            initramfs=options.initramfs or files.initramfs,
            ssh_port=0,
            console=made.console,
            disks=tuple(disks),
            vcpus=choose_vcpus(host.facts, [disk.attach for disk in disks], options),
            options=options,
            sockets=sockets,
            pinned_cpu=int(host.facts["cpus"] or 1) - 1 if emulated else None,
        )

    def layouts(
        self, log: CreationLog, disks: Sequence[AnyDisk], modes: Sequence[Mode], *, span: int
    ) -> AbstractContextManager[Layouts]:
        """The layouts of `modes`, built by commands on the host. Everything is removed at the end."""
        if isinstance(storage := disks[0], DiskByStorage):
            self._storages.clear()
            return build_on_storage(log, self._find_storage(storage), serial_of(storage), modes, span=span)
        ours = [disk for disk in disks if not isinstance(disk, DiskByStorage)]
        return built(log, self._host.facts, ours, modes, span=span, events=self._events)

    @property
    def poll_seconds(self) -> float:
        """libvirt never polls its storages."""
        return 0.0

    def unsupported_by_host(self, mode: Mode, disk: AnyDisk) -> str | None:
        """Why the host does not support `mode` on `disk`, with the remedy; None if it does."""
        if (why := self.why_no_disk(mode, disk)) or mode.attach is None:
            return why
        return refuse_memory(len(mode.volumes), mode.guest, self._host) or self._refuse_guest(mode.guest, mode.attach)

    def why_no_disk(self, mode: Mode, disk: AnyDisk) -> str | None:
        """The same for the mode's disk alone: its layout, and how it is attached to any guest of this host."""
        if (why := self._refuse_layout(mode, disk)) or mode.attach is None:
            return why
        why = refuse_disk(self._host.runner, self._host.facts, self._versions, mode.attach, disk)
        return why or refuse_mode(mode, self._versions)

    @cached_property
    def _versions(self) -> Versions:
        return Versions(
            self._connection.call("report its version", self._connection.handle.getLibVersion),
            self._connection.call("report QEMU's version", self._connection.handle.getVersion),
        )

    def unsupported_by_guest_os(self, log: CreationLog, mode: Mode) -> str | None:
        """What the mode's image, or kernel and initramfs, lacks for measuring it, with the remedy; None if nothing."""
        options = mode.guest
        if mode.attach is None or not options.own_system:
            return None
        of = options.image or options.initramfs or options.kernel
        what = "image" if options.image else "initramfs"
        otherwise = f" when the {what} is made"
        if options.image:
            otherwise += ', or set fio = "install" of the guest, which copies virt-overhead\'s own'
        boot = partial(self.guest, log, [], options, variant=LOOKED_AT)
        words = f"the guest of {of}"
        return self._own_systems.unsupported_by_guest_os(
            options.own_system, mode.attach, boot, options, words=words, otherwise=otherwise
        )

    def _refuse_layout(self, mode: Mode, disk: AnyDisk) -> str | None:
        if not isinstance(disk, DiskByStorage):
            return find_missing_requirement(mode.layout, self._host.facts)
        try:
            return refuse_on_storage(mode, self._find_storage(disk), self._host.facts)
        except Unsupported as error:
            return error.with_hint

    def _find_storage(self, storage: DiskByStorage) -> FoundStorage:
        """The storage as the host shows it: as it was found for the first mode, and anew before it is used.

        Raises Unsupported if it cannot be used.
        """
        if storage.name not in self._storages:
            self._storages[storage.name] = look_at(self._host.runner, *place_of(self._connection, storage))
        return self._storages[storage.name]

    def _refuse_guest(self, guest: GuestOptions, attach: Attachment) -> str | None:
        """Why the host cannot have a guest with these options for a disk that is attached in this way."""
        cpus = int(self._host.facts["cpus"] or 1)
        return (
            refuse_guest(guest, self._versions)
            or refuse_queues(attach, cpus, guest)
            or refuse_machine(attach, guest)
            or refuse_size(guest, self._host)
            or find_missing_file(guest, self._host.runner)
            or self._refuse_image(guest)
            or refuse_hardware(self._connection, guest, self._host.acceleration.accel)
        )

    def _refuse_image(self, guest: GuestOptions) -> str | None:
        if guest.image is None:
            return None
        images = find_brought(GuestImages)
        return images.refuse(guest, self._host.runner) if images else f'image = "{guest.image}": not installed here'


class LibvirtBackend:
    """The Backend for hosts with libvirt."""

    @contextmanager
    def hypervisor(self, host: Host, events: Events) -> Iterator[Hypervisor]:
        with connect(host) as connection:
            yield LibvirtHypervisor(host, connection, events)

    @contextmanager
    def remover(self, host: ReachedHost) -> Iterator[Remover]:
        with connect(host) as connection:
            yield LibvirtRemover(host.runner, connection)


def _list_serials(disks: Sequence[GuestDisk]) -> tuple[str, ...]:
    """The serial numbers of the disks under test that hold these disks."""
    return tuple(dict.fromkeys(serial for disk in disks for serial in disk.source.writable.disks))
