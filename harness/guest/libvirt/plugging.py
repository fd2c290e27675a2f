"""Which devices are plugged into a running VM of others so that it gets our disks, and what cannot be. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree as ET

from harness.guest.libvirt.domain import AnyPlace, DomainDisks, UsedIds
from harness.guest.protocol import GuestDisk
from harness.lab.created import Thing


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


def find_plugged(live: ET.Element, alias: str) -> tuple[str, str] | None:
    """Target and source of the VM's disk or controller with this alias; None if it has none."""
    for tag in ("disk", "controller"):
        for element in live.iterfind(f"devices/{tag}"):
            if read_attribute(element, "alias", "name") == alias:
                return read_attribute(element, "target", "dev"), read_source(element)
    return None


def read_source(disk: ET.Element) -> str:
    """The path of the device or file behind a disk; empty if it has none."""
    return read_attribute(disk, "source", "dev") or read_attribute(disk, "source", "file")


def _describe_device(disk: ET.Element) -> PluggableDevice:
    return PluggableDevice(
        _format_xml(disk),
        read_attribute(disk, "alias", "name"),
        read_attribute(disk, "target", "dev"),
        read_source(disk),
    )


def _read_numbers(live: ET.Element, path: str, attribute: str) -> Iterator[int]:
    yield from (int(element.get(attribute, "0")) for element in live.iterfind(path))


def read_attribute(element: ET.Element, child: str, name: str) -> str:
    below = element.find(child)
    return below.get(name, "") if below is not None else ""


def _format_xml(element: ET.Element) -> str:
    ET.indent(element)
    return ET.tostring(element, encoding="unicode").strip()
