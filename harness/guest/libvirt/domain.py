"""The domain XML of a guest: its size and placement, what it boots, its disks and their controllers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, cycle, islice, product
from string import ascii_lowercase
from typing import Literal, Protocol
from xml.etree import ElementTree as ET

from harness.errors import Unsupported
from harness.guest.protocol import GuestDisk
from harness.layout import NetworkDisk
from harness.model.attach import ATTACH_OPTIONS, Attach, Attachment, Vfio
from harness.model.guest import ANY_GUEST, GUEST_MEMORY, GuestOptions
from harness.model.option import BUSES, Bus, OnController, QemuOverride, Xml

MachineType = Literal["q35", "pc"]

NETWORK_SLOT = 0x1E
_SLOTS = range(2, NETWORK_SLOT)  # 0 is the host bridge, 1 is for a graphics card or IDE; 0x1f is q35's chip set
_FUNCTIONS = range(8)


class RootBus:
    """Slots for devices on the guest's root bus. `settle` assigns them when all devices are known.

    Without an address, libvirt puts each device behind its own PCIe root port. The guest's kernel probes these ports
    one by one, which takes half of the boot time of a nested guest.
    """

    def __init__(self) -> None:
        self._addresses: list[ET.Element] = []

    def place(self, device: ET.Element) -> None:
        self._addresses.append(ET.SubElement(device, "address", type="pci", domain="0x0000", bus="0x00"))

    def settle(self) -> None:
        """Give each device a slot. If there are more devices than slots, eight share a slot as its functions."""
        crowded = len(self._addresses) > len(_SLOTS)
        places = list(product(_SLOTS, _FUNCTIONS if crowded else (0,)))
        if len(self._addresses) > len(places):
            raise Unsupported(
                f"{len(self._addresses)} devices do not fit on a guest's root bus, which has room for {len(places)}",
                hint="select fewer modes with -k",
            )
        for address, (slot, function) in zip(self._addresses, places, strict=False):
            address.set("slot", f"{slot:#04x}")
            address.set("function", f"{function:#x}")
            if crowded and function == 0:
                address.set("multifunction", "on")


class DriveNames:
    """libvirt's names of disks: `sda` to `sdz`, then `sdaa`. The guest's own names may differ. `taken` are left out."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._numbers = {prefix: count() for prefix in ("vd", "sd", "hd", "nvme")}
        self._taken = taken

    def next(self, prefix: str) -> str:
        return next(name for name in self._all(prefix) if name not in self._taken)

    def _all(self, prefix: str) -> Iterator[str]:
        for number in self._numbers[prefix]:
            yield f"nvme{number}n1" if prefix == "nvme" else prefix + _format_letters(number)


def place_on_controller(disk: ET.Element, controller: int, *, bus: int = 0, unit: int = 0) -> None:
    ET.SubElement(disk, "address", type="drive", controller=str(controller), bus=str(bus), target="0", unit=str(unit))


def _format_letters(number: int) -> str:
    higher, last = divmod(number, len(ascii_lowercase))
    return (_format_letters(higher - 1) if higher else "") + ascii_lowercase[last]


_NAME_PREFIX = {"virtio": "vd", "scsi": "sd", "sata": "sd", "ide": "hd", "nvme": "nvme"}
"""The prefix of disk names on each bus, by libvirt's name of the bus."""
_IDE_UNITS = 2
"""Disks per channel."""
_OF_CONTROLLER: Mapping[str, OnController | QemuOverride] = {
    option: place
    for option, row in ATTACH_OPTIONS.items()
    if isinstance(place := row.place("virtio-scsi"), OnController | QemuOverride)
}
"""Where the options are that the controller of a SCSI disk has."""
_OF_THREADS = ("iothread", "iothread_vq_mapping", "poll_max_ns")
"""The options of its iothreads, which it has as well."""
_ELEMENTS = ("driver", "source", "target", "address", "blockio", "readonly", "shareable", "iotune", "serial", "alias")
_ATTRIBUTES = ("name", "type", "discard", "detect_zeroes", "cache", "io", "iothread")


def name_alias(disk: GuestDisk) -> str:
    """The alias of the disk's device in libvirt and QEMU. libvirt reserves the prefix `ua-` for users."""
    return f"ua-{disk.serial}"


def choose_machine(disks: tuple[GuestDisk, ...], options: GuestOptions = ANY_GUEST) -> MachineType:
    """The family of the machine: q35, or i440fx (`pc`) if it is requested or a disk is on IDE, which q35 does not have.

    Raises Unsupported if the disks or the request need both.
    """
    with_ide = [disk.name for disk in disks if isinstance(disk.attach, Attach) and disk.attach.bus == "ide"]
    passed = [disk.name for disk in disks if isinstance(disk.attach, Vfio)]
    if with_ide and passed:
        raise Unsupported(
            f"no machine type has both IDE, which {with_ide[0]} requests, and PCIe, which {passed[0]} needs",
            hint="measure them in separate runs, selected with -k",
        )
    for disk in disks:
        if why := refuse_machine(disk.attach, options):
            raise Unsupported(f"{disk.name}: {why}")
    return "pc" if with_ide or _choose_family(options) == "pc" else "q35"


def refuse_machine(attach: Attachment, options: GuestOptions) -> str | None:
    """Why a disk cannot be attached in this way to a guest of the requested machine type; None if it can."""
    needed = "PCIe" if isinstance(attach, Vfio) else "IDE" if isinstance(attach, Attach) and attach.bus == "ide" else ""
    family = _choose_family(options)
    if (needed, family) not in (("PCIe", "pc"), ("IDE", "q35")):
        return None
    other = "q35" if family == "pc" else "pc"
    return f'machine = "{options.machine}" has no {needed}: request a machine type of {other}, or none'


def _choose_family(options: GuestOptions) -> MachineType | None:
    if options.machine is None:
        return None
    return "q35" if "q35" in options.machine else "pc"


def assign_root_ports(disks: tuple[GuestDisk, ...]) -> dict[str, int]:
    """The number of the PCIe bus for each disk that is passed through, by the disk's name."""
    passed = (disk.name for disk in disks if isinstance(disk.attach, Vfio))
    return {name: number for number, name in enumerate(passed, start=1)}


@dataclass(frozen=True, slots=True)
class UsedIds:
    """What a running VM has: the highest id of an iothread, the SCSI controllers by index, and the names of disks."""

    threads: int = 0
    scsi: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()


NOTHING_USED = UsedIds()


class DomainDisks:
    """Adds disks to a domain's devices.

    Each disk has its own controller, so modes share no queue and no thread. The exception is a mode that requests a
    shared controller: modes that request the same one share it. `threads` is the highest id of an iothread in use. What
    is `taken` belongs to the VM that the disks are plugged into.
    """

    def __init__(self, devices: ET.Element, bus: RootBus, machine: MachineType, taken: UsedIds = NOTHING_USED) -> None:
        self.threads = taken.threads
        self.overrides: dict[str, dict[str, int | bool]] = {}
        """QEMU's properties by libvirt's alias of a SCSI controller. libvirt has no attributes for them."""
        self.polling: dict[int, int] = {}
        """The longest polling in nanoseconds by the number of the iothread, if its disk requests one."""
        self._devices = devices
        self._bus = bus
        self._machine = machine
        self._names = DriveNames(taken.names)
        self._numbers: dict[Bus, Iterator[int]] = {bus: count() for bus in BUSES}
        # From the lowest: libvirt adds all controllers that are missing below the one that a new disk is on.
        self._numbers["virtio-scsi"] = (number for number in count() if number not in taken.scsi)
        self._ports = count(1)
        self._shared: dict[tuple[object, ...], tuple[int, count[int]]] = {}

    def add(self, disk: GuestDisk, *, shared: bool = False, socket: str | None = None) -> None:
        """Add the disk and its controller. For a disk that is passed through, add only the port for it.

        `shared` is for a source that another disk of this guest or of another one also uses: QEMU would refuse to open
        it twice. `socket` is where a storage daemon serves the disk.
        """
        if not isinstance(disk.attach, Attach):
            # The root bus is number 0.
            self._bus.place(self._add_controller("pci", next(self._ports), model="pcie-root-port"))
            return
        attach = disk.attach
        if socket is not None:
            self._add_served(disk, attach, socket)
            return
        network = disk.source.network
        element = ET.SubElement(self._devices, "disk", type="network" if network else disk.source.kind)
        ET.SubElement(element, "driver", name="qemu", type=disk.source.format)
        path = {"dev" if disk.source.kind == "block" else "file": disk.source.path}
        source = ET.SubElement(element, "source", {} if network else path)
        if disk.source.data_file:
            store = ET.SubElement(source, "dataStore", type="file")
            ET.SubElement(store, "format", type="raw")
            ET.SubElement(store, "source", file=disk.source.data_file)
        name = self._names.next(_NAME_PREFIX[BUSES[attach.bus].hypervisor])
        target = ET.SubElement(element, "target", dev=name, bus=BUSES[attach.bus].hypervisor)
        if attach.ssd:
            target.set("rotation_rate", "1")
        _write_limits(element, attach)
        for option, row in ATTACH_OPTIONS.items():
            if isinstance(place := row.place(attach.bus), Xml):
                place.write(element, getattr(attach, option))
        if network:
            _write_network(source, network)
            # Clients of the network have no engine of the kernel.
            _get_driver(element).attrib.pop("io", None)
        self._attach(element, attach)
        if shared:
            ET.SubElement(element, "shareable")
        if attach.device == "disk":
            # A LUN shows the guest the serial number of the host's disk.
            ET.SubElement(element, "serial").text = disk.serial
        ET.SubElement(element, "alias", name=name_alias(disk))
        _sort(element)

    def _add_served(self, disk: GuestDisk, attach: Attach, socket: str) -> None:
        """A disk of a storage daemon. libvirt accepts only options of the virtio device."""
        element = ET.SubElement(self._devices, "disk", type="vhostuser", device="disk", snapshot="no")
        ET.SubElement(element, "driver", name="qemu", type="raw")
        ET.SubElement(element, "source", type="unix", path=socket)
        name = self._names.next(_NAME_PREFIX[BUSES[attach.bus].hypervisor])
        ET.SubElement(element, "target", dev=name, bus=BUSES[attach.bus].hypervisor)
        for option, row in ATTACH_OPTIONS.items():
            if row.is_virtio and isinstance(place := row.place(attach.bus), Xml):
                place.write(element, getattr(attach, option))
        self._bus.place(element)
        ET.SubElement(element, "alias", name=name_alias(disk))

    def _attach(self, disk: ET.Element, attach: Attach) -> None:
        match attach.bus:
            case "virtio-blk":
                self._set_threads(_get_driver(disk), attach)
                self._bus.place(disk)
            case "sata":
                index, unit = divmod(next(self._numbers["sata"]), BUSES["sata"].most)
                # The first controller of q35 is part of its chip set.
                if unit == 0 and (index > 0 or self._machine == "pc"):
                    self._bus.place(self._add_controller("sata", index))
                place_on_controller(disk, index, unit=unit)
            case "ide":
                number = next(self._numbers["ide"])
                if number == BUSES["ide"].most:
                    raise Unsupported(
                        f"a guest has room for {number} disks on IDE",
                        hint='select fewer modes with bus = "ide" with -k',
                    )
                place_on_controller(disk, 0, bus=number // _IDE_UNITS, unit=number % _IDE_UNITS)
            case "nvme":
                index = next(self._numbers["nvme"])
                self._bus.place(self._add_controller("nvme", index))
                place_on_controller(disk, index)
            case _:
                index, unit = self._choose_scsi_place(attach)
                place_on_controller(disk, index, unit=unit)

    def _choose_scsi_place(self, attach: Attach) -> tuple[int, int]:
        """Index and unit on a SCSI controller. Adds the controller if necessary."""
        if attach.controller == "single":
            return self._add_scsi_controller(attach), 0
        alike = tuple(getattr(attach, option) for option in (*_OF_CONTROLLER, *_OF_THREADS))
        if alike not in self._shared:
            self._shared[alike] = self._add_scsi_controller(attach), count()
        index, units = self._shared[alike]
        return index, next(units)

    def _add_scsi_controller(self, attach: Attach) -> int:
        # SCSI controllers of all models are numbered together.
        index = next(self._numbers["virtio-scsi"])
        controller = self._add_controller("scsi", index, model=str(BUSES[attach.bus].scsi_model))
        driver = ET.SubElement(controller, "driver")
        properties = {}
        for option, place in _OF_CONTROLLER.items():
            value = getattr(attach, option)
            if isinstance(place, OnController):
                place.xml.write(controller, value)
            elif value is not None:
                properties[place.name] = value
        self._set_threads(driver, attach)
        if not driver.attrib and not len(driver):
            controller.remove(driver)
        self._bus.place(controller)
        if properties:
            self.overrides[f"scsi{index}"] = properties
        return index

    def _set_threads(self, driver: ET.Element, attach: Attach) -> None:
        """Set the iothreads of the queues: virtio-blk has them on the disk, virtio-scsi on the controller."""
        numbers = range(self.threads + 1, self.threads + attach.threads + 1)
        threads = [str(number) for number in numbers]
        self.threads += len(threads)
        if attach.poll_max_ns is not None:
            self.polling |= dict.fromkeys(numbers, attach.poll_max_ns)
        if attach.iothread_vq_mapping:
            among = ET.SubElement(driver, "iothreads")
            for thread in threads:
                ET.SubElement(among, "iothread", id=thread)
        elif threads:
            driver.set("iothread", threads[0])

    def _add_controller(self, kind: str, index: int, **model: str) -> ET.Element:
        return ET.SubElement(self._devices, "controller", {"type": kind, "index": str(index), **model})


def _get_driver(device: ET.Element) -> ET.Element:
    driver = device.find("driver")
    assert driver is not None, "every disk has one"
    return driver


def _write_network(source: ET.Element, disk: NetworkDisk) -> None:
    source.set("protocol", disk.protocol)
    source.set("name", disk.name)
    if disk.config is not None:
        ET.SubElement(source, "config", file=disk.config)
    if disk.login is not None:
        user, secret = disk.login
        ET.SubElement(ET.SubElement(source, "auth", username=user), "secret", type="ceph", uuid=secret)


def _write_limits(disk: ET.Element, attach: Attach) -> None:
    """The limits of I/O with their bursts, which are several options of the attachment."""
    for limited, limit in attach.limits.items():
        for name, value in limit.settings(limited).items():
            rest = name.removeprefix("-".join(limited)).replace("-", "_")
            Xml(f"iotune/{limited.in_libvirt}{rest}", int).write(disk, value)


def _sort(disk: ET.Element) -> None:
    """Put the disk's elements, and the attributes of its driver, into the order of golden files."""
    places = {tag: number for number, tag in enumerate(_ELEMENTS)}
    disk[:] = sorted(disk, key=lambda element: places.get(element.tag, len(places)))
    driver = _get_driver(disk)
    given = dict(driver.attrib)
    driver.attrib.clear()
    driver.attrib.update({name: given.pop(name) for name in _ATTRIBUTES if name in given} | given)


class GuestSystem(Protocol):
    """What a guest boots from in place of a kernel and an initramfs."""

    def add_firmware(self, system: ET.Element) -> None:
        """Add the firmware to the element `os`."""

    def add_disks(self, devices: ET.Element, bus: RootBus) -> UsedIds:
        """Add the disks of the system to the `devices`. Returns the names that they have."""


CPU_MODES = {"host": "host-passthrough", "max": "maximum"}
"""libvirt's mode of the CPU for the two names that are not models."""


def add_memory_backing(domain: ET.Element, options: GuestOptions, *, shared: bool = False) -> None:
    """The pages of the memory. `shared` lets other processes map it: those that serve disks by vhost-user."""
    if options.hugepages is None and not shared:
        return
    backing = ET.SubElement(domain, "memoryBacking")
    if options.hugepages is not None:
        pages = ET.SubElement(backing, "hugepages")
        ET.SubElement(pages, "page", size=str(options.hugepages // 1024), unit="KiB")
    if shared:
        ET.SubElement(backing, "source", type="memfd")
        ET.SubElement(backing, "access", mode="shared")


def add_numa(domain: ET.Element, options: GuestOptions) -> None:
    if options.numa_nodes is not None:
        tune = ET.SubElement(domain, "numatune")
        ET.SubElement(tune, "memory", mode=options.numa_mode or "strict", nodeset=options.numa_nodes)


def add_cpu(domain: ET.Element, options: GuestOptions, *, accel: str) -> None:
    """The CPU model and the topology. By default all that the host has, or that QEMU can emulate."""
    model = options.cpu or ("host" if accel == "kvm" else "max")
    if mode := CPU_MODES.get(model):
        cpu = ET.SubElement(domain, "cpu", mode=mode)
    else:
        # Without a fallback, libvirt refuses a model that it cannot provide.
        cpu = ET.SubElement(domain, "cpu", mode="custom", match="exact")
        ET.SubElement(cpu, "model", fallback="forbid").text = model
    if options.topology is not None:
        sockets, cores, threads = map(str, options.topology)
        ET.SubElement(cpu, "topology", sockets=sockets, cores=cores, threads=threads)


def add_polling(thread_ids: ET.Element, options: GuestOptions, iothreads: int, of_disks: Mapping[int, int]) -> None:
    """Polling of each iothread. libvirt numbers them from 1. `of_disks` has the times that disks request."""
    for number in range(1, iothreads + 1) if options.polls or of_disks else ():
        thread = ET.SubElement(thread_ids, "iothread", id=str(number))
        polls = options.polls | ({"max": of_disks[number]} if number in of_disks else {})
        if polls:
            ET.SubElement(thread, "poll", {name: str(value) for name, value in polls.items()})


def add_pins(tune: ET.Element, options: GuestOptions, *, vcpus: int, iothreads: int, pinned_cpu: int | None) -> None:
    """The host's CPUs of each thread. Without a request, all vCPUs are pinned to `pinned_cpu`, if it is not None.

    QEMU's other threads are then pinned to the CPUs before it, if there are any.
    """
    only = () if pinned_cpu is None else (str(pinned_cpu),)
    others = f"0-{pinned_cpu - 1}" if pinned_cpu else None
    if lists := options.pin_vcpus or only:
        for vcpu, cpus in enumerate(islice(cycle(lists), vcpus)):
            ET.SubElement(tune, "vcpupin", vcpu=str(vcpu), cpuset=cpus)
    emulator, serving = options.pin_emulator or others, options.pin_iothreads or others
    if emulator:
        ET.SubElement(tune, "emulatorpin", cpuset=emulator)
    for number in range(1, iothreads + 1) if serving else ():
        ET.SubElement(tune, "iothreadpin", iothread=str(number), cpuset=str(serving))


QEMU_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
NAMESPACE = "urn:virt-overhead"

GUEST_ADDRESS = "10.0.2.15/24,10.0.2.2"
"""The address and gateway that QEMU's user-mode network gives to its first guest."""

_ADDRESS = f"virt_overhead.ip={GUEST_ADDRESS}"
_ROOT_BUS: Mapping[MachineType, str] = {"q35": "pcie.0", "pc": "pci.0"}

_COMMAND_LINE = (
    "console=ttyS0 quiet",
    # Faster boot without an effect on figures: no calibration against emulated timers, no self-tests of cryptography,
    # no security modules, and no search for PCI buses that ACPI does not list (32 reads on each of 255 buses, by
    # pcibios_fixup_peer_bridges()). The kernel's choice of mitigations is unchanged.
    "tsc=reliable no_timer_check cryptomgr.notests lsm= pci=lastbus=0",
)


@dataclass(frozen=True, slots=True)
class GuestSpec:
    """A guest to start. `ssh_port` is the port of its SSH server on the host's loopback interface.

    `pinned_cpu` is the host CPU to which all vCPUs are pinned; QEMU's other threads are pinned to the CPUs before it.
    None does not pin them. The `options` win over it, and over `memory`.
    """

    name: str
    uuid: str
    run_id: str
    accel: str
    kernel: str
    initramfs: str
    ssh_port: int
    console: str
    disks: tuple[GuestDisk, ...]
    vcpus: int = 1
    pinned_cpu: int | None = None
    memory: int = GUEST_MEMORY
    options: GuestOptions = ANY_GUEST
    sockets: Mapping[str, str] = field(default_factory=dict)
    """The socket of each disk that a storage daemon serves, by the disk's name."""
    system: GuestSystem | None = None
    """What it boots from instead of kernel and initramfs."""


def build_domain_xml(spec: GuestSpec) -> str:
    """The guest's domain XML. It sets every disk option, so no default of libvirt or QEMU applies."""
    ET.register_namespace("qemu", QEMU_NAMESPACE)
    ET.register_namespace("voh", NAMESPACE)
    domain = ET.Element("domain", type="kvm" if spec.accel == "kvm" else "qemu")
    _add_text(domain, "name", spec.name)
    _add_text(domain, "uuid", spec.uuid)
    _add_text(ET.SubElement(domain, "metadata"), f"{{{NAMESPACE}}}run", spec.run_id)
    _add_text(domain, "memory", str((spec.options.memory or spec.memory) >> 20), unit="MiB")
    add_memory_backing(domain, spec.options, shared=bool(spec.sockets))
    _add_text(domain, "vcpu", str(spec.vcpus))
    threads = ET.SubElement(domain, "iothreads")
    thread_ids = ET.SubElement(domain, "iothreadids")
    tune = ET.SubElement(domain, "cputune")
    add_numa(domain, spec.options)
    machine = choose_machine(spec.disks, spec.options)
    _add_boot(domain, spec, machine)
    features = ET.SubElement(domain, "features")
    ET.SubElement(features, "acpi")
    ET.SubElement(features, "apic")
    if spec.options.hide_kvm:
        ET.SubElement(ET.SubElement(features, "kvm"), "hidden", state="on")
    add_cpu(domain, spec.options, accel=spec.accel)
    _add_text(domain, "on_reboot", "destroy")
    devices = _add_devices(domain, spec.options)
    bus = RootBus()
    ET.SubElement(devices, "controller", type="usb", model="none")
    bus.place(ET.SubElement(devices, "controller", type="virtio-serial", index="0"))
    taken = NOTHING_USED if spec.system is None else spec.system.add_disks(devices, bus)
    disks = DomainDisks(devices, bus, machine, taken)
    users = Counter(disk.source.path for disk in spec.disks)
    for disk in spec.disks:
        shared = disk.shared or users[disk.source.path] > 1
        disks.add(disk, shared=shared, socket=spec.sockets.get(disk.name))
    bus.settle()
    if disks.threads:
        threads.text = str(disks.threads)
    else:
        domain.remove(threads)
    add_polling(thread_ids, spec.options, disks.threads, disks.polling)
    add_pins(tune, spec.options, vcpus=spec.vcpus, iothreads=disks.threads, pinned_cpu=spec.pinned_cpu)
    for element in (thread_ids, tune):
        if not len(element):
            domain.remove(element)
    # Without `append`, virtlogd replaces the file by a new one, so that it is no longer the file that the run has made.
    ET.SubElement(ET.SubElement(devices, "serial", type="file"), "source", path=spec.console, append="on")
    channel = ET.SubElement(devices, "channel", type="unix")
    ET.SubElement(channel, "target", type="virtio", name="org.qemu.guest_agent.0")
    ET.SubElement(devices, "memballoon", model="none")
    ET.SubElement(ET.SubElement(devices, "video"), "model", type="none")
    _add_network(domain, spec.ssh_port, machine)
    _override(domain, disks.overrides)
    ET.indent(domain)
    return ET.tostring(domain, encoding="unicode")


def _add_boot(domain: ET.Element, spec: GuestSpec, machine: MachineType) -> None:
    """What it boots."""
    system = ET.SubElement(domain, "os")
    _add_text(system, "type", "hvm", arch="x86_64", machine=spec.options.machine or machine)
    if spec.system is not None:
        spec.system.add_firmware(system)
    else:
        _add_text(system, "kernel", spec.kernel)
        _add_text(system, "initrd", spec.initramfs)
        _add_text(system, "cmdline", " ".join((*_COMMAND_LINE, *spec.options.idle_words, _ADDRESS)))


def _add_devices(domain: ET.Element, options: GuestOptions) -> ET.Element:
    """The element for the devices, with the program of QEMU if it is requested."""
    devices = ET.SubElement(domain, "devices")
    if options.emulator is not None:
        _add_text(devices, "emulator", options.emulator)
    return devices


def _add_network(domain: ET.Element, ssh_port: int, machine: MachineType) -> None:
    # User-mode networking with a forwarded port works on every host, without a bridge, a DHCP server or firewall rules.
    # libvirt 9 (Debian 12) has no element for the forwarded port, so it is an argument for QEMU.
    arguments = ET.SubElement(domain, f"{{{QEMU_NAMESPACE}}}commandline")
    for value in (
        *("-netdev", f"user,id=voh-net,hostfwd=tcp:127.0.0.1:{ssh_port}-:22"),
        *("-device", f"virtio-net-pci,netdev=voh-net,romfile=,bus={_ROOT_BUS[machine]},addr={NETWORK_SLOT:#x}"),
    ):
        ET.SubElement(arguments, f"{{{QEMU_NAMESPACE}}}arg", value=value)


def _override(domain: ET.Element, devices: Mapping[str, Mapping[str, int | bool]]) -> None:
    """Set properties of QEMU's devices, by libvirt's alias, for which libvirt has no attribute."""
    if not devices:
        return
    override = ET.SubElement(domain, f"{{{QEMU_NAMESPACE}}}override")
    for alias, properties in devices.items():
        device = ET.SubElement(override, f"{{{QEMU_NAMESPACE}}}device", alias=alias)
        frontend = ET.SubElement(device, f"{{{QEMU_NAMESPACE}}}frontend")
        for name, value in properties.items():
            kind = "bool" if isinstance(value, bool) else "unsigned"
            given = {"name": name, "type": kind, "value": str(value).lower()}
            ET.SubElement(frontend, f"{{{QEMU_NAMESPACE}}}property", given)


def _add_text(parent: ET.Element, tag: str, text: str, **attributes: str) -> None:
    ET.SubElement(parent, tag, attributes).text = text
