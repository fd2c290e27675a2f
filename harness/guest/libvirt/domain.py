"""The domain XML of a guest. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

from harness.guest.libvirt.addresses import NETWORK_SLOT, MachineType, RootBus
from harness.guest.libvirt.disks import NOTHING_TAKEN, DomainDisks, machine_for
from harness.guest.libvirt.placing import add_cpu, add_memory_backing, add_numa, add_pins, add_polling
from harness.guest.libvirt.system_disk import SystemFiles, add_firmware, add_system
from harness.guest.protocol import GuestDisk
from harness.model.guest import ANY_GUEST, GUEST_MEMORY, GuestOptions

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
    system: SystemFiles | None = None
    """What it boots from instead of kernel and initramfs."""


def domain_xml(spec: GuestSpec) -> str:
    """The guest's domain XML. It sets every disk option, so no default of libvirt or QEMU applies."""
    ET.register_namespace("qemu", QEMU_NAMESPACE)
    ET.register_namespace("voh", NAMESPACE)
    domain = ET.Element("domain", type="kvm" if spec.accel == "kvm" else "qemu")
    _text(domain, "name", spec.name)
    _text(domain, "uuid", spec.uuid)
    _text(ET.SubElement(domain, "metadata"), f"{{{NAMESPACE}}}run", spec.run_id)
    _text(domain, "memory", str((spec.options.memory or spec.memory) >> 20), unit="MiB")
    add_memory_backing(domain, spec.options, shared=bool(spec.sockets))
    _text(domain, "vcpu", str(spec.vcpus))
    threads = ET.SubElement(domain, "iothreads")
    thread_ids = ET.SubElement(domain, "iothreadids")
    tune = ET.SubElement(domain, "cputune")
    add_numa(domain, spec.options)
    machine = machine_for(spec.disks, spec.options)
    _system(domain, spec, machine)
    features = ET.SubElement(domain, "features")
    ET.SubElement(features, "acpi")
    ET.SubElement(features, "apic")
    add_cpu(domain, spec.options, accel=spec.accel)
    _text(domain, "on_reboot", "destroy")
    devices = _devices(domain, spec.options)
    bus = RootBus()
    ET.SubElement(devices, "controller", type="usb", model="none")
    bus.place(ET.SubElement(devices, "controller", type="virtio-serial", index="0"))
    taken = NOTHING_TAKEN if spec.system is None else add_system(devices, bus, spec.system)
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
    _user_network(domain, spec.ssh_port, machine)
    _override(domain, disks.overrides)
    ET.indent(domain)
    return ET.tostring(domain, encoding="unicode")


def _system(domain: ET.Element, spec: GuestSpec, machine: MachineType) -> None:
    """What it boots."""
    system = ET.SubElement(domain, "os")
    _text(system, "type", "hvm", arch="x86_64", machine=spec.options.machine or machine)
    if spec.system is not None:
        add_firmware(system, spec.system)
    else:
        _text(system, "kernel", spec.kernel)
        _text(system, "initrd", spec.initramfs)
        _text(system, "cmdline", " ".join((*_COMMAND_LINE, f"virt_overhead.ip={GUEST_ADDRESS}")))


def _devices(domain: ET.Element, options: GuestOptions) -> ET.Element:
    """The element for the devices, with the program of QEMU if it is requested."""
    devices = ET.SubElement(domain, "devices")
    if options.emulator is not None:
        _text(devices, "emulator", options.emulator)
    return devices


def _user_network(domain: ET.Element, ssh_port: int, machine: MachineType) -> None:
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


def _text(parent: ET.Element, tag: str, text: str, **attributes: str) -> None:
    ET.SubElement(parent, tag, attributes).text = text
