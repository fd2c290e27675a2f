"""What is plugged into a running VM of others, for the creation log, and how it is found there. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal
from xml.etree import ElementTree as ET

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
