"""The effective configuration of a disk and its guest: from the live domain XML, from QEMU and from its process."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

from harness.errors import GuestError
from harness.feature import GuestImages, PassedDevice, find_brought
from harness.guest.libvirt.connection import Connection, ask, find_device_entry
from harness.guest.qemu_process import (
    NETWORK_DRIVERS,
    Engines,
    Placement,
    look_at_process,
    parse_inspected,
    read_placement,
)
from harness.lab.transport.base import Runner
from harness.model.attach import ATTACH_OPTIONS
from harness.model.guest import GUEST_OPTIONS
from harness.model.option import (
    NOTHING,
    BlockInfo,
    BlockNode,
    Effective,
    IothreadInfo,
    Property,
    QemuArgument,
    Xml,
    read_from,
)
from harness.model.values import format_limits, format_list, read_block_device_limits
from harness.untrusted import parse_json, reading

_ARGUMENTS = read_from(QemuArgument, GUEST_OPTIONS)
PID_FILE = "/run/libvirt/qemu/{name}.pid"
_LOGS = "/var/log/libvirt/qemu"


def name_log(name: str, directory: str = _LOGS) -> str:
    """The file to which libvirt writes the output of this guest's QEMU. Its last line says why the guest ended."""
    return f"{directory}/{name}.log"


@dataclass(frozen=True, slots=True)
class QemuProcess:
    """The block devices in QEMU's arguments, by node name, its AIO engines, and all arguments."""

    nodes: Mapping[str, Mapping[str, Any]]
    engines: Engines
    arguments: Sequence[str] = ()

    @property
    def files(self) -> Effective:
        """What its arguments show of the guest: the program, the kernel and the initramfs."""
        given: dict[str, Any] = dict(pairwise(self.arguments)) | {"": next(iter(self.arguments), None)}
        return Effective(**{setting: given.get(source.name) for setting, source in _ARGUMENTS.items()})

    def aio(self, node: str) -> str | None:
        """The engine in effect: the requested one, unless QEMU dropped it or never set it up. None over a network."""
        *formats, storage = self._list_layers(node)
        if storage.get("driver") in NETWORK_DRIVERS:
            return None
        # A node that leads to the storage without a format is raw.
        image_format = formats[0]["driver"] if formats else "raw"
        return self.engines.in_effect(storage.get("aio", "threads"), image_format)

    def network(self, node: str) -> str | None:
        """The driver of the network that has the data; None if a file or a device of the host has it."""
        *_, storage = self._list_layers(node)
        return str(storage["driver"]) if storage["driver"] in NETWORK_DRIVERS else None

    def discard(self, node: str) -> str:
        """`unmap` if every layer of block devices passes discards on."""
        return "unmap" if all(layer.get("discard") == "unmap" for layer in self._list_layers(node)) else "ignore"

    def _list_layers(self, node: str) -> Iterator[Mapping[str, Any]]:
        """The node of a device (raw, qcow2) and the nodes below it, down to the file or host device."""
        for _ in range(len(self.nodes) + 1):
            if node not in self.nodes:
                raise GuestError(f"QEMU's arguments have no block device {node}; they have {', '.join(self.nodes)}")
            layer = self.nodes[node]
            yield layer
            if not isinstance(layer.get("file"), str):
                return
            node = layer["file"]
        raise GuestError(f"QEMU's block device {node} is its own layer")


def read_process(runner: Runner, guest: str) -> QemuProcess:
    """The QEMU process of the running guest called `guest` in libvirt."""
    pid_file = PID_FILE.format(name=guest)
    printed = look_at_process(runner, pid_file, log=name_log(guest)).stdout
    with reading(f"{runner.name}: the command line of QEMU, guest {guest},", GuestError):
        process = parse_process(printed)
    if not process.nodes and "argument" not in printed:
        raise GuestError(f"{runner.name}: {pid_file} leads to no QEMU process of guest {guest}")
    return process


def parse_process(printed: str) -> QemuProcess:
    """The process, from what the host printed about it. Pure."""
    inspected = parse_inspected(printed)
    nodes = {}
    for option, value in pairwise(inspected.arguments):
        if option == "-blockdev" and value.startswith("{"):
            node = parse_json(value, "-blockdev", GuestError)
            nodes[node["node-name"]] = node
    return QemuProcess(nodes, inspected.engines, inspected.arguments)


_TYPE = "-x86_64-cpu"
_POLICIES = {"bind": "strict"}
"""libvirt's name of a policy for memory, where it differs from QEMU's."""


_POLLING = read_from(IothreadInfo, GUEST_OPTIONS)


@dataclass(frozen=True, slots=True)
class Iothread:
    """An iothread: the id of its thread on the host, and its polling."""

    thread: int
    polling: Effective


@dataclass(frozen=True, slots=True)
class GuestSize:
    """What is read once for all disks of a guest. `whole` belongs to the guest, `iothreads` are by QEMU's name."""

    whole: Effective = NOTHING
    iothreads: Mapping[str, Iothread] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)

    def of_disk(self, names: Iterable[str]) -> Effective:
        """The settings of the guest, and those of the iothreads that serve a disk."""
        serving = [self.iothreads[name] for name in names if name in self.iothreads]
        effective = self.whole
        for thread in serving:
            effective = effective.merged(thread.polling)
        return effective.merged(Effective(host_iothread_cpus=self.placement.of(thread.thread for thread in serving)))


def read_size(connection: Connection, domain: Any, host: Runner, live: ET.Element) -> GuestSize:
    """The size and placement of the running guest. `live` is the domain as libvirt runs it."""
    with reading(f"host {connection.host}: the size of the guest as QEMU reports it", GuestError):
        vcpus = sorted(ask(connection, domain, "query-cpus-fast"), key=lambda vcpu: int(vcpu["cpu-index"]))
        memory = int(ask(connection, domain, "query-memory-size-summary")["base-memory"])
        model = ask(connection, domain, "qom-get", path=vcpus[0]["qom-path"], property="type")
        backends = ask(connection, domain, "query-memdev")
        threads = ask(connection, domain, "query-iothreads")
        placement = read_placement(host, PID_FILE.format(name=domain.name()), memory)
        whole = Effective(
            qemu_cpu=model.removesuffix(_TYPE),
            qemu_vcpus=len(vcpus),
            qemu_memory=memory,
            **_count_topology([vcpu["props"] for vcpu in vcpus]),  # type: ignore[arg-type] # numbers, which are checked
            **_read_numa(live, backends, placement),  # type: ignore[arg-type] # texts
        )
        return GuestSize(
            whole.merged(placement.effective(int(vcpu["thread-id"]) for vcpu in vcpus)),
            {str(thread["id"]): _read_iothread(thread) for thread in threads},
            placement,
        )


def _count_topology(vcpus: list[dict[str, int]]) -> dict[str, int]:
    """How many sockets, cores of a socket and threads of a core the vCPUs are spread over.

    Dies, clusters and modules, if QEMU has any, are one each, because none is requested.
    """
    sockets = {vcpu["socket-id"] for vcpu in vcpus}
    cores = {(vcpu["socket-id"], vcpu["core-id"]) for vcpu in vcpus}
    return {
        "qemu_sockets": len(sockets),
        "qemu_cores": len(cores) // len(sockets),
        "qemu_threads": len(vcpus) // len(cores),
    }


def _read_numa(live: ET.Element, backends: list[dict[str, Any]], placement: Placement) -> dict[str, str]:
    """The nodes of the guest's memory and the policy, if there is one.

    QEMU reports them for its backends. If libvirt only restricts the process (by its cgroup), the kernel does.
    """
    tune = live.find("numatune/memory")
    bound = [backend for backend in backends if backend.get("policy", "default") != "default"]
    if bound:
        nodes = format_list(int(node) for backend in bound for node in backend["host-nodes"])
        policy = str(bound[0]["policy"])
        return {"qemu_numa_nodes": nodes, "qemu_numa_mode": _POLICIES.get(policy, policy)}
    if tune is None:
        return {}
    return {"qemu_numa_nodes": placement.nodes, "qemu_numa_mode": tune.get("mode", "strict")}


def _read_iothread(reported: Mapping[str, Any]) -> Iothread:
    polling = Effective(**{setting: reported[source.key] for setting, source in _POLLING.items()})
    return Iothread(int(reported["thread-id"]), polling)


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
        program = self.process.files.merged(Effective(qemu_version=self.version))
        images = find_brought(GuestImages)
        return program if images is None else program.merged(images.read(self.live))

    @property
    def machine(self) -> Effective:
        """What libvirt shows of the guest as a whole."""
        return Effective(**{setting: place.read(self.live) for setting, place in read_from(Xml, GUEST_OPTIONS).items()})


def running(connection: Connection, domain: Any, host: Runner) -> Running:
    """The guest as its host runs it now."""
    process, live = read_process(host, domain.name()), live_xml(connection, domain)
    blocks = ask(connection, domain, "query-block")
    version = parse_version(ask(connection, domain, "query-version"), connection.host)
    return Running(live, process, blocks, read_size(connection, domain, host, live), version)


def parse_version(answer: Any, host: str) -> str:
    """For example "10.0.2 (Debian 1:10.0.2+ds-2)"."""
    with reading(f"host {host}: the version of QEMU", GuestError):
        numbers = ".".join(str(int(answer["qemu"][part])) for part in ("major", "minor", "micro"))
        package = str(answer.get("package") or "").strip().removeprefix("(").removesuffix(")")
        return f"{numbers} ({package})" if package else numbers


def live_xml(connection: Connection, domain: Any) -> ET.Element:
    """The domain as libvirt runs it now."""
    with reading(f"host {connection.host}: libvirt's XML of the guest", GuestError):
        return ET.fromstring(connection.call("show the guest", domain.XMLDesc, deadline=60))


def read_effective(connection: Connection, domain: Any, guest: Running, alias: str) -> Effective:
    """The effective configuration of the disk with this alias in libvirt, QEMU's block layer, device and process."""
    with reading(f"host {connection.host}: how QEMU serves the guest's disk {alias}", GuestError):
        return _merge_effective(connection, domain, guest, alias)


def _merge_effective(connection: Connection, domain: Any, guest: Running, alias: str) -> Effective:
    live, process = guest.live, guest.process
    disk = find_disk(live, alias)
    controller = find_controller(live, disk)
    entry = find_block_device(guest, alias)
    inserted, node = entry["inserted"], entry["inserted"]["node-name"]
    devices = _DiskDevices(connection, domain, alias, controller)
    limits = read_block_device_limits(inserted)
    sharing = [other for other in live.iterfind(_DISKS) if find_controller(live, other) is controller]
    iothreads = devices.queues.iothreads
    is_qcow2 = inserted["drv"] == "qcow2"
    top = process.nodes.get(node, {})
    effective = Effective(
        libvirt_disk=format_definition(disk, controller),
        iothread=_has_thread((disk if controller is None else controller).find("driver")),
        controller_disks=len(sharing) if controller is not None else None,
        qemu_iothread=bool(iothreads),
        qemu_iothreads=len(iothreads),
        qemu_aio=process.aio(node),
        qemu_discard=process.discard(node),
        qemu_block_driver=process.network(node) or inserted["drv"],
        qemu_backing_files=inserted.get("backing_file_depth") if is_qcow2 else None,
        qemu_data_file="data-file" in top if is_qcow2 else None,
        qemu_iops_limit=format_limits(limits, "iops"),
        qemu_bw_limit=format_limits(limits, "bps"),
        **dict(_read_options(disk, devices, inserted, top)),
    )
    return effective.merged(guest.machine).merged(guest.size.of_disk(iothreads)).merged(guest.program)


def read_vhost_user(connection: Connection, domain: Any, guest: Running, alias: str) -> Effective:
    """The device of a disk that another process serves. QEMU knows nothing about what is behind it."""
    with reading(f"host {connection.host}: the device of the guest's disk {alias}", GuestError):
        devices = _DiskDevices(connection, domain, alias, None)
        effective = Effective(**dict(_read_options(find_disk(guest.live, alias), devices, None, {})))
        return guest.size.of_disk(()).merged(guest.machine).merged(effective)


class _DiskDevices:
    """The devices of a disk in QEMU: its own, and that of its queues, which for virtio-scsi is the controller."""

    def __init__(self, connection: Connection, domain: Any, alias: str, controller: ET.Element | None) -> None:
        self.disk = QemuDevice(connection, domain, alias)
        self.queues = self.disk if controller is None else QemuDevice(connection, domain, _get_alias(controller))


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
                yield shown.setting, (devices.queues if of_queues else devices.disk).get(*names)
            case BlockInfo() as block if inserted is not None:
                yield shown.setting, block.read(inserted)
            case BlockNode(key) if key in node:
                yield shown.setting, node[key]


def read_passed_through(connection: Connection, domain: Any, host: Runner, disk: PassedDevice, alias: str) -> Effective:
    """The host's device that QEMU passes through under this alias, and its driver on the host."""
    with reading(f"host {connection.host}: how QEMU passes {alias} through", GuestError):
        device = QemuDevice(connection, domain, alias)
        passed = Effective(qemu_device=device.get("type"), qemu_host=device.get("host"))
        return passed.merged(disk.read_effective(host))


def find_disk(live: ET.Element, alias: str) -> ET.Element:
    """The disk with this alias."""
    for disk in live.iterfind(_DISKS):
        if _get_alias(disk) == alias:
            return disk
    there = ", ".join(_get_alias(disk) for disk in live.iterfind(_DISKS)) or "none"
    raise GuestError(
        f"guest {live.findtext('name')}: libvirt shows no disk {alias}; it has {there}",
        hint="it was detached while the guest was running: virsh dumpxml shows the remaining disks",
    )


def format_definition(disk: ET.Element, controller: ET.Element | None) -> str:
    """The options of a disk, and of its controller, as XML, without what only this guest has."""
    parts = [_copy_options(disk, ("type", "device"), ("driver", "blockio", "readonly"))]
    target = copy_attributes(disk.find("target"))
    ET.SubElement(parts[0], "target", {"bus": target.get("bus", "")})
    if controller is not None:
        parts.append(_copy_options(controller, ("type", "model"), ("driver",)))
    for part in parts:
        for driver in part.iter("driver"):
            if "iothread" in driver.attrib:
                driver.set("iothread", "1")
            for number, thread in enumerate(driver.iterfind("iothreads/iothread"), start=1):
                thread.set("id", str(number))
        ET.indent(part)
    return "\n".join(ET.tostring(part, encoding="unicode").strip() for part in parts)


def _copy_options(device: ET.Element, attributes: Collection[str], children: Collection[str]) -> ET.Element:
    kept = ET.Element(device.tag, {name: value for name, value in device.attrib.items() if name in attributes})
    kept.extend(deepcopy(child) for child in device if child.tag in children)
    return kept


def find_controller(live: ET.Element, disk: ET.Element) -> ET.Element | None:
    """The controller of a SCSI disk, which has the queues and the iothread instead of the disk. None on other buses."""
    if copy_attributes(disk.find("target")).get("bus") != "scsi":
        return None
    index = copy_attributes(disk.find("address")).get("controller")
    for controller in live.iterfind("devices/controller[@type='scsi']"):
        if controller.get("index") == index:
            return controller
    raise GuestError(
        f"guest {live.findtext('name')}: libvirt shows no SCSI controller {index} for disk {_get_alias(disk)}"
    )


def _get_alias(device: ET.Element) -> str:
    return copy_attributes(device.find("alias")).get("name", "")


def copy_attributes(element: ET.Element | None) -> dict[str, str]:
    return dict(element.attrib) if element is not None else {}


def _has_thread(driver: ET.Element | None) -> bool:
    return driver is not None and ("iothread" in driver.attrib or driver.find("iothreads/iothread") is not None)


def find_block_device(guest: Running, alias: str) -> dict[str, Any]:
    """The block layer behind the disk's device."""
    entry = find_device_entry(alias, guest.blocks)
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
            self._names = {entry["name"] for entry in listed}

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
            return tuple(str(queues["iothread"]) for queues in mapping)
        name = str(self.get("iothread") or "").rpartition("/")[2]
        return (name,) if name else ()
