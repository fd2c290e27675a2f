"""What is plugged into a running VM of others, for the creation log, and how it is found there. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal
from xml.etree import ElementTree as ET

from harness.guest.proxmox import DRIVE, parse_drive
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


class PluggedDrive(Thing):
    """A drive in the running VM of others with this SMBIOS UUID. Source and serial number identify the drive."""

    kind: Literal["pve-drive"] = "pve-drive"
    node: str
    vmid: int
    uuid: str
    key: str
    source: str
    serial: str

    @property
    def words(self) -> str:
        return f"the drive {self.key} ({self.source}) in the borrowed VM {self.vmid}"

    def in_config(self, config: Mapping[str, Any]) -> list[str]:
        """The drives of a VM with this configuration that have the same source and serial number."""
        return [key for key, value in config.items() if DRIVE.fullmatch(key) and self._is(parse_drive(str(value)))]

    def _is(self, options: Mapping[str, str]) -> bool:
        return (options["file"], options.get("serial")) == (self.source, self.serial)


def list_threads(live: ET.Element) -> set[int]:
    """The ids of the VM's iothreads. libvirt leaves them out if it has numbered them from 1."""
    return set(read_numbers(live, "iothreadids/iothread", "id")) or set(
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


def read_numbers(live: ET.Element, path: str, attribute: str) -> Iterator[int]:
    yield from (int(element.get(attribute, "0")) for element in live.iterfind(path))


def read_attribute(element: ET.Element, child: str, name: str) -> str:
    below = element.find(child)
    return below.get(name, "") if below is not None else ""
