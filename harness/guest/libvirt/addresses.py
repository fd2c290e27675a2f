"""Addresses of a guest's devices: slots of its root bus, and units of its controllers."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count, product
from string import ascii_lowercase
from typing import Literal
from xml.etree import ElementTree as ET

from harness.errors import Unsupported

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


class AnyPlace(RootBus):
    """The bus of a guest that runs already: libvirt chooses free places for devices that are plugged in."""

    def place(self, device: ET.Element) -> None:
        """Leave the device without an address."""


class DriveNames:
    """libvirt's names of disks: `sda` to `sdz`, then `sdaa`. The guest's own names may differ. `taken` are left out."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self._numbers = {prefix: count() for prefix in ("vd", "sd", "hd", "nvme")}
        self._taken = taken

    def next(self, prefix: str) -> str:
        return next(name for name in self._all(prefix) if name not in self._taken)

    def _all(self, prefix: str) -> Iterator[str]:
        for number in self._numbers[prefix]:
            yield f"nvme{number}n1" if prefix == "nvme" else prefix + _letters(number)


def on_controller(disk: ET.Element, controller: int, *, bus: int = 0, unit: int = 0) -> None:
    ET.SubElement(disk, "address", type="drive", controller=str(controller), bus=str(bus), target="0", unit=str(unit))


def _letters(number: int) -> str:
    higher, last = divmod(number, len(ascii_lowercase))
    return (_letters(higher - 1) if higher else "") + ascii_lowercase[last]
