"""Splits the modes of a disk into setups. The modes of a setup are built and attached at the same time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.model.attach import Attach, Vfio
from harness.model.base import Base, Md
from harness.model.cell import Cell
from harness.model.mode import Mode
from harness.model.option import BUSES

MOST_REGIONS = 8
"""Regions on a disk in addition to the bare one. With more, a disk of usual size has no room for the profile's span."""
MOST_LISTED = 6
"""Disks that a text lists by name."""
MOST_ON_ROOT_BUS = 20
"""Disk devices on a guest's root bus. The bus has 28 slots, also for the serial and network devices."""


def setups(modes: Iterable[Mode]) -> list[tuple[Mode, ...]]:
    """The modes of each setup, in the order given. Each mode joins the last setup, or begins a new one if that is full.

    So modes that are next to each other in the list are measured together, and modes on one file system share it. All
    variants of a mode are in one setup, also the reference that is not listed itself.
    """
    several = tuple(dict.fromkeys(each for mode in modes for each in (mode.against, mode) if each is not None))
    by_stored: dict[Mode, list[Mode]] = {}
    for mode in several:
        by_stored.setdefault(mode.stored, []).append(mode)
    found: list[list[Mode]] = []
    for own in by_stored.values():
        if found and _fit([*found[-1], *own]):
            found[-1] += own
        else:
            found.append(own)
    return [tuple(together) for together in found]


def regions(modes: Iterable[Mode]) -> list[Base]:
    """The base of each region, without the region of the bare disk: one region for each bare array and each layer.

    Variants of a mode share its region. Each of several guests has a region. A qcow2 file has two regions. fio on the
    host cannot read the format, so the twin is a separate RAW file.
    """
    layouts = [mode.layout for mode in stored_volumes(modes)]
    arrays = dict.fromkeys(layout for layout in layouts if isinstance(layout, Md))
    layers = [layout.base for layout in layouts if not layout.is_base for _ in range(layout.regions)]
    return [*arrays, *layers]


def stored_volumes(modes: Iterable[Mode]) -> list[Mode]:
    """The modes whose layouts are built for these modes: one for each volume."""
    return list(dict.fromkeys(volume.stored for mode in modes for volume in mode.volumes))


def by_guest(modes: Iterable[Mode]) -> dict[str, list[Mode]]:
    """The modes whose disks each guest of a setup gets, by the guest's name. Each disk once."""
    found: dict[str, dict[Mode, None]] = {}
    for mode in modes:
        for volume in mode.volumes if mode.attach is not None else ():
            found.setdefault(volume.guest_name, {})[volume] = None
    return {name: list(own) for name, own in found.items()}


def places_needed(modes: Iterable[Mode]) -> tuple[int, ...]:
    """The places in the scenario's `disks` that the modes use, from 0, sorted. Always with 0, the baseline's disk."""
    return tuple(sorted({0, *(place for mode in modes for place in mode.layout.base.places)}))


def places_of(cells: Iterable[Cell]) -> tuple[int, ...]:
    """The same for the arms of these cells, with the reference of an array."""
    return tuple(sorted({0, *(place for cell in cells for place in cell.places)}))


def disks_in_words(names: Sequence[str]) -> str:
    """For example "ssd1, ssd2", or "ssd1 and 15 other disks"."""
    return ", ".join(names) if len(names) <= MOST_LISTED else f"{names[0]} and {len(names) - 1} other disks"


def _fit(modes: Sequence[Mode]) -> bool:
    guests = by_guest(modes)
    alternating = {mode.alternating for own in guests.values() for mode in own}
    return len(alternating) < 2 and len(regions(modes)) <= MOST_REGIONS and all(map(_fit_one_guest, guests.values()))


def _fit_one_guest(modes: Sequence[Mode]) -> bool:
    """Whether one guest can have the disks of all these modes."""
    attached = [mode.attach for mode in modes]
    if len({mode.guest for mode in modes}) > 1:
        return False  # One guest has all disks of a setup.
    if any(isinstance(attach, Vfio) for attach in attached):
        return len(attached) == 1  # The host does not have the disk while this guest has it.
    daemons = [isinstance(attach, Attach) and not attach.in_qemu for attach in attached]
    if any(daemons) and (not all(daemons) or len(daemons) > 1):
        # The guest's memory is shared with the daemon, so its pages are others. All daemons give one serial number.
        return False
    buses = [attach.bus for attach in attached if isinstance(attach, Attach)]
    if "ide" in buses and set(buses) != {"ide"}:
        return False  # IDE needs another machine type, which would be a second difference between the modes.
    on_root_bus = len(buses) - buses.count("sata") - buses.count("ide")
    return on_root_bus <= MOST_ON_ROOT_BUS and all(buses.count(bus) <= BUSES[bus].most for bus in buses)
