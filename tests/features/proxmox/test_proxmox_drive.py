"""Drives: what we ask of Proxmox VE, what it makes of that, and that libvirt makes the same of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, get_args
from xml.etree import ElementTree as ET

import pytest

from harness.features.proxmox.guest import find_drive, parse_resolved
from harness.features.proxmox.vm_config import choose_controller, choose_drives, format_drive, parse_drive, refuse_drive
from harness.guest.libvirt.domain import GuestSpec, build_domain_xml
from harness.guest.protocol import GuestDisk
from harness.guest.qemu_process import InspectedProcess, parse_inspected
from harness.layout import BlockSource
from harness.model.attach import CACHES, Aio, Attach, Cache, DetectZeroes, Discard
from harness.model.option import Bus, Effective
from harness.model.values import format_limits
from harness.results.validity import configuration_check
from pve_double import nodeshell, schema
from pve_double.state import Node
from tests.features.proxmox.proxmox_nodes import double

RECORDED = [json.loads(line) for line in (schema.DATA / "drives.jsonl").read_text().splitlines()]
PINNED = [each for each in RECORDED if {"cache", "aio"} <= parse_drive(each["val"]).keys()]
VOLUME = "local-lvm:vm-9000-disk-0"
ZEROES: tuple[tuple[DetectZeroes, Discard], ...] = (
    ("off", "ignore"),
    ("on", "ignore"),
    ("unmap", "unmap"),
    ("off", "unmap"),
)
BUSES: tuple[Bus, ...] = ("virtio-blk", "virtio-scsi", "sata")


def words_of(record: dict[str, Any]) -> list[str]:
    return [word for argument in record["args"] for word in argument.split(" ", 1)]


def meant(record: dict[str, Any]) -> Attach:
    """The attachment that a recorded drive string stands for."""
    options = parse_drive(record["val"])
    buses: dict[str, Bus] = {"virtio": "virtio-blk", "scsi": "virtio-scsi", "sata": "sata"}
    return Attach(
        bus=buses[record["key"].rstrip("0123456789")],
        cache=options["cache"],  # type: ignore[arg-type] # recorded in PVE's words, which are ours
        aio=options["aio"],  # type: ignore[arg-type]
        iothread=options.get("iothread") == "1",
    )


def offered(bus: Bus) -> Iterator[Attach]:
    """Every attachment on the bus that Proxmox VE has drive options for."""
    for cache, aio, iothread, (zeroes, discard), read_only, queues in product(
        get_args(Cache), get_args(Aio), (True, False), ZEROES, (True, False), (None, 2)
    ):
        attach = Attach(
            bus=bus,
            cache=cache,
            aio=aio,
            iothread=iothread,
            detect_zeroes=zeroes,
            discard=discard,
            read_only=read_only,
            queues=queues,
        )
        if refuse_drive(attach) is None:
            yield attach
    if bus != "virtio-blk":
        yield Attach(bus, iothread=False, ssd=True)
    yield Attach(bus, iothread=False, iops=1000)
    yield Attach(bus, iothread=False, iops=1000, iops_burst=2000, bw=12_345_678, bw_burst=20 << 20, burst_seconds=5)
    yield Attach(bus, iothread=False, read_iops=1000, write_iops=500, read_bw=12_345_678, write_bw=20 << 20)
    yield Attach(bus, iothread=False, read_iops=10, read_iops_burst=20, write_bw=1 << 20, write_bw_burst=2 << 20)
    yield Attach(bus, iothread=False, write_iops=10, write_iops_burst=20, burst_seconds=3, iops_burst=None)


@pytest.mark.parametrize("record", PINNED, ids=lambda each: f"{each['machine']}-{each['key']}-{each['val']}")
def test_cache_and_aio_are_read_back_as_requested(record: dict[str, Any]) -> None:
    attach, found = meant(record), parse_resolved(words_of(record), record["key"])
    assert found is not None
    assert (found.cache, found.aio) == (attach.cache, attach.aio)
    assert (found.direct, found.no_flush, found.write_cache) == CACHES[attach.cache]
    assert found.iothread == attach.iothread


@pytest.mark.parametrize("record", PINNED, ids=lambda each: f"{each['machine']}-{each['key']}-{each['val']}")
def test_our_drive_string_has_all_options_of_a_recorded_one(record: dict[str, Any]) -> None:
    attach = meant(record)
    if attach.aio == "native" and not attach.direct:
        assert "aio native with cache" in (refuse_drive(attach) or "")
        return
    recorded = parse_drive(record["val"])
    ours = parse_drive(format_drive(recorded["file"], attach, "lvm"))
    assert recorded.items() <= ours.items()
    assert ours["serial"] == "lvm"
    assert {"cache", "aio", "discard", "detect_zeroes", "iothread"} <= ours.keys()


def test_the_recordings_have_every_cache_with_every_aio_on_every_kind_of_source() -> None:
    assert len({(each["val"], each["machine"]) for each in PINNED}) == 4 * 5 * 3 * 2


@pytest.mark.parametrize(
    ("scsihw", "has"), [("virtio-scsi-single", True), ("virtio-scsi-pci", False), ("lsi", False), ("megasas", False)]
)
def test_an_iothread_that_pve_ignores_is_not_read_back(scsihw: str, has: bool) -> None:
    record = next(
        each
        for each in RECORDED
        if (each["scsihw"], each["machine"], each["val"]) == (scsihw, "default", "local-lvm:vm-900-disk-0,iothread=1")
    )
    found = parse_resolved(words_of(record), "scsi0")
    assert found is not None
    assert found.iothread == has


def test_the_longest_recorded_drive_is_read_back_whole() -> None:
    for record in RECORDED:
        if "queues=4" in record["val"]:
            found = parse_resolved(words_of(record), "scsi0")
            assert found is not None
            assert (found.queues, found.read_only, found.discard, found.detect_zeroes) == (4, True, "unmap", "off")
            assert (found.device, found.controller_disks) == ("scsi-hd", 1)


def test_limits_of_one_direction_are_read_back_from_the_older_form_of_qemus_arguments() -> None:
    (record,) = (each for each in RECORDED if "iops_rd=100" in each["val"] and each["machine"].startswith("pc-i440fx"))
    found = parse_resolved(words_of(record), record["key"])
    assert found is not None
    assert found.limits == {"iops-read": 100, "bps-write": 10 << 20}


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A node with a VM whose drives can be exchanged."""
    with double() as (found, client):
        client.task(
            "post",
            "nodes/pve/qemu",
            {"vmid": 9000, "scsihw": "virtio-scsi-single", "machine": "q35", "scsi5": "local-lvm:1"},
            is_done=lambda: False,
            deadline=30,
        )
        yield found


def process_with(node: Node, drive: str, key: str) -> InspectedProcess:
    """QEMU as `qm showcmd` has it for the VM with this drive alone."""
    config = node.machine(9000).config
    kept = {name: value for name, value in config.items() if not name.startswith(("scsi0", "virtio0", "sata0"))}
    config.clear()
    config.update(kept | {key: drive})
    printed = nodeshell.run(node, ["qm", "showcmd", "9000"])
    assert printed.status == 0, printed.text
    return parse_inspected(f"command\t{printed.text.strip()}\n")


@pytest.mark.parametrize("bus", BUSES)
def test_every_offered_attachment_is_read_back_as_requested_and_as_with_libvirt(node: Node, bus: Bus) -> None:
    attachments = list(offered(bus))
    assert len(attachments) > 20
    for attach in attachments:
        (key,) = choose_drives({"mode": bus}).values()
        drive = format_drive(VOLUME, attach, "mode")
        process = process_with(node, drive, key)
        found = find_drive(process, key)
        check = configuration_check(
            replace(attach, queues=None) if bus == "virtio-blk" else attach,
            Effective(
                bus=key.rstrip("0"),
                qemu_device=found.device,
                cache=parse_drive(drive)["cache"],
                aio=parse_drive(drive)["aio"],
                qemu_aio=process.engines.in_effect(found.aio, found.format),
                qemu_cache_direct=found.direct,
                qemu_cache_no_flush=found.no_flush,
                qemu_write_cache=found.write_cache,
                qemu_iothread=found.iothread,
                qemu_discard=found.discard,
                qemu_detect_zeroes=found.detect_zeroes,
                qemu_read_only=found.read_only,
                qemu_rotation_rate=found.rotation_rate,
                qemu_queues=found.queues,
                qemu_iops_limit=format_limits(found.limits, "iops"),
                qemu_bw_limit=format_limits(found.limits, "bps"),
            ),
        )
        assert check is not None
        assert check.ok, (attach, check.detail)
        assert as_libvirt_has_it(attach) == (found.cache, found.aio, found.iothread)


def as_libvirt_has_it(attach: Attach) -> tuple[str, str, bool]:
    """Cache, aio and iothread of the disk in the domain that libvirt is given for the same attachment."""
    disk = GuestDisk("mode", BlockSource("/dev/pve/volume", "block", 0, 1), attach)
    spec = GuestSpec(
        "voh-run",
        "6f0b8f6e-5d0a-4f5e-9a0e-0d5b1d0c9a11",
        "run",
        "kvm",
        "/kernel",
        "/initramfs",
        20022,
        "/console",
        (disk,),
        vcpus=2,
    )
    domain = ET.fromstring(build_domain_xml(spec))
    driver = domain.find("devices/disk/driver")
    assert driver is not None
    on_disk = "iothread" in driver.attrib
    on_controller = any("iothread" in each.attrib for each in domain.iterfind("devices/controller/driver"))
    return driver.attrib["cache"], driver.attrib["io"], on_disk or on_controller


@pytest.mark.parametrize(
    ("attach", "said"),
    [
        (Attach(bus="nvme"), "has no bus nvme; allowed: virtio-blk, virtio-scsi, sata"),
        (Attach(bus="ide", iothread=False), "has no bus ide"),
        (Attach(bus="lsi"), "an iothread for lsi"),
        (Attach(bus="sata", iothread=True), "an iothread for sata"),
        (Attach(controller="shared"), 'iothread with controller = "shared"'),
        (Attach(controller="shared", iothread=False, queues=2), 'queues with controller = "shared"'),
        (Attach(iops=1, throttle_group="both"), 'throttle_group = "both"'),
        (Attach(bus="sata", iothread=False, read_only=True), "read_only for sata"),
        (Attach(bus="virtio-blk", ssd=True), "ssd for virtio-blk"),
        (Attach(device="lun"), 'device = "lun"'),
        (Attach(detect_zeroes="unmap"), "detect_zeroes unmap with discard ignore"),
        (Attach(cache="writeback", aio="native"), "aio native with cache writeback"),
    ],
    ids=str,
)
def test_an_option_that_pve_lacks_is_refused_by_name(attach: Attach, said: str) -> None:
    assert said in (refuse_drive(attach) or "")
    with pytest.raises(ValueError, match=r"."):
        format_drive(VOLUME, attach, "serial")


@pytest.mark.parametrize("bus", ["lsi", "megasas", "pvscsi"])
def test_a_controller_that_qemu_emulates_is_the_kind_of_the_vm(bus: Bus) -> None:
    attach = Attach(bus, iothread=False, read_only=True)
    assert choose_controller([attach, attach]) == bus
    assert parse_drive(format_drive(VOLUME, attach, "serial"))["ro"] == "1"
    assert choose_drives({"one": bus, "two": bus}) == {"one": "scsi0", "two": "scsi1"}
    with pytest.raises(ValueError, match="one kind of SCSI controller"):
        choose_controller([attach, Attach()])


def test_each_disk_gets_its_own_free_drive() -> None:
    keys = choose_drives({"a": "virtio-scsi", "b": "virtio-blk", "c": "virtio-scsi", "d": "sata"}, ["scsi0", "memory"])
    assert keys == {"a": "scsi1", "b": "virtio0", "c": "scsi2", "d": "sata0"}
    with pytest.raises(ValueError, match="room for 6 disks on sata"):
        choose_drives({str(number): "sata" for number in range(7)})


def test_an_engine_that_qemu_dropped_is_not_in_effect() -> None:
    engines = parse_inspected("native\t0\nio_uring\t1\nargument\t-machine\nargument\tq35\n").engines
    asked = ("native", "io_uring", "threads")
    assert [engines.in_effect(each, "raw") for each in asked] == ["threads", "io_uring", "threads"]
    assert [engines.in_effect(each, "qcow2") for each in asked] == ["native", "io_uring", "threads"]
