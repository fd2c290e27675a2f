"""The effective configuration of a disk, read back from the live domain XML, from QEMU and from its process."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any
from xml.etree import ElementTree as ET

from harness.errors import GuestError
from harness.guest.libvirt.connection import Connection
from harness.guest.libvirt.monitor import ask, of_device
from harness.guest.libvirt.process import QemuProcess, read_process
from harness.guest.libvirt.size import GuestSize, read_size
from harness.guest.libvirt.system_disk import read_system
from harness.guest.pci import PciDisk
from harness.lab.transport.base import Runner
from harness.model.attach import ATTACH_OPTIONS
from harness.model.effective import Effective
from harness.model.guest import GUEST_OPTIONS
from harness.model.option import BlockInfo, BlockNode, Property, Xml, read_from
from harness.model.throttle import of_block_device, shown_limits
from harness.untrusted import reading

_DISKS = "devices/disk"


@dataclass(frozen=True, slots=True)
class Running:
    """What is read once for all disks of a guest. It does not change while the guest runs.

    `live` is the domain as libvirt runs it, with the aliases and addresses that libvirt assigned. `blocks` are QEMU's
    block devices, from `query-block`.
    """

    live: ET.Element
    process: QemuProcess
    blocks: list[dict[str, Any]]
    size: GuestSize = field(default_factory=GuestSize)
    version: str | None = None
    """What QEMU reports as its version."""

    @property
    def program(self) -> Effective:
        """The program that runs the guest, and what it boots."""
        return self.process.files.merged(Effective(qemu_version=self.version)).merged(read_system(self.live))

    @property
    def machine(self) -> Effective:
        """What libvirt shows of the guest as a whole."""
        return Effective(**{setting: place.read(self.live) for setting, place in read_from(Xml, GUEST_OPTIONS).items()})


def running(connection: Connection, domain: Any, host: Runner) -> Running:
    """The guest as its host runs it now."""
    process, live = read_process(host, domain.name()), live_xml(connection, domain)
    blocks = ask(connection, domain, "query-block")
    version = version_of(ask(connection, domain, "query-version"), connection.host)
    return Running(live, process, blocks, read_size(connection, domain, host, live), version)


def version_of(answer: Any, host: str) -> str:
    """For example "10.0.2 (Debian 1:10.0.2+ds-2)"."""
    with reading(f"host {host}: the version of QEMU", GuestError):
        numbers = ".".join(str(int(answer["qemu"][part])) for part in ("major", "minor", "micro"))
        package = str(answer.get("package") or "").strip().removeprefix("(").removesuffix(")")
        return f"{numbers} ({package})" if package else numbers


def with_plugged(guest: Running, aliases: Iterable[str]) -> Running:
    """The guest with these disks, which were plugged in after QEMU was started and are not in its arguments.

    QEMU's monitor reports neither engine nor discard, so these are what libvirt shows that it requested.
    """
    nodes = dict(guest.process.nodes)
    for alias in aliases:
        with reading(f"guest {guest.live.findtext('name')}: the options of its disk {alias}", GuestError):
            name = _block_device(guest, alias)["inserted"]["node-name"]
            disk = disk_of(guest.live, alias)
            options = _attributes(disk.find("driver"))
            discard = options.get("discard", "ignore")
            image = {"driver": options.get("type", "raw"), "discard": discard, "file": f"{alias}-storage"}
            nodes[name] = image | dict(_requested_of_node(disk))
            nodes[f"{alias}-storage"] = {"aio": options.get("io", "threads"), "discard": discard}
    return replace(guest, process=replace(guest.process, nodes=nodes))


def _requested_of_node(disk: ET.Element) -> Iterator[tuple[str, Any]]:
    """The options of a disk's block node that libvirt shows."""
    for row in ATTACH_OPTIONS.values():
        for shown in row.shown:
            if isinstance(shown.source, BlockNode) and isinstance(row.xml, Xml):
                value = row.xml.read(disk)
                if value is not None:
                    yield shown.source.key, value


def live_xml(connection: Connection, domain: Any) -> ET.Element:
    """The domain as libvirt runs it now."""
    with reading(f"host {connection.host}: libvirt's XML of the guest", GuestError):
        return ET.fromstring(connection.call("show the guest", domain.XMLDesc, deadline=60))


def read_effective(connection: Connection, domain: Any, guest: Running, alias: str) -> Effective:
    """The effective configuration of the disk with this alias in libvirt, QEMU's block layer, device and process."""
    with reading(f"host {connection.host}: how QEMU serves the guest's disk {alias}", GuestError):
        return _effective(connection, domain, guest, alias)


def _effective(connection: Connection, domain: Any, guest: Running, alias: str) -> Effective:
    live, process = guest.live, guest.process
    disk = disk_of(live, alias)
    controller = scsi_controller(live, disk)
    entry = _block_device(guest, alias)
    inserted, node = entry["inserted"], entry["inserted"]["node-name"]
    devices = _DiskDevices(connection, domain, alias, controller)
    limits = of_block_device(inserted)
    sharing = [other for other in live.iterfind(_DISKS) if scsi_controller(live, other) is controller]
    iothreads = devices.queues.iothreads
    is_qcow2 = inserted["drv"] == "qcow2"
    top = process.nodes.get(node, {})
    found = Effective(
        libvirt_disk=definition(disk, controller),
        iothread=_has_thread((disk if controller is None else controller).find("driver")),
        controller_disks=len(sharing) if controller is not None else None,
        qemu_iothread=bool(iothreads),
        qemu_iothreads=len(iothreads),
        qemu_aio=process.aio(node),
        qemu_discard=process.discard(node),
        qemu_block_driver=inserted["drv"],
        qemu_backing_files=inserted.get("backing_file_depth") if is_qcow2 else None,
        qemu_data_file="data-file" in top if is_qcow2 else None,
        qemu_iops_limit=shown_limits(limits, "iops"),
        qemu_bw_limit=shown_limits(limits, "bps"),
        **dict(_read_options(disk, devices, inserted, top)),
    )
    return found.merged(guest.machine).merged(guest.size.of_disk(iothreads)).merged(guest.program)


def read_vhost_user(connection: Connection, domain: Any, guest: Running, alias: str) -> Effective:
    """The device of a disk that another process serves. QEMU knows nothing about what is behind it."""
    with reading(f"host {connection.host}: the device of the guest's disk {alias}", GuestError):
        devices = _DiskDevices(connection, domain, alias, None)
        found = Effective(**dict(_read_options(disk_of(guest.live, alias), devices, None, {})))
        return guest.size.of_disk(()).merged(guest.machine).merged(found)


class _DiskDevices:
    """The devices of a disk in QEMU: its own, and that of its queues, which for virtio-scsi is the controller."""

    def __init__(self, connection: Connection, domain: Any, alias: str, controller: ET.Element | None) -> None:
        self.own = QemuDevice(connection, domain, alias)
        self.queues = self.own if controller is None else QemuDevice(connection, domain, _alias(controller))


def _read_options(
    disk: ET.Element, devices: _DiskDevices, inserted: Mapping[str, Any] | None, node: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Every setting that a row of the option table says how to read.

    `inserted` is what QEMU reports of the block device; None if another process serves the disk. `node` has the options
    of its top block node.
    """
    for shown in (shown for row in ATTACH_OPTIONS.values() for shown in row.shown):
        match shown.source:
            case Xml() as place:
                yield shown.setting, place.read(disk)
            case Property(names, of_queues):
                yield shown.setting, (devices.queues if of_queues else devices.own).get(*names)
            case BlockInfo() as block if inserted is not None:
                yield shown.setting, block.read(inserted)
            case BlockNode(key, convert) if key in node:
                yield shown.setting, convert(node[key])


def read_passed_through(connection: Connection, domain: Any, host: Runner, disk: PciDisk, alias: str) -> Effective:
    """The host's device that QEMU passes through under this alias, and its driver on the host."""
    with reading(f"host {connection.host}: how QEMU passes {alias} through", GuestError):
        device = QemuDevice(connection, domain, alias)
        link = f"/sys/bus/pci/devices/{disk.address}/driver"
        return Effective(
            qemu_device=device.get("type"),
            qemu_host=device.get("host"),
            pci_address=disk.address,
            iommu_group=disk.group,
            host_driver=host.run(["readlink", link], deadline=20).stdout.strip().rpartition("/")[2],
        )


def disk_of(live: ET.Element, alias: str) -> ET.Element:
    """The disk with this alias."""
    for disk in live.iterfind(_DISKS):
        if _alias(disk) == alias:
            return disk
    there = ", ".join(_alias(disk) for disk in live.iterfind(_DISKS)) or "none"
    raise GuestError(
        f"guest {live.findtext('name')}: libvirt shows no disk {alias}; it has {there}",
        hint="it was detached while the guest was running: virsh dumpxml shows the remaining disks",
    )


def definition(disk: ET.Element, controller: ET.Element | None) -> str:
    """The options of a disk, and of its controller, as XML, without what only this guest has."""
    parts = [_options_of(disk, ("type", "device"), ("driver", "blockio", "readonly"))]
    target = _attributes(disk.find("target"))
    ET.SubElement(parts[0], "target", {"bus": target.get("bus", "")})
    if controller is not None:
        parts.append(_options_of(controller, ("type", "model"), ("driver",)))
    for part in parts:
        for driver in part.iter("driver"):
            if "iothread" in driver.attrib:
                driver.set("iothread", "1")
            for number, thread in enumerate(driver.iterfind("iothreads/iothread"), start=1):
                thread.set("id", str(number))
        ET.indent(part)
    return "\n".join(ET.tostring(part, encoding="unicode").strip() for part in parts)


def _options_of(device: ET.Element, attributes: Collection[str], children: Collection[str]) -> ET.Element:
    kept = ET.Element(device.tag, {name: value for name, value in device.attrib.items() if name in attributes})
    kept.extend(deepcopy(child) for child in device if child.tag in children)
    return kept


def scsi_controller(live: ET.Element, disk: ET.Element) -> ET.Element | None:
    """The controller of a SCSI disk, which has the queues and the iothread instead of the disk. None on other buses."""
    if _attributes(disk.find("target")).get("bus") != "scsi":
        return None
    index = _attributes(disk.find("address")).get("controller")
    for controller in live.iterfind("devices/controller[@type='scsi']"):
        if controller.get("index") == index:
            return controller
    raise GuestError(f"guest {live.findtext('name')}: libvirt shows no SCSI controller {index} for disk {_alias(disk)}")


def _alias(device: ET.Element) -> str:
    return _attributes(device.find("alias")).get("name", "")


def _attributes(element: ET.Element | None) -> dict[str, str]:
    return dict(element.attrib) if element is not None else {}


def _has_thread(driver: ET.Element | None) -> bool:
    return driver is not None and ("iothread" in driver.attrib or driver.find("iothreads/iothread") is not None)


def _block_device(guest: Running, alias: str) -> dict[str, Any]:
    """The block layer behind the disk's device."""
    entry = of_device(alias, guest.blocks)
    if entry is None or "inserted" not in entry:
        name = guest.live.findtext("name")
        raise GuestError(f"guest {name}: QEMU shows no block device behind {alias}")
    return entry


class QemuDevice:
    """A device of QEMU by the alias that libvirt gave it. Different kinds of devices have different properties."""

    def __init__(self, connection: Connection, domain: Any, alias: str) -> None:
        self._connection = connection
        self._domain = domain
        self._path = f"/machine/peripheral/{alias}"
        listed = ask(connection, domain, "qom-list", path=self._path)
        with reading(f"host {connection.host}: the properties of QEMU's device {alias}", GuestError):
            self._names = {each["name"] for each in listed}

    def get(self, *names: str) -> Any:
        """The value of the first of these properties that the device has; None if it has none of them."""
        for name in names:
            if name in self._names:
                return ask(self._connection, self._domain, "qom-get", path=self._path, property=name)
        return None

    @property
    def iothreads(self) -> tuple[str, ...]:
        """The names of the iothreads that serve its queues; none if QEMU's main thread serves them."""
        if mapping := self.get("iothread-vq-mapping"):
            return tuple(str(each["iothread"]) for each in mapping)
        name = str(self.get("iothread") or "").rpartition("/")[2]
        return (name,) if name else ()
