"""Options of disks and guests: the settings that were read back, and what one row of the option tables declares. Pure.

`model/attach.py` and `model/guest.py` have the tables. Each backend interprets the rows; what a row cannot express is a
function of the backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
)
from xml.etree import ElementTree as ET

from pydantic import JsonValue, Strict, model_serializer
from pydantic.dataclasses import dataclass as validated

from harness.model.values import STRICT


@validated(frozen=True, slots=True, kw_only=True, config=STRICT)
class Effective:
    """Each setting has the value that was read back, or None if nothing reported it.

    `Attach.expected` and `GuestOptions.expected` also have this type. There, None accepts any value. The values come
    from other programs, so a value of another type raises ValueError.
    """

    machine: str | None = None
    bus: str | None = None
    """The hypervisor's name of the bus."""
    cache: str | None = None
    aio: str | None = None
    iothread: bool | None = None
    pve_drive: str | None = None
    """The drive in the VM's configuration of Proxmox VE."""
    libvirt_disk: str | None = None
    """The options of the disk and of its SCSI controller in libvirt's XML, without what only this guest has."""
    qemu_device: str | None = None
    qemu_host: str | None = None
    qemu_format: str | None = None
    qemu_block_driver: str | None = None
    qemu_cache_direct: bool | None = None
    qemu_cache_no_flush: bool | None = None
    qemu_write_cache: bool | None = None
    qemu_aio: str | None = None
    qemu_iothread: bool | None = None
    qemu_iothreads: int | None = None
    qemu_queues: int | None = None
    qemu_queue_size: int | None = None
    qemu_packed: bool | None = None
    qemu_event_idx: bool | None = None
    qemu_metadata_cache: int | None = None
    """The cache of a qcow2 file's tables in bytes, if it is set."""
    qemu_discard: str | None = None
    qemu_detect_zeroes: str | None = None
    qemu_read_only: bool | None = None
    qemu_iops_limit: str | None = None
    """QEMU's limits of I/Os per second, by the names that a throttle group has for them; `none` without a limit."""
    qemu_bw_limit: str | None = None
    """The same in bytes per second."""
    qemu_throttle_group: str | None = None
    """The group of disks that share these limits."""
    host_io_limit: str | None = None
    """The limits of the control group of QEMU's process for the disks below; `none` without a limit."""
    qemu_rotation_rate: int | None = None
    """What a disk on SCSI or ATA reports: 1 if it does not rotate, 0 if it says nothing."""
    qemu_logical_block_size: int | None = None
    qemu_physical_block_size: int | None = None
    controller_disks: int | None = None
    """How many disks share its controller."""
    qemu_backing_files: int | None = None
    """The images below a qcow2 image, down to the one with the data."""
    qemu_data_file: bool | None = None
    """Whether the data of a qcow2 image is in a file of its own."""
    pci_address: str | None = None
    iommu_group: str | None = None
    host_driver: str | None = None
    host_encryption: str | None = None
    """What dm-crypt reports of the device below: `luks2`."""
    host_cipher: str | None = None
    """Its cipher, for example `aes-xts-plain64`."""
    host_key_bits: int | None = None
    host_encryption_sector: int | None = None
    """The bytes that it encrypts at once, which are its logical blocks."""
    host_zfs_volblocksize: int | None = None
    """The properties of the volume's dataset in ZFS, as the five below."""
    host_zfs_recordsize: int | None = None
    host_zfs_compression: str | None = None
    host_zfs_sync: str | None = None
    """`disabled`: what is written is not durable when it completes."""
    host_zfs_logbias: str | None = None
    host_zfs_primarycache: str | None = None
    host_zfs_pool: str | None = None
    """The pool's data disks, for example `mirror of 2 disks`, and what is wrong with them."""
    host_zfs_space: float | None = None
    """Bytes that a whole record takes on these disks for each of its own, with copies, parity and padding."""
    host_zfs_txg_timeout: int | None = None
    """Seconds after which ZFS writes what is in memory (zfs_txg_timeout)."""
    container: str | None = None
    """What runs the container that has the place of the guest: `lxc`."""
    container_version: str | None = None
    container_cpus: str | None = None
    """The host's CPUs of its control group."""
    container_memory: int | None = None
    """The limit of its memory in bytes."""
    container_unprivileged: bool | None = None
    """Whether its root is another user of the host."""
    container_confinement: str | None = None
    """What restricts the calls of its processes: `seccomp`, and the profile of AppArmor."""
    host_nodatacow: bool | None = None
    """Whether its file has the attribute C, with which btrfs overwrites blocks in place."""
    host_filesystem: str | None = None
    """The file system of its twin on the host, as the two below."""
    host_mount_options: str | None = None
    host_filesystem_features: str | None = None
    """What its tool shows of it, the same on both volumes."""
    host_read_ahead_kb: int | None = None
    """The read-ahead of its twin's volume on the host; of the bare disk below."""
    disk_read_ahead_kb: int | None = None
    guest_read_ahead_kb: int | None = None
    guest_filesystem: str | None = None
    guest_mount_options: str | None = None
    guest_scheduler: str | None = None
    guest_rotational: bool | None = None
    guest_write_cache: str | None = None
    guest_logical_block_size: int | None = None
    guest_physical_block_size: int | None = None
    guest_nr_requests: int | None = None
    guest_discard_max_bytes: int | None = None
    guest_read_only: bool | None = None
    guest_queues: int | None = None
    guest_queue_size: int | None = None
    """Requests that its driver may have in a queue. QEMU 10.0.13 of Debian offers 1024, whatever its property says."""
    guest_packed: bool | None = None
    """What guest and device agreed on, as the next one."""
    guest_event_idx: bool | None = None
    guest_driver: str | None = None
    guest_controller_driver: str | None = None
    guest_windows_driver: str | None = None
    """The driver of its controller in Windows."""
    qemu_cpu: str | None = None
    qemu_vcpus: int | None = None
    qemu_sockets: int | None = None
    qemu_cores: int | None = None
    """Cores of each socket."""
    qemu_threads: int | None = None
    """Threads of each core."""
    qemu_memory: int | None = None
    qemu_numa_nodes: str | None = None
    qemu_numa_mode: str | None = None
    qemu_poll_max_ns: int | None = None
    """Of the iothreads that serve the disk, as the two below."""
    qemu_poll_grow: int | None = None
    qemu_poll_shrink: int | None = None
    host_page_size: int | None = None
    """The host's pages that back the guest's memory, in bytes."""
    host_vcpu_cpus: Annotated[tuple[str, ...], Strict(strict=False)] | None = None
    """The host's CPUs that the vCPUs may run on: one list for each vCPU, or one if all are the same."""
    host_iothread_cpus: str | None = None
    """The same of the iothreads that serve the disk."""
    host_emulator_cpus: str | None = None
    qemu_emulator: str | None = None
    """The program that runs on the host."""
    qemu_version: str | None = None
    """What this program reports as its version."""
    qemu_kernel: str | None = None
    """The file of the guest's kernel in its arguments, as the one below."""
    qemu_initramfs: str | None = None
    qemu_image: str | None = None
    """The file below the guest's system disk, which it never writes to."""
    qemu_firmware: str | None = None
    guest_fio: str | None = None
    """The program fio in the guest."""
    guest_kernel: str | None = None
    """The release of the kernel that runs in the guest."""
    guest_cpus: int | None = None
    guest_memory: int | None = None
    guest_idle: str | None = None
    """How its CPUs wait: `haltpoll`, `poll` (`idle=poll`), `halt` without a driver, else driver and governor."""
    guest_haltpoll_ns: int | None = None
    """The longest time for which its haltpoll governor polls."""
    guest_kvm_clock: bool | None = None
    """Whether it is offered KVM's clock. A guest that does not see KVM is not."""

    def settings(self) -> Iterator[tuple[str, JsonValue]]:
        """Every setting that has a value, by name."""
        for setting in fields(self):
            if (value := getattr(self, setting.name)) is not None:
                yield setting.name, list(value) if isinstance(value, tuple) else value

    @property
    def read_ahead(self) -> tuple[int, int]:
        """The read-ahead of the bare disk, and the longer one of guest and twin, in bytes. Linux's if none is known."""
        volumes = [size for size in (self.guest_read_ahead_kb, self.host_read_ahead_kb) if size is not None]
        bare = _READ_AHEAD_KB if self.disk_read_ahead_kb is None else self.disk_read_ahead_kb
        return 1024 * bare, 1024 * max(volumes, default=_READ_AHEAD_KB)

    def merged(self, other: Effective) -> Effective:
        """The settings of both. If both have a value, the value of `other` counts."""
        return Effective(**(dict(self.settings()) | dict(other.settings())))  # type: ignore[arg-type]

    @model_serializer
    def _record(self) -> dict[str, JsonValue]:
        return dict(self.settings())


_READ_AHEAD_KB = 128
"""VM_READAHEAD_PAGES of Linux."""
NOTHING = Effective()
"""Nothing was read back."""
DEFINITIONS = frozenset({"pve_drive", "libvirt_disk"})
"""Whole definitions, which repeat other settings: how to set a guest up, and not in what two guests differ."""


Bus = Literal["virtio-blk", "virtio-scsi", "sata", "ide", "nvme", "lsi", "megasas", "pvscsi"]


class BusFacts(NamedTuple):
    """The names of a bus in libvirt, Proxmox VE, QEMU and the guest, and the most disks of a guest on it."""

    hypervisor: str
    """The name in libvirt and Proxmox VE."""
    qemu_device: str
    guest_driver: str
    guest_controller_driver: str
    windows_driver: str
    """The driver of the controller in Windows."""
    most: int
    """Disks of one guest. This is the smallest limit of all hypervisors, because a setup must fit on each of them."""
    scsi_model: str | None = None
    """The model of its SCSI controller in libvirt; None on other buses."""
    scsihw: str | None = None
    """The same in Proxmox VE, for the controllers that it has in one kind only."""


BUSES: Mapping[Bus, BusFacts] = {
    # Proxmox VE has virtio0 to virtio15 and scsi0 to scsi30. The root bus of the guest may have room for fewer.
    "virtio-blk": BusFacts("virtio", "virtio-blk-pci", "virtio_blk", "virtio-pci", "viostor", 16),
    "virtio-scsi": BusFacts("scsi", "scsi-hd", "sd", "virtio_scsi", "vioscsi", 31, "virtio-scsi"),
    # The ports of the controller in QEMU's q35. Proxmox VE has the same number.
    "sata": BusFacts("sata", "ide-hd", "sd", "ahci", "storahci", 6),
    # Two channels with two disks each.
    "ide": BusFacts("ide", "ide-hd", "sd", "ata_piix", "atapi", 4),
    "nvme": BusFacts("nvme", "nvme-ns", "nvme", "nvme", "stornvme", 20),
    # Controllers that QEMU emulates, as in VMs that come from other hypervisors. `lsi` is the default of Proxmox VE.
    # LSI's 53C810 is left out: its driver is that of the 53C895A, so a guest cannot tell which one it has. So is its
    # SAS 1068: the driver of Linux (mptsas) finds no disk on the one that QEMU emulates.
    "lsi": BusFacts("scsi", "scsi-hd", "sd", "sym53c8xx", "sym_hi", 31, "lsilogic", "lsi"),
    "megasas": BusFacts("scsi", "scsi-hd", "sd", "megaraid_sas", "megasas", 31, "lsisas1078", "megasas"),
    "pvscsi": BusFacts("scsi", "scsi-hd", "sd", "vmw_pvscsi", "pvscsi", 31, "vmpvscsi", "pvscsi"),
}
SCSI_BUSES: tuple[Bus, ...] = tuple(bus for bus, facts in BUSES.items() if facts.scsi_model is not None)
"""The buses whose disks are on a SCSI controller."""


T = TypeVar("T")
Read = TypeVar("Read")
Row = ParamSpec("Row")
Owner = TypeVar("Owner")
"""The class whose fields are the options."""


@dataclass(frozen=True, slots=True)
class Xml:
    """Where libvirt has an option in its XML, below the element of the device. It is written and read here only.

    `path` ends with an attribute ("driver/@cache") or an element ("iotune/group_name"). Truth is "on" in an attribute,
    and the presence of an element.
    """

    path: str
    type: type = str
    """What the text stands for: str, int or bool."""
    unit: str = ""
    """The attribute `unit` of the element."""

    def write(self, device: ET.Element, value: object) -> None:
        """Write a value. None, and False for an element, are left out."""
        *above, last = self.path.split("/")
        if value is None or (value is False and not last.startswith("@")):
            return
        for tag in above:
            below = device.find(tag)
            device = ET.SubElement(device, tag) if below is None else below
        if last.startswith("@"):
            device.set(last[1:], ("on" if value else "off") if isinstance(value, bool) else str(value))
            return
        element = ET.SubElement(device, last, {"unit": self.unit} if self.unit else {})
        if not isinstance(value, bool):
            element.text = str(value)

    def read(self, device: ET.Element) -> Any:
        """The value; None if the device does not have it. Raises ValueError for text of another type."""
        above, _, last = self.path.rpartition("/")
        parent = device.find(above) if above else device
        if not last.startswith("@"):
            element = None if parent is None else parent.find(last)
            return element is not None if self.type is bool else self._parse(None if element is None else element.text)
        return self._parse(None if parent is None else parent.get(last[1:]))

    def _parse(self, text: str | None) -> Any:
        if text is None:
            return None
        return text == "on" if self.type is bool else self.type(text)


@dataclass(frozen=True, slots=True)
class OnController:
    """The same on the controller of a SCSI disk instead of the disk."""

    xml: Xml


@dataclass(frozen=True, slots=True)
class QemuOverride:
    """A property in QEMU of the controller of a SCSI disk, for which libvirt has no attribute."""

    name: str


@dataclass(frozen=True, slots=True)
class Property:
    """A property of a device in QEMU. Different kinds of devices have different names for it."""

    names: tuple[str, ...]
    of_queues: bool = False
    """Whether the device is that of the queues: the controller of a SCSI disk."""


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """A key, or keys in each other, of what QEMU's `query-block` reports of a disk (`inserted`)."""

    keys: tuple[str, ...]
    optional: bool = False

    def read(self, inserted: Mapping[str, Any]) -> Any:
        """The value. Raises KeyError if QEMU should report it and does not."""
        value: Any = inserted
        for key in self.keys:
            if self.optional and key not in value:
                return None
            value = value[key]
        return value


@dataclass(frozen=True, slots=True)
class BlockNode:
    """An option of the disk's top block device in QEMU's arguments (`-blockdev`)."""

    key: str


@dataclass(frozen=True, slots=True)
class VirtioFeature:
    """A feature that guest and device negotiate, by its number in virtio's specification. The guest shows it."""

    number: int


@dataclass(frozen=True, slots=True)
class IothreadInfo:
    """A key of what QEMU's `query-iothreads` reports of an iothread."""

    key: str


@dataclass(frozen=True, slots=True)
class QemuArgument:
    """The value of an argument of QEMU. Without a name it is the program."""

    name: str


Source = Xml | Property | BlockInfo | BlockNode | VirtioFeature | IothreadInfo | QemuArgument


@dataclass(frozen=True, slots=True)
class ReadBack(Generic[Owner]):
    """A setting of `Effective` that shows the effect of an option."""

    setting: str
    source: Source | None = None
    """Where it is read. None: a function of the backend or of the guest's system reads it."""
    expected: Callable[[Owner], object] | None = None
    """What must be read back. None: the value of the option."""
    of_iothreads: bool = False
    """Whether only a disk with iothreads shows it."""


@dataclass(frozen=True, slots=True)
class Since:
    """The versions that have an option. Empty if every version has it."""

    libvirt: str = ""
    qemu: str = ""
    what: str = ""
    """The option in messages, if it is not its name."""
    lacking: str = ""
    """Why no host has it today, also with these versions."""


POLLING = Since("9.4.0", what="polling of iothreads")
"""An option of attachments and of guests."""


@dataclass(frozen=True, slots=True)
class Conflict(Generic[Owner]):
    """With which option an option conflicts and when, the reason, and what is allowed."""

    other: str
    when: Callable[[Owner], bool]
    why: str
    allowed: str | Callable[[Owner], str]


@dataclass(frozen=True, slots=True)
class Buses:
    """The only buses that have an option, why others do not, and what is allowed."""

    names: tuple[Bus, ...]
    why: str
    allowed: str


@dataclass(frozen=True, slots=True)
class Pve(Generic[Owner]):
    """An option of a drive in Proxmox VE, by its key. An empty key: the backend has a function for it."""

    key: str = ""
    value: Callable[[Any], str | int] = str
    buses: tuple[Bus, ...] = ()
    """The only buses that have it; empty if all have it."""
    what: str = ""
    """The option in the message that a bus does not have it."""
    always: bool = True
    """Whether a drive also has it if it is not used. No default of Proxmox VE applies then."""
    root_only: bool = False
    """Whether only root@pam with a password may set it (API2/Qemu.pm)."""
    refused: Callable[[Owner], str | None] = lambda _: None
    """Values that Proxmox VE does not have, for a message."""
    by_arguments: Callable[[Owner], bool] = lambda _: False
    """Whether only arguments of QEMU have the value (`args`, root@pam only). Asked if the option is used."""


BY_ARGUMENTS: Pve[Any] = Pve(by_arguments=lambda _: True)
"""An option that Proxmox VE does not know, and that QEMU's arguments have."""


@dataclass(frozen=True, kw_only=True)
class Option(Generic[Owner]):
    """A row of the table."""

    docs: str
    """Its names in libvirt and QEMU, for the documentation."""
    values: str = ""
    """The allowed values, for the documentation. Empty: those of its type."""
    by_default: str = ""
    """The default, for the documentation. Empty: the value."""
    shown: tuple[ReadBack[Owner], ...] = ()
    """What is read back."""
    since: Since | Callable[[Owner], Since | None] | None = None
    """The versions of libvirt and QEMU that have it. None: every version has it."""
    xml: Xml | Mapping[Bus, Xml | OnController | QemuOverride] | None = None
    """Where libvirt has it. None: the backend has a function for it."""
    buses: Buses | None = None
    """None: every bus has it."""
    unused: object = None
    """The value that stands for an option that is not used, if that is not the default."""
    conflicts: tuple[Conflict[Owner], ...] = ()
    """With other options. Other than `buses`, they also count for the default."""
    needs_layout: tuple[str, str] | None = None
    """The only kind of layout that has it, and the reason."""
    served: bool = True
    """Whether a storage daemon can serve a disk with this option."""
    of_lun: bool = True
    """Whether it has an effect on a disk whose SCSI commands are passed through."""
    pve: Pve[Owner] | None = None
    """None: Proxmox VE does not have it."""
    example: object = None
    """A value to try it with in golden files. None: its type has others than the default."""

    @property
    def is_virtio(self) -> bool:
        """Whether it is an option of a virtio device."""
        return isinstance(self.xml, Mapping)

    def place(self, bus: Bus) -> Xml | OnController | QemuOverride | None:
        """Where libvirt has the option of a disk on this bus."""
        return self.xml if isinstance(self.xml, Xml) else (self.xml or {}).get(bus)

    def expect(self, name: str, options: Owner) -> Iterator[tuple[str, Any]]:
        """The settings that must be read back, with their values; None accepts any value."""
        for shown in self.shown:
            yield shown.setting, shown.expected(options) if shown.expected else getattr(options, name)

    def needs(self, options: Owner) -> Since | None:
        """The versions that the option needs with these values."""
        return self.since(options) if callable(self.since) else self.since


def on_virtio(blk: Xml, scsi: OnController | QemuOverride) -> Mapping[Bus, Xml | OnController | QemuOverride]:
    """Where libvirt has an option of a virtio device: on the disk of virtio-blk, on the controller of virtio-scsi."""
    return {"virtio-blk": blk, "virtio-scsi": scsi}


class DeclareOption(Protocol[Row]):
    """Declares an option: a field of a dataclass with its default and the arguments of its row."""

    def __call__(self, default: T, *more: Row.args, **row: Row.kwargs) -> T: ...


def declare_rows(make: Callable[Row, Option[Any]]) -> DeclareOption[Row]:
    """What declares the options of a table with rows of this class."""

    def declare(default: T, *more: Row.args, **row: Row.kwargs) -> T:
        option: Any = field(default=default, metadata={"option": make(*more, **row)})
        return option  # type: ignore[no-any-return] # a dataclass takes the field and has the value

    return declare


def declared(options: type) -> dict[str, Any]:
    """The row of each field, by its name."""
    return {key.name: key.metadata["option"] for key in fields(options)}


def option_of_settings(*tables: Mapping[str, Option[Any]]) -> dict[str, str]:
    """The name of the option for each setting that shows its effect."""
    return {shown.setting: name for rows in tables for name, row in rows.items() for shown in row.shown}


def read_from(source: type[Read], *tables: Mapping[str, Option[Any]]) -> dict[str, Read]:
    """The settings that are read from a source of this kind, and from where."""
    shown = (shown for rows in tables for row in rows.values() for shown in row.shown)
    return {one.setting: one.source for one in shown if isinstance(one.source, source)}
