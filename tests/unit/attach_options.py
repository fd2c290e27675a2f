"""Every option of an attachment on every bus that has it: what golden files, schema and lab are tried with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from docs.website.options import list_values
from harness.model.attach import ATTACH_OPTIONS, MIB, Attach
from harness.model.option import Bus

EVERYWHERE: Mapping[str, Attach] = {
    "default": Attach(),
    "directsync": Attach(cache="directsync"),
    "writeback": Attach(cache="writeback", aio="threads"),
    "writethrough": Attach(cache="writethrough", aio="io_uring"),
    "unsafe": Attach(cache="unsafe", aio="threads"),
    "io-uring": Attach(aio="io_uring"),
    "threads": Attach(aio="threads"),
    "discard": Attach(discard="unmap"),
    "zeroes": Attach(detect_zeroes="on"),
    "zeroes-unmap": Attach(discard="unmap", detect_zeroes="unmap"),
    "throttled": Attach(iops=1000, iops_burst=2000, bw=100 * MIB, bw_burst=200 * MIB, burst_seconds=5),
    "read-write": Attach(read_iops=1000, read_iops_burst=1500, write_bw=50 * MIB, write_bw_burst=60 * MIB),
    "read-write-2": Attach(write_iops=100, write_iops_burst=150, read_bw=50 * MIB, read_bw_burst=60 * MIB),
    "512e": Attach(logical_block_size=512, physical_block_size=4096),
}
NOT_ATA: Mapping[str, Attach] = {
    "4kn": Attach(logical_block_size=4096, physical_block_size=4096),
    "read-only": Attach(read_only=True),
}
"""What QEMU's ATA disks refuse: other logical blocks than 512 bytes, and a drive that cannot be written to."""
VIRTIO: Mapping[str, Attach] = {
    "packed": Attach(packed=True),
    "no-event-idx": Attach(event_idx=False),
    "no-iothread": Attach(iothread=False),
    "throttle-group": Attach(iops=1000, throttle_group="shared"),
    "queues": Attach(queues=2),
    "queue-size": Attach(queue_size=256),
    "no-polling": Attach(poll_max_ns=0),
    "mapping": Attach(queues=2, iothread_vq_mapping=2, iothread=False),
}

_OF_BUS: Mapping[Bus, tuple[Mapping[str, Attach], ...]] = {
    "virtio-blk": (EVERYWHERE, NOT_ATA, VIRTIO),
    "virtio-scsi": (EVERYWHERE, NOT_ATA, VIRTIO),
    "sata": (EVERYWHERE,),
    "ide": (EVERYWHERE,),
    "nvme": (EVERYWHERE, NOT_ATA),
    "lsi": (EVERYWHERE, NOT_ATA),
    "megasas": (EVERYWHERE, NOT_ATA),
    "pvscsi": (EVERYWHERE, NOT_ATA),
}


def options(bus: Bus) -> dict[str, Attach]:
    """The attachments that are tried on a bus, by a name that is short enough for a serial number.

    An option of the table that none of these changes is tried with another value than its default.
    """
    has_thread = bus.startswith("virtio")
    tried = {
        name: replace(attach, bus=bus, iothread=attach.iothread and has_thread)
        for group in _OF_BUS[bus]
        for name, attach in group.items()
    }
    for name in UNTRIED:
        buses = ATTACH_OPTIONS[name].buses
        if buses is None or bus in buses.names:
            changed: dict[str, Any] = {name: other_value(name)}
            tried[name.replace("_", "-")] = replace(Attach(bus, iothread=has_thread), **changed)
    return tried


def other_value(name: str) -> object:
    """A value of an option that is not its default."""
    example = ATTACH_OPTIONS[name].example
    values = list_values(Attach(), name) if example is None else [example]
    return next(value for value in values if value and value != getattr(Attach(), name))


_ELSEWHERE = {"bus", "controller", "server", "device", "metadata_cache"}
"""Options that golden files try in guests of their own."""
_TRIED = {name for group in (EVERYWHERE, NOT_ATA, VIRTIO) for attach in group.values() for name in attach.used}
UNTRIED = [name for name in ATTACH_OPTIONS if name not in _ELSEWHERE | _TRIED]
