"""PCI devices that VMs of Proxmox VE get (`hostpciN`): by their address, or by a resource mapping of the node.

Proxmox VE gives a device to a VM when it starts it, and not while it runs. It takes the device from its driver on the
node, and never returns it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from harness.errors import SafetyError, Unsupported
from harness.guest.passthrough import PciDisk, find_pci_disk, lent, read_host_driver, refuse_passthrough
from harness.guest.protocol import GuestDisk
from harness.guest.proxmox.client import Client
from harness.guest.proxmox.disk_users import require_unshared
from harness.lab.created import CreationLog
from harness.lab.inventory import ROOT
from harness.lab.transport.base import Runner
from harness.model.attach import Vfio
from harness.model.option import Effective
from harness.untrusted import reading

_USE = "Mapping.Use"
_PCIE = "pcie=1"
"""Behind a PCIe port, as on hardware. Guests of runs are q35."""


def refuse_device(client: Client, runner: Runner, path: str) -> str | None:
    """Why the disk at `path` cannot be passed through with this login, with the remedy; None if it can."""
    disk = find_pci_disk(runner, path)
    return refuse_passthrough(disk) or (None if disk is None else _refuse_login(client, disk))


def _refuse_login(client: Client, disk: PciDisk) -> str | None:
    if client.spec.may_pass_devices:
        return None
    name = find_mapping(client, disk.address)
    of_node = f"{disk.address} of node {client.spec.node}"
    if name is None:
        return (
            f"Proxmox VE accepts the address of a PCI device only from {ROOT} with a password, and {client.spec.who} "
            f"sees no resource mapping of {of_node} alone: add one in Datacenter > Resource Mappings, and give {_USE} "
            "on it"
        )
    if _USE not in client.privileges(f"/mapping/pci/{name}"):
        return (
            f"{client.spec.who} may not use the resource mapping {name} of {of_node}: give it {_USE} on "
            f"/mapping/pci/{name}, for example with the role PVEMappingUser"
        )
    return None


def find_mapping(client: Client, address: str) -> str | None:
    """The resource mapping that has only this device of the node; None if the login sees none."""
    with reading(f"host {client.host}: Proxmox VE's resource mappings", SafetyError):
        for mapping in client.get("cluster/mapping/pci"):
            entries = [dict(part.partition("=")[::2] for part in str(entry).split(",")) for entry in mapping["map"]]
            paths = [entry.get("path") for entry in entries if entry.get("node") == client.spec.node]
            if paths == [address]:
                return str(mapping["id"])
    return None


@contextmanager
def pass_disks(client: Client, log: CreationLog, disks: Sequence[GuestDisk]) -> Iterator[Mapping[str, PciDisk]]:
    """The devices to pass through, by the names of their disks, for a VM that exists within the block only.

    Then the node has the disks again under their links. Raises Unsupported, SafetyError, HostError.
    """
    passed: dict[str, PciDisk] = {}
    with ExitStack() as stack:
        for disk in disks:
            if not isinstance(disk.attach, Vfio):
                continue
            path = disk.source.path
            if why := refuse_device(client, log.runner, path):
                raise Unsupported(f"host {client.host}: {disk.name}: {why}")
            device = find_pci_disk(log.runner, path)
            assert device is not None, "refused above"
            require_unshared(client, log.runner, path, vmid=None)
            stack.enter_context(lent(log, device, disk.source.writable))
            passed[disk.name] = device
        yield passed


def name_key(number: int) -> str:
    """The setting of a VM for its device with this number, and the id of the device in QEMU."""
    return f"hostpci{number}"


def format_devices(client: Client, passed: Mapping[str, PciDisk]) -> dict[str, str]:
    """The settings of a VM that gets these devices."""
    settings = {}
    for number, disk in enumerate(passed.values()):
        name = None if client.spec.may_pass_devices else find_mapping(client, disk.address)
        settings[name_key(number)] = f"{disk.address if name is None else f'mapping={name}'},{_PCIE}"
    return settings


def read_passed(
    node: Runner, disk: PciDisk, key: str, config: Mapping[str, Any], device: Mapping[str, str]
) -> Effective:
    """How QEMU passes the device through. `device` is its device in QEMU's arguments. Raises HostError."""
    shown = Effective(
        machine=str(config.get("machine", "")),
        pve_drive=f"{key}: {config.get(key)}",
        qemu_device=device.get("driver"),
        qemu_host=device.get("host"),
    )
    return shown.merged(read_host_driver(node, disk))
