"""The domain XML of a guest: pure, from values to text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from xml.etree import ElementTree as ET

from harness.guest.protocol import GuestDisk
from harness.scenario.attach import Attach

QEMU_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
NAMESPACE = "urn:virt-overhead"

GUEST_ADDRESS = "10.0.2.15/24,10.0.2.2"
"""The address and gateway that QEMU's user-mode network gives to its first guest."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TARGETS = {"virtio-blk": ("vd", "virtio"), "virtio-scsi": ("sd", "scsi"), "sata": ("sd", "sata")}
_FIRST_SLOT = 2  # 0 is the host bridge, 1 is kept for a graphics card; 0x1e is the network card, 0x1f the chip set

_COMMAND_LINE = (
    "console=ttyS0 quiet",
    # Faster to boot, the same to measure: no calibration against timers that are emulated, no self-tests of
    # cryptography, no security modules to set up. Mitigations stay as the kernel chooses them.
    "tsc=reliable no_timer_check cryptomgr.notests lsm=",
)


@dataclass(frozen=True, slots=True)
class GuestSpec:
    """A guest to be: memory in MiB; `ssh_port` is the port of its SSH server on the host's loopback."""

    name: str
    run_id: str
    accel: str
    kernel: str
    initramfs: str
    ssh_port: int
    console: str
    disks: tuple[GuestDisk, ...]
    vcpus: int = 1
    memory_mib: int = 512


def domain_xml(spec: GuestSpec) -> str:
    """The guest as libvirt wants to read it. Every disk option is pinned: no default of libvirt or QEMU decides."""
    ET.register_namespace("qemu", QEMU_NAMESPACE)
    ET.register_namespace("voh", NAMESPACE)
    domain = ET.Element("domain", type="kvm" if spec.accel == "kvm" else "qemu")
    _text(domain, "name", spec.name)
    _text(ET.SubElement(domain, "metadata"), f"{{{NAMESPACE}}}run", spec.run_id)
    _text(domain, "memory", str(spec.memory_mib), unit="MiB")
    _text(domain, "vcpu", str(spec.vcpus))
    with_thread = [disk for disk in spec.disks if disk.attach.iothread]
    if with_thread:
        _text(domain, "iothreads", str(len(with_thread)))
    system = ET.SubElement(domain, "os")
    _text(system, "type", "hvm", arch="x86_64", machine="q35")
    _text(system, "kernel", spec.kernel)
    _text(system, "initrd", spec.initramfs)
    _text(system, "cmdline", " ".join((*_COMMAND_LINE, f"virt_overhead.ip={GUEST_ADDRESS}")))
    features = ET.SubElement(domain, "features")
    ET.SubElement(features, "acpi")
    ET.SubElement(features, "apic")
    ET.SubElement(domain, "cpu", mode="host-passthrough" if spec.accel == "kvm" else "maximum")
    _text(domain, "on_reboot", "destroy")
    devices = ET.SubElement(domain, "devices")
    slots = count(_FIRST_SLOT)
    ET.SubElement(devices, "controller", type="usb", model="none")
    _on_root_bus(ET.SubElement(devices, "controller", type="virtio-serial", index="0"), next(slots))
    _disks(devices, spec.disks, [disk.name for disk in with_thread], slots)
    ET.SubElement(ET.SubElement(devices, "serial", type="file"), "source", path=spec.console)
    channel = ET.SubElement(devices, "channel", type="unix")
    ET.SubElement(channel, "target", type="virtio", name="org.qemu.guest_agent.0")
    ET.SubElement(devices, "memballoon", model="none")
    ET.SubElement(ET.SubElement(devices, "video"), "model", type="none")
    _user_network(domain, spec.ssh_port)
    ET.indent(domain)
    return ET.tostring(domain, encoding="unicode")


def _disks(devices: ET.Element, disks: Sequence[GuestDisk], with_thread: Sequence[str], slots: Iterator[int]) -> None:
    """The disks, each on a controller of its own, so that no queue or thread is shared between modes."""
    letters = {"vd": iter(_LETTERS), "sd": iter(_LETTERS)}
    scsi, sata = count(), count()
    for disk in disks:
        element = ET.SubElement(devices, "disk", type=disk.source.kind, device="disk")
        driver = ET.SubElement(element, "driver", _driver(disk.attach))
        ET.SubElement(element, "source", {"dev" if disk.source.kind == "block" else "file": disk.source.path})
        prefix, bus = _TARGETS[disk.attach.bus]
        ET.SubElement(element, "target", dev=f"{prefix}{next(letters[prefix])}", bus=bus)
        thread = str(with_thread.index(disk.name) + 1) if disk.name in with_thread else None
        match disk.attach.bus:
            case "virtio-blk":
                if thread:
                    driver.set("iothread", thread)
                _on_root_bus(element, next(slots))
            case "virtio-scsi":
                index = next(scsi)
                controller = ET.SubElement(devices, "controller", type="scsi", index=str(index), model="virtio-scsi")
                if thread:
                    ET.SubElement(controller, "driver", iothread=thread)
                _on_root_bus(controller, next(slots))
                _on_controller(element, index, 0)
            case "sata":
                _on_controller(element, 0, next(sata))
        _text(element, "serial", disk.serial)


def _driver(attach: Attach) -> dict[str, str]:
    fixed = {"name": "qemu", "type": "raw", "discard": "ignore", "detect_zeroes": "off"}
    return fixed | {"cache": attach.cache, "io": attach.aio}


def _on_root_bus(device: ET.Element, slot: int) -> None:
    # Without an address libvirt puts each device behind a PCIe root port of its own, which the guest's kernel
    # probes one by one: half of its boot time where the guest is nested.
    ET.SubElement(device, "address", type="pci", domain="0x0000", bus="0x00", slot=f"{slot:#04x}", function="0x0")


def _on_controller(disk: ET.Element, controller: int, unit: int) -> None:
    ET.SubElement(disk, "address", type="drive", controller=str(controller), bus="0", target="0", unit=str(unit))


def _user_network(domain: ET.Element, ssh_port: int) -> None:
    # User-mode networking with a forwarded port works on every host, without a bridge, a DHCP server or root's
    # firewall rules. libvirt 9 (Debian 12) has no element for the forward, so QEMU is told directly.
    arguments = ET.SubElement(domain, f"{{{QEMU_NAMESPACE}}}commandline")
    for value in (
        *("-netdev", f"user,id=voh-net,hostfwd=tcp:127.0.0.1:{ssh_port}-:22"),
        *("-device", "virtio-net-pci,netdev=voh-net,romfile=,bus=pcie.0,addr=0x1e"),
    ):
        ET.SubElement(arguments, f"{{{QEMU_NAMESPACE}}}arg", value=value)


def _text(parent: ET.Element, tag: str, text: str, **attributes: str) -> None:
    ET.SubElement(parent, tag, attributes).text = text
