"""Is a disk attached as it was asked for? What was asked against what was read back. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from harness.results.cells import ValidityCheck
from harness.scenario.attach import Attach, Attachment, Bus, Vfio


def configuration_check(asked: Attachment, effective: Mapping[str, JsonValue]) -> ValidityCheck | None:
    """What was asked of the attachment against what hypervisor and guest say it is; None where nothing was read back.

    Each difference fails it. An option that nobody could read back is named.
    """
    if not effective:
        return None
    wanted = [*(_wanted_of_vfio() if isinstance(asked, Vfio) else _wanted(asked))]
    differ = [
        f"asked for {each.key} = {_said(each.value)}, it is {_said(effective[each.key])}"
        for each in wanted
        if each.key in effective and effective[each.key] != each.value
    ]
    proven = {each.option for each in wanted if each.key in effective}
    unproven = [option for option in dict.fromkeys(each.option for each in wanted) if option not in proven]
    detail = "; ".join(differ) or f"{sum(each.key in effective for each in wanted)} settings are as asked for"
    if unproven:
        detail += f"; not read back: {', '.join(unproven)}"
    return ValidityCheck("configuration", ok=not differ, detail=detail)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What an option of the attachment, as a scenario calls it, makes of one thing that is read back."""

    option: str
    key: str
    value: JsonValue


_BUS: Mapping[Bus, tuple[str, str, str, str]] = {
    "virtio-blk": ("virtio", "virtio-blk-pci", "virtio_blk", "virtio-pci"),
    "virtio-scsi": ("scsi", "scsi-hd", "sd", "virtio_scsi"),
    "sata": ("sata", "ide-hd", "sd", "ahci"),
    "ide": ("ide", "ide-hd", "sd", "ata_piix"),
    "nvme": ("nvme", "nvme-ns", "nvme", "nvme"),
}
"""The hypervisor's word for the bus, QEMU's device, and the guest's drivers of the disk and of what it is on."""


def _wanted(asked: Attach) -> Iterator[_Wanted]:
    bus, device, driver, controller = _BUS[asked.bus]
    lun = asked.device == "lun"
    yield _Wanted("bus", "bus", bus)
    yield _Wanted("bus", "guest_driver", driver)
    yield _Wanted("bus", "guest_controller_driver", controller)
    yield _Wanted("device", "qemu_device", "scsi-block" if lun else device)
    # QEMU's manual has the table of what a cache mode makes of the three; see its block device option `cache`.
    write_cache = asked.cache in ("none", "writeback", "unsafe")
    yield _Wanted("cache", "cache", asked.cache)
    yield _Wanted("cache", "qemu_cache_direct", asked.direct)
    yield _Wanted("cache", "qemu_cache_no_flush", asked.cache == "unsafe")
    yield _Wanted("cache", "qemu_write_cache", write_cache)
    yield _Wanted("aio", "aio", asked.aio)
    yield _Wanted("aio", "qemu_aio", asked.aio)
    threads = asked.iothread_vq_mapping or int(asked.iothread)
    yield _Wanted("iothread", "iothread", threads > 0)
    yield _Wanted("iothread", "qemu_iothread", threads > 0)
    if asked.iothread_vq_mapping:
        yield _Wanted("iothread_vq_mapping", "qemu_iothreads", threads)
    if asked.queues:
        yield _Wanted("queues", "qemu_queues", asked.queues)
        yield _Wanted("queues", "guest_queues", asked.queues)
    if asked.queue_size:
        yield _Wanted("queue_size", "qemu_queue_size", asked.queue_size)
    if asked.bus == "virtio-scsi" and asked.controller == "single":
        yield _Wanted("controller", "controller_disks", 1)
    yield _Wanted("discard", "qemu_discard", asked.discard)
    yield _Wanted("detect_zeroes", "qemu_detect_zeroes", asked.detect_zeroes)
    yield _Wanted("read_only", "qemu_read_only", asked.read_only)
    yield _Wanted("read_only", "guest_read_only", asked.read_only)
    if not lun and not asked.read_only:
        # A LUN's is the host's disk's own, and a SCSI disk that cannot be written to tells of none.
        yield _Wanted("cache", "guest_write_cache", "write back" if write_cache else "write through")
    for option, size in (("logical", asked.logical_block_size), ("physical", asked.physical_block_size)):
        if size:
            yield _Wanted(f"{option}_block_size", f"qemu_{option}_block_size", size)
            yield _Wanted(f"{option}_block_size", f"guest_{option}_block_size", size)


def _wanted_of_vfio() -> Iterator[_Wanted]:
    yield _Wanted("vfio", "qemu_device", "vfio-pci")
    yield _Wanted("vfio", "host_driver", "vfio-pci")
    yield _Wanted("vfio", "guest_driver", "nvme")


def _said(value: JsonValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
