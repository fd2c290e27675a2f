"""Which devices are plugged into a running VM of others so that it gets our disks, and what cannot be. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree as ET

from harness.guest.booting import refuse_plugging, refuse_queues
from harness.guest.libvirt.domain import AnyPlace, DomainDisks, UsedIds
from harness.guest.protocol import GuestDisk
from harness.lab.created import Thing
from harness.model.attach import Attach, Attachment
from harness.model.guest import GuestOptions
from harness.model.option import QemuOverride


class PluggedIn(Thing):
    """A device in the running VM with this UUID: the alias, target and source of a disk, or the alias of a controller.

    It is unplugged only if all of them match. `persistent`: libvirt has a definition of the VM while it does not run.
    """

    kind: Literal["plugged-in"] = "plugged-in"
    name: str
    uuid: str
    alias: str
    target: str
    source: str
    persistent: bool = True

    @property
    def words(self) -> str:
        what = f"the disk {self.target} ({self.source})" if self.target else f"the controller {self.alias}"
        return f"{what} in the borrowed VM {self.name}"


class AddedThread(Thing):
    """An iothread of the running VM with this UUID: its id, and the QEMU process by its id and its start."""

    kind: Literal["added-iothread"] = "added-iothread"
    name: str
    uuid: str
    thread: int
    process: str
    persistent: bool = True

    @property
    def words(self) -> str:
        return f"iothread {self.thread} in the borrowed VM {self.name}"


KINDS: tuple[type[Thing], ...] = (PluggedIn, AddedThread)
"""All kinds of this module."""


@dataclass(frozen=True, slots=True)
class PluggableDevice:
    """A controller or a disk to plug in. `target` and `source` are empty for a controller."""

    xml: str
    alias: str
    target: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Devices:
    """What a VM gets: iothreads by their ids, controllers, and disks by the names of the modes."""

    threads: tuple[int, ...]
    controllers: tuple[PluggableDevice, ...]
    disks: dict[str, PluggableDevice]


def devices_for(live: ET.Element, disks: Sequence[GuestDisk], token: str) -> Devices:
    """The devices that attach these disks to a VM that runs as `live`, without addresses: libvirt chooses them.

    `token` makes the aliases of the controllers unique.
    """
    taken = find_used_ids(live)
    root = ET.Element("devices")
    added = DomainDisks(root, AnyPlace(), "q35", taken)
    users = Counter(disk.source.path for disk in disks)
    for disk in disks:
        added.add(disk, shared=disk.shared or users[disk.source.path] > 1)
    controllers = []
    for controller in root.iterfind("controller"):
        alias = f"ua-voh-{token}-{controller.get('index')}"
        ET.SubElement(controller, "alias", name=alias)
        controllers.append(PluggableDevice(_format_xml(controller), alias))
    return Devices(
        tuple(range(taken.threads + 1, added.threads + 1)),
        tuple(controllers),
        {disk.name: _describe_device(element) for disk, element in zip(disks, root.iterfind("disk"), strict=True)},
    )


def find_used_ids(live: ET.Element) -> UsedIds:
    """The iothreads, SCSI controllers and names of disks that the VM has."""
    scsi = frozenset(_read_numbers(live, "devices/controller[@type='scsi']", "index"))
    names = frozenset(target.get("dev", "") for target in live.iterfind("devices/disk/target"))
    return UsedIds(max(list_threads(live), default=0), scsi, names)


def list_threads(live: ET.Element) -> set[int]:
    """The ids of the VM's iothreads. libvirt leaves them out if it has numbered them from 1."""
    return set(_read_numbers(live, "iothreadids/iothread", "id")) or set(
        range(1, int(live.findtext("iothreads") or 0) + 1)
    )


def count_vcpus(live: ET.Element) -> int:
    """The vCPUs that the running VM has, which may be fewer than it could get."""
    vcpu = live.find("vcpu")
    return int(vcpu.get("current") or vcpu.text or 1) if vcpu is not None else 1


def find_plugged(live: ET.Element, alias: str) -> tuple[str, str] | None:
    """Target and source of the VM's disk or controller with this alias; None if it has none."""
    for tag in ("disk", "controller"):
        for element in live.iterfind(f"devices/{tag}"):
            if _attribute(element, "alias", "name") == alias:
                return _attribute(element, "target", "dev"), source_of(element)
    return None


def list_differences(before: ET.Element, after: ET.Element) -> list[str]:
    """The devices and iothreads that the VM has only in one of these two moments."""
    had, has = _list_parts(before), _list_parts(after)
    return [f"{part} was removed" for part in sorted(had - has)] + [f"{part} was added" for part in sorted(has - had)]


def _list_parts(live: ET.Element) -> set[str]:
    aliases = {f"{device.tag} {_attribute(device, 'alias', 'name')}" for device in live.iterfind("devices/*[alias]")}
    return aliases | {f"iothread {number}" for number in list_threads(live)}


def source_of(disk: ET.Element) -> str:
    """The path of the device or file behind a disk; empty if it has none."""
    return _attribute(disk, "source", "dev") or _attribute(disk, "source", "file")


def why_not_plugged(vm: str, vcpus: int, attach: Attachment, options: GuestOptions) -> str | None:
    """Why a disk cannot be plugged in like this, or the VM cannot have the options, with the remedy; None if it can."""
    if (why := refuse_plugging(vm, attach, options)) or not isinstance(attach, Attach):
        return why
    if key := _not_while_running(attach):
        return f"{key} cannot be changed in {vm} while it runs: leave it out"
    return refuse_queues(attach, vcpus, GuestOptions(vcpus=vcpus))


def _not_while_running(attach: Attach) -> str | None:
    """An option that libvirt has only for a VM that it starts: shared memory, polling, properties of a controller."""
    if not attach.in_qemu:
        return f'server = "{attach.server}"'
    if attach.poll_max_ns is not None:
        return "poll_max_ns"
    places = ((name, row.place(attach.bus)) for name, row in attach.used.items())
    name = next((name for name, place in places if isinstance(place, QemuOverride)), None)
    return f'{name} with bus = "{attach.bus}"' if name else None


def _describe_device(disk: ET.Element) -> PluggableDevice:
    return PluggableDevice(
        _format_xml(disk), _attribute(disk, "alias", "name"), _attribute(disk, "target", "dev"), source_of(disk)
    )


def _read_numbers(live: ET.Element, path: str, attribute: str) -> Iterator[int]:
    yield from (int(element.get(attribute, "0")) for element in live.iterfind(path))


def _attribute(element: ET.Element, child: str, name: str) -> str:
    below = element.find(child)
    return below.get(name, "") if below is not None else ""


def _format_xml(element: ET.Element) -> str:
    ET.indent(element)
    return ET.tostring(element, encoding="unicode").strip()
