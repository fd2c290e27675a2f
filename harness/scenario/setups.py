"""Which modes of a disk are built and attached at once, and which one after the other. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.model.attach import BUSES, Attach, Vfio
from harness.model.layout import Base, Md
from harness.model.mode import Mode

MOST_REGIONS = 8
"""Regions on a disk beside the bare one, so that spans stay what the profile asks for on disks of usual size."""
MOST_ON_ROOT_BUS = 20
"""Devices of disks on a guest's root bus, which has 28 slots. The serial and network cards are there as well."""


def setups(modes: Iterable[Mode]) -> list[tuple[Mode, ...]]:
    """Modes that fit together, in the order given: each goes to the last setup, or to a new one where that is full.

    So modes that are listed side by side are measured side by side, and those on one file system share it.
    """
    seated: list[list[Mode]] = []
    for mode in dict.fromkeys(modes):
        if seated and _fit([*seated[-1], mode]):
            seated[-1].append(mode)
        else:
            seated.append([mode])
    return [tuple(together) for together in seated]


def regions(modes: Iterable[Mode]) -> list[Base]:
    """What each region lies on, beside that of the bare disk: one per array that is used bare, one per layer.

    A qcow2 file has two: fio on the host cannot look into it, so that its twin is a RAW file beside it.
    """
    layouts = [mode.layout for mode in modes]
    arrays = dict.fromkeys(layout for layout in layouts if isinstance(layout, Md))
    layers = [layout.base for layout in layouts if not layout.is_base for _ in range(layout.regions)]
    return [*arrays, *layers]


def disks_needed(modes: Iterable[Mode]) -> int:
    """How many disks the largest array has; 1 without any."""
    return max((mode.layout.base.disks for mode in modes), default=1)


def _fit(modes: Sequence[Mode]) -> bool:
    attached = [mode.attach for mode in modes if mode.attach is not None]
    if any(isinstance(attach, Vfio) for attach in attached):
        return len(attached) == 1  # The disk leaves the host while this guest has it.
    buses = [attach.bus for attach in attached if isinstance(attach, Attach)]
    if "ide" in buses and set(buses) != {"ide"}:
        return False  # IDE needs another machine type, and would be one more thing in which modes differ.
    on_root_bus = len(buses) - buses.count("sata") - buses.count("ide")
    return (
        len(regions(modes)) <= MOST_REGIONS
        and on_root_bus <= MOST_ON_ROOT_BUS
        and all(buses.count(bus) <= BUSES[bus].most for bus in buses)
    )
