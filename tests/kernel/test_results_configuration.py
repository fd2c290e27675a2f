"""The requested attachment against what was read back: each difference fails the cell with both values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.model.attach import Attach, Cache, Vfio
from harness.model.option import BUSES, Bus, Effective
from harness.results import ValidityCheck
from harness.results.validity import configuration_check

AS_ASKED = Effective(
    bus="scsi",
    cache="none",
    aio="native",
    iothread=True,
    qemu_device="scsi-hd",
    qemu_cache_direct=True,
    qemu_cache_no_flush=False,
    qemu_write_cache=True,
    qemu_aio="native",
    qemu_iothread=True,
    qemu_iothreads=1,
    qemu_queues=1,
    qemu_queue_size=128,
    qemu_discard="ignore",
    qemu_detect_zeroes="off",
    qemu_read_only=False,
    qemu_iops_limit="none",
    qemu_bw_limit="none",
    host_io_limit="none",
    qemu_logical_block_size=512,
    qemu_physical_block_size=512,
    controller_disks=1,
    guest_driver="sd",
    guest_controller_driver="virtio_scsi",
    guest_scheduler="[none] mq-deadline",
    guest_queues=1,
    guest_queue_size=128,
    guest_write_cache="write back",
    guest_read_only=False,
    guest_logical_block_size=512,
    guest_physical_block_size=512,
)


def test_an_attachment_that_is_as_requested_passes() -> None:
    check = configuration_check(Attach(), AS_ASKED)
    assert check == ValidityCheck("configuration", ok=True, detail="21 settings are as requested")


@pytest.mark.parametrize(
    ("asked", "key", "found", "said"),
    [
        (Attach(), "aio", "threads", "requested aio = native, it is threads"),
        (Attach(), "qemu_aio", "threads", "requested qemu_aio = native, it is threads"),
        (Attach(), "qemu_iothread", False, "requested qemu_iothread = true, it is false"),
        (Attach(), "qemu_cache_direct", False, "requested qemu_cache_direct = true, it is false"),
        (Attach(), "guest_driver", "virtio_blk", "requested guest_driver = sd, it is virtio_blk"),
        (Attach(), "guest_controller_driver", "ahci", "requested guest_controller_driver = virtio_scsi, it is ahci"),
        (Attach(), "qemu_device", "scsi-block", "requested qemu_device = scsi-hd, it is scsi-block"),
        (Attach(device="lun"), "qemu_device", "scsi-hd", "requested qemu_device = scsi-block, it is scsi-hd"),
        (Attach(), "controller_disks", 2, "requested controller_disks = 1, it is 2"),
        (Attach(), "qemu_discard", "unmap", "requested qemu_discard = ignore, it is unmap"),
        (Attach(discard="unmap"), "qemu_discard", "ignore", "requested qemu_discard = unmap, it is ignore"),
        (Attach(detect_zeroes="on"), "qemu_detect_zeroes", "off", "requested qemu_detect_zeroes = on, it is off"),
        (Attach(read_only=True), "guest_read_only", False, "requested guest_read_only = true, it is false"),
        (Attach(), "qemu_iops_limit", "iops-read=1000", "requested qemu_iops_limit = none, it is iops-read=1000"),
        (
            Attach(iops=1000, iops_burst=2000, burst_seconds=5),
            "qemu_iops_limit",
            "none",
            "requested qemu_iops_limit = iops-total=1000 iops-total-max=2000 iops-total-max-length=5, it is none",
        ),
        (
            Attach(bw=1 << 20),
            "qemu_bw_limit",
            "bps-total=1000",
            "requested qemu_bw_limit = bps-total=1048576, it is bps-total=1000",
        ),
        (Attach(), "host_io_limit", "8:0 riops=500", "requested host_io_limit = none, it is 8:0 riops=500"),
        (Attach(queues=2), "qemu_queues", 1, "requested qemu_queues = 2, it is 1"),
        (Attach(packed=True), "guest_packed", False, "requested guest_packed = true, it is false"),
        (Attach(event_idx=False), "qemu_event_idx", True, "requested qemu_event_idx = false, it is true"),
        (
            Attach(metadata_cache=1 << 20),
            "qemu_metadata_cache",
            1 << 25,
            "requested qemu_metadata_cache = 1048576, it is 33554432",
        ),
        (
            Attach("virtio-blk", server="storage-daemon"),
            "qemu_device",
            "virtio-blk-pci",
            "requested qemu_device = vhost-user-blk-pci, it is virtio-blk-pci",
        ),
        (Attach(queues=2), "guest_queues", 1, "requested guest_queues = 2, it is 1"),
        (Attach(queue_size=256), "qemu_queue_size", 128, "requested qemu_queue_size = 256, it is 128"),
        (Attach(queue_size=256), "guest_queue_size", 1024, "requested guest_queue_size = 256, it is 1024"),
        (Attach(iothread_vq_mapping=2), "qemu_iothreads", 1, "requested qemu_iothreads = 2, it is 1"),
        (
            Attach(logical_block_size=4096),
            "guest_logical_block_size",
            512,
            "requested guest_logical_block_size = 4096, it is 512",
        ),
        (
            Attach(physical_block_size=4096),
            "qemu_physical_block_size",
            512,
            "requested qemu_physical_block_size = 4096, it is 512",
        ),
    ],
)
def test_a_silent_fallback_fails_with_both_values(asked: Attach, key: str, found: Any, said: str) -> None:
    check = configuration_check(asked, replace(AS_ASKED, **{key: found}))
    assert check is not None
    assert not check.ok
    assert said in check.detail.split("; ")


def test_all_differences_are_reported_at_once() -> None:
    check = configuration_check(Attach(), replace(AS_ASKED, bus="virtio", cache="writeback"))
    assert check is not None
    assert check.detail == "requested bus = scsi, it is virtio; requested cache = none, it is writeback"


def test_an_option_that_nothing_reads_back_is_named() -> None:
    found = replace(AS_ASKED, qemu_discard=None, qemu_queue_size=None, guest_queue_size=None)
    check = configuration_check(Attach(queue_size=128), found)
    assert check is not None
    assert check.ok
    assert check.detail == "20 settings are as requested; not read back: queue_size, discard"


@pytest.mark.parametrize(
    ("cache", "direct", "no_flush", "write_cache"),
    [
        ("none", True, False, True),
        ("directsync", True, False, False),
        ("writeback", False, False, True),
        ("writethrough", False, False, False),
        ("unsafe", False, True, True),
    ],
)
def test_each_cache_mode_is_compared_with_what_qemu_and_guest_report(
    cache: Cache, direct: bool, no_flush: bool, write_cache: bool
) -> None:
    """The table of cache modes in QEMU's manual, section on the block device option `cache`."""
    effective = replace(
        AS_ASKED,
        cache=cache,
        aio="threads",
        qemu_aio="threads",
        qemu_cache_direct=direct,
        qemu_cache_no_flush=no_flush,
        qemu_write_cache=write_cache,
        guest_write_cache="write back" if write_cache else "write through",
    )
    check = configuration_check(Attach(cache=cache, aio="threads"), effective)
    assert check is not None
    assert check.ok, check.detail


@pytest.mark.parametrize(
    ("bus", "said", "device", "driver", "controller"),
    [
        ("virtio-blk", "virtio", "virtio-blk-pci", "virtio_blk", "virtio-pci"),
        ("virtio-scsi", "scsi", "scsi-hd", "sd", "virtio_scsi"),
        ("sata", "sata", "ide-hd", "sd", "ahci"),
        ("ide", "ide", "ide-hd", "sd", "ata_piix"),
        ("lsi", "scsi", "scsi-hd", "sd", "sym53c8xx"),
        ("megasas", "scsi", "scsi-hd", "sd", "megaraid_sas"),
        ("pvscsi", "scsi", "scsi-hd", "sd", "vmw_pvscsi"),
    ],
)
def test_each_bus_is_known_by_qemus_device_and_the_guests_drivers(
    bus: Bus, said: str, device: str, driver: str, controller: str
) -> None:
    drivers: dict[str, Any] = {
        "bus": said,
        "qemu_device": device,
        "guest_driver": driver,
        "guest_controller_driver": controller,
    }
    for asked in BUSES.keys() - {"nvme"}:
        check = configuration_check(Attach(asked), replace(AS_ASKED, **drivers))
        assert check is not None
        assert check.ok is (asked == bus), check.detail


def test_the_write_cache_of_a_lun_is_the_hosts_disks_own() -> None:
    found = replace(AS_ASKED, qemu_device="scsi-block", guest_write_cache="write through")
    check = configuration_check(Attach(device="lun"), found)
    assert check is not None
    assert check.ok, check.detail


def test_a_disk_that_cannot_be_written_to_need_not_have_a_write_cache() -> None:
    found = replace(AS_ASKED, qemu_read_only=True, guest_read_only=True, guest_write_cache="write through")
    check = configuration_check(Attach(read_only=True), found)
    assert check is not None
    assert check.ok, check.detail


PASSED_THROUGH = Effective(qemu_device="vfio-pci", host_driver="vfio-pci", guest_driver="nvme")


def test_a_device_that_is_passed_through_is_the_guests_own() -> None:
    check = configuration_check(Vfio(), PASSED_THROUGH)
    assert check == ValidityCheck("configuration", ok=True, detail="3 settings are as requested")
    check = configuration_check(Vfio(), replace(PASSED_THROUGH, host_driver="nvme"))
    assert check is not None
    assert check.detail == "requested host_driver = vfio-pci, it is nvme"


def test_there_is_no_check_if_nothing_was_read_back() -> None:
    assert configuration_check(Attach(), Effective()) is None
