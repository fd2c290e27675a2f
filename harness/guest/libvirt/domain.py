"""The domain XML of a guest: its size and placement, what it boots and its devices. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Protocol
from xml.etree import ElementTree as ET

from harness.guest.libvirt.disks import (
    NETWORK_SLOT,
    NOTHING_USED,
    DomainDisks,
    MachineType,
    RootBus,
    UsedIds,
    choose_machine,
)
from harness.guest.protocol import GuestDisk
from harness.model.guest import ANY_GUEST, GUEST_MEMORY, GuestOptions


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
        _add_text(system, "cmdline", " ".join((*_COMMAND_LINE, f"virt_overhead.ip={GUEST_ADDRESS}")))


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
