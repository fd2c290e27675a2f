"""Which devices a running VM of others gets for our disks, and what it cannot get while it runs."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import libvirt
import pytest

from harness.features.borrow.libvirt import add_plugged, devices_for, list_differences, refuse_disk
from harness.guest.booting import LinuxInside
from harness.guest.libvirt.effective import QemuProcess, Running
from harness.guest.protocol import GuestDisk
from harness.guest.qemu_process import Engines
from harness.layout import BlockSource
from harness.model.attach import Attach, Attachment, Vfio
from harness.model.guest import ANY_GUEST, GuestOptions
from tests.unit.pluggable_domain import DEFINITION

LIVE = ET.fromstring(DEFINITION)
VOLUME = BlockSource("/dev/voh/lvm", "block", 0, 1 << 26)
FILE = BlockSource("/mnt/raw.raw", "file", 0, 1 << 26)
DISKS = (
    GuestDisk("lvm", VOLUME, Attach(iothread=True)),
    GuestDisk("raw", FILE, Attach("virtio-scsi", iothread=False)),
    GuestDisk("blk", VOLUME, Attach("virtio-blk", iothread=True)),
    GuestDisk("other", FILE, Attach("virtio-blk", iothread=False), shared=True),
)


def test_what_is_plugged_in_has_names_indexes_and_threads_that_the_vm_does_not_have() -> None:
    found = devices_for(LIVE, DISKS, "7")
    assert found.threads == (3, 4)
    controllers = [ET.fromstring(each.xml) for each in found.controllers]
    assert [each.get("index") for each in controllers] == ["1", "3"]
    assert [each.alias for each in found.controllers] == ["ua-voh-7-1", "ua-voh-7-3"]
    assert [each.get("iothread") for one in controllers for each in one.iterfind("driver")] == ["3"]
    assert {name: each.target for name, each in found.disks.items()} == {
        "lvm": "sdb",
        "raw": "sdc",
        "blk": "vdb",
        "other": "vdc",
    }
    assert [each.source for each in found.disks.values()] == [VOLUME.path, FILE.path] * 2
    blk = ET.fromstring(found.disks["blk"].xml)
    assert blk.find("address") is None
    assert [each.get("iothread") for each in blk.iterfind("driver")] == ["4"]


def test_libvirts_own_schema_accepts_the_vm_with_all_of_it() -> None:
    domain = ET.fromstring(DEFINITION)
    found = devices_for(LIVE, DISKS, "7")
    (devices,) = domain.iterfind("devices")
    devices.extend(ET.fromstring(each.xml) for each in (*found.controllers, *found.disks.values()))
    (threads,) = domain.iterfind("iothreads")
    threads.text = "4"
    connection = libvirt.open("test:///default")
    try:
        text = ET.tostring(domain, encoding="unicode").replace('type="kvm"', 'type="test"')
        assert connection.defineXMLFlags(text, libvirt.VIR_DOMAIN_DEFINE_VALIDATE).name() == "shop"
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("attach", "options", "why"),
    [
        (Attach(), GuestOptions(vcpus=4, machine="q35"), "leave out vcpus, machine of [guest]"),
        (Vfio(), ANY_GUEST, "leave out borrow for VFIO"),
        (Attach("sata", iothread=False), ANY_GUEST, 'bus = "sata"'),
        (Attach(poll_max_ns=0), ANY_GUEST, "poll_max_ns cannot be changed"),
        (Attach(queue_size=64), ANY_GUEST, 'queue_size with bus = "virtio-scsi"'),
        (Attach(queues=4), ANY_GUEST, "the guest has 2"),
    ],
    ids=["size", "vfio", "bus", "polling", "controller", "queues"],
)
def test_what_a_running_vm_cannot_get_is_refused_with_the_key(
    attach: Attachment, options: GuestOptions, why: str
) -> None:
    assert why in (refuse_disk("the borrowed VM shop", 2, attach, options) or "")


@pytest.mark.parametrize("attach", [Attach(), Attach("virtio-blk", queue_size=64, queues=2), Attach(queues=2)])
def test_what_it_can_get_is_not_refused(attach: Attach) -> None:
    assert refuse_disk("the borrowed VM shop", 2, attach, ANY_GUEST) is None


SYSTEM = {"user": "0", "fio": "fio-3.39", "os": "debian ", "virtio_scsi": "yes"}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, None),
        ({"user": "1000"}, "log in as root"),
        ({"fio": ""}, "in the borrowed VM shop, fio is not installed: apt-get install fio"),
        ({"virtio_scsi": ""}, "no driver virtio_scsi"),
    ],
    ids=["nothing", "root", "fio", "driver"],
)
def test_what_its_system_lacks_is_reported_with_the_remedy(changed: dict[str, str], why: str | None) -> None:
    found = LinuxInside(SYSTEM | changed).unsupported_by_guest_os("the borrowed VM shop", Attach())
    assert (found is None) if why is None else (found is not None and why in found)


def test_what_others_change_meanwhile_is_named() -> None:
    after = ET.fromstring(DEFINITION.replace('"scsi2"', '"scsi4"').replace("<iothreads>2", "<iothreads>1"))
    assert list_differences(LIVE, LIVE) == []
    assert list_differences(LIVE, after) == [
        "controller scsi2 was removed",
        "iothread 2 was removed",
        "controller scsi4 was added",
    ]


@pytest.mark.parametrize(("rings", "engine"), [(3, "io_uring"), (0, "threads")])
def test_engine_and_discard_of_a_plugged_disk_are_those_of_libvirt_unless_qemu_has_no_such_engine(
    rings: int, engine: str
) -> None:
    live = ET.fromstring(DEFINITION)
    (devices,) = live.iterfind("devices")
    attach = Attach("virtio-blk", aio="io_uring", discard="unmap")
    devices.append(ET.fromstring(devices_for(live, [GuestDisk("blk", VOLUME, attach)], "7").disks["blk"].xml))
    blocks = [{"qdev": "ua-blk", "inserted": {"node-name": "libvirt-9-format"}}]
    process = QemuProcess({}, Engines({"io_uring": rings, "native": 0}))
    found = add_plugged(Running(live, process, blocks), ["ua-blk"]).process
    assert found.aio("libvirt-9-format") == engine
    assert found.discard("libvirt-9-format") == "unmap"
