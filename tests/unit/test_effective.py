"""What QEMU, its process and the guest tell of a disk, from recordings of their answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast
from xml.etree import ElementTree as ET

import libvirt_qemu
import pytest

from harness.errors import GuestError
from harness.features.vfio.passing import PciDisk
from harness.guest.booting import parse_disks
from harness.guest.libvirt.connection import Connection
from harness.guest.libvirt.effective import (
    QemuProcess,
    Running,
    find_disk,
    parse_process,
    read_effective,
    read_passed_through,
)
from harness.guest.qemu_process import Engines
from harness.model.option import Effective
from tests.unit.played_shell import PlayedShell

LIVE = ET.fromstring(
    """
    <domain><name>voh-run</name>
      <os><type machine="pc-q35-10.0">hvm</type></os>
      <devices>
        <disk><driver cache="none" io="native"/><target bus="scsi"/><alias name="ua-raw"/>
          <address controller="0" unit="0"/></disk>
        <disk><driver cache="writeback" io="io_uring"/><target bus="scsi"/><alias name="ua-raw-cached"/>
          <address controller="1" unit="0"/></disk>
        <disk><driver cache="none" io="native"/><target bus="scsi"/><alias name="ua-beside"/>
          <address controller="1" unit="1"/></disk>
        <disk><driver cache="none" io="native"><iothreads><iothread id="2"/><iothread id="3"/></iothreads></driver>
          <target bus="virtio"/><alias name="ua-mapped"/></disk>
        <disk><driver cache="none" io="native"/><target bus="sata"/><alias name="ua-sata"/>
          <address controller="0" unit="2"/></disk>
        <controller type="scsi" index="1"><driver queues="2"/><alias name="scsi1"/></controller>
        <controller type="scsi" index="0"><driver iothread="1"/><alias name="scsi0"/></controller>
        <controller type="sata" index="0"><alias name="ide"/></controller>
      </devices>
    </domain>
    """
)

# As `tr '\\000' '\\n' </proc/PID/cmdline` shows QEMU 10 under libvirt 11, without what nothing here reads.
COMMAND_LINE = r"""native	2
io_uring	1
argument	/usr/bin/qemu-system-x86_64
argument	-name
argument	guest=voh-run,debug-threads=on
argument	-blockdev
argument	{"driver":"host_device","filename":"/dev/disk/by-id/lab","aio":"native","node-name":"libvirt-5-storage","read-only":false,"cache":{"direct":true,"no-flush":false}}
argument	-blockdev
argument	{"driver":"file","filename":"/a/cached","aio":"io_uring","node-name":"libvirt-4-storage","auto-read-only":true,"discard":"unmap"}
argument	-blockdev
argument	{"node-name":"libvirt-4-format","read-only":false,"discard":"unmap","driver":"qcow2","file":"libvirt-4-storage"}
argument	-blockdev
argument	{"driver":"file","filename":"/a/raw","node-name":"libvirt-3-storage","auto-read-only":true,"discard":"unmap"}
argument	-blockdev
argument	{"node-name":"libvirt-3-format","read-only":false,"driver":"raw","file":"libvirt-3-storage"}
argument	-device
argument	{"driver":"scsi-hd","bus":"scsi0.0","drive":"libvirt-5-storage","id":"ua-raw"}
"""  # noqa: E501

DEVICES: dict[str, dict[str, Any]] = {
    "ua-raw": {"type": "scsi-hd", "logical_block_size": 512, "physical_block_size": 4096},
    "ua-raw-cached": {"type": "scsi-hd", "logical_block_size": 512, "physical_block_size": 512},
    "ua-mapped": {
        "type": "virtio-blk-pci",
        "num-queues": 2,
        "queue-size": 256,
        "iothread": "",
        "iothread-vq-mapping": [{"iothread": "iothread2"}, {"iothread": "iothread3"}],
    },
    "ua-sata": {"type": "ide-hd"},
    "scsi0": {"type": "virtio-scsi-pci", "num_queues": 1, "virtqueue_size": 128, "iothread": "/objects/iothread1"},
    "scsi1": {"type": "virtio-scsi-pci", "num_queues": 2, "virtqueue_size": 128, "iothread": ""},
}
NODES = {
    "ua-raw": "libvirt-5-storage",
    "ua-raw-cached": "libvirt-4-format",
    "ua-mapped": "libvirt-3-format",
    "ua-sata": "libvirt-3-format",
}


NO_LIMITS = dict.fromkeys(("bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"), 0)
LIMITS: dict[str, dict[str, Any]] = dict.fromkeys(NODES, NO_LIMITS) | {
    "ua-mapped": NO_LIMITS | {"iops": 1000, "iops_max": 2000, "iops_max_length": 5, "iops_size": 0, "group": "drive1"},
    "ua-sata": NO_LIMITS | {"bps_wr": 1048576, "bps_wr_max": 2097152, "bps_wr_max_length": 1},
}
"""As `query-block` reports them: the bursts only of disks with a limit."""


class Connected:
    host = "kvm1"


def block(alias: str, node: str) -> dict[str, Any]:
    cache = {"direct": True, "no-flush": False, "writeback": True}
    inserted: dict[str, Any] = {"node-name": node, "cache": cache, "detect_zeroes": "off", "ro": False, "drv": "raw"}
    inserted |= LIMITS[alias]
    return {"qdev": alias, "inserted": inserted}


def answer(query: dict[str, Any]) -> Any:
    """What QEMU says to one command."""
    arguments = query["arguments"]
    device = DEVICES[arguments["path"].removeprefix("/machine/peripheral/")]
    if query["execute"] == "qom-list":
        return {"return": [{"name": name} for name in device]}
    return {"return": device[arguments["property"]]}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Effective]:
    """Reads what is in effect of the disk with an alias, of a QEMU whose answers are recorded."""
    monkeypatch.setattr(
        libvirt_qemu, "qemuMonitorCommand", lambda _domain, text, _flags: json.dumps(answer(json.loads(text)))
    )
    blocks = [block(alias, node) for alias, node in NODES.items()]
    guest = Running(LIVE, parse_process(COMMAND_LINE), blocks)
    return lambda alias: read_effective(cast(Connection, Connected()), None, guest, alias)


def test_a_scsi_disk_has_the_queues_and_the_thread_of_its_controller(
    read: Callable[[str], Effective],
) -> None:
    found = read("ua-raw")
    assert (found.bus, found.qemu_device, found.machine) == ("scsi", "scsi-hd", "pc-q35-10.0")
    assert (found.qemu_queues, found.qemu_queue_size) == (1, 128)
    assert (found.iothread, found.qemu_iothread, found.qemu_iothreads) == (True, True, 1)
    assert (found.qemu_logical_block_size, found.qemu_physical_block_size) == (512, 4096)
    assert found.controller_disks == 1
    assert found.libvirt_disk is not None
    disk, controller = ET.fromstring(f"<both>{found.libvirt_disk}</both>")
    assert (disk.tag, controller.tag) == ("disk", "controller")
    assert {each.tag for each in disk} <= {"driver", "target", "blockio", "readonly"}
    assert [each.get("iothread") for each in controller.iter("driver")] == ["1"]


def test_disks_on_one_controller_are_counted(read: Callable[[str], Effective]) -> None:
    found = read("ua-raw-cached")
    assert (found.controller_disks, found.qemu_queues, found.qemu_iothread) == (2, 2, False)


def test_queues_of_virtio_blk_are_spread_over_several_threads(read: Callable[[str], Effective]) -> None:
    found = read("ua-mapped")
    assert (found.iothread, found.qemu_iothread, found.qemu_iothreads) == (True, True, 2)
    assert (found.qemu_queues, found.qemu_queue_size) == (2, 256)


def test_a_device_without_queues_reports_none_and_has_no_thread(read: Callable[[str], Effective]) -> None:
    found = read("ua-sata")
    assert found.qemu_iothread is False
    assert (found.qemu_queues, found.qemu_queue_size, found.controller_disks) == (None, None, None)


@pytest.mark.parametrize(
    ("alias", "iops", "bw"),
    [
        ("ua-raw", "none", "none"),
        ("ua-mapped", "iops-total=1000 iops-total-max=2000 iops-total-max-length=5", "none"),
        ("ua-sata", "none", "bps-write=1048576 bps-write-max=2097152"),
    ],
)
def test_every_limit_of_qemu_is_read_back(read: Callable[[str], Effective], alias: str, iops: str, bw: str) -> None:
    found = read(alias)
    assert (found.qemu_iops_limit, found.qemu_bw_limit) == (iops, bw)


def test_a_refused_query_is_an_error_and_not_a_missing_thread(
    read: Callable[[str], Effective], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEVICES, "scsi0", {"type": "virtio-scsi-pci", "iothread": "/objects/iothread1"})
    refused = json.dumps({"error": {"desc": "it is shutting down"}})
    calls = libvirt_qemu.qemuMonitorCommand
    monkeypatch.setattr(
        libvirt_qemu,
        "qemuMonitorCommand",
        lambda domain, text, flags: refused if '"property": "iothread"' in text else calls(domain, text, flags),
    )
    with pytest.raises(GuestError, match="QEMU refused qom-get: it is shutting down"):
        read("ua-raw")


@pytest.mark.parametrize(
    ("device", "answer", "said"),
    [
        ("scsi0", {"num_queues": "1"}, 'qemu_queues = "1": Input should be a valid integer'),
        ("ua-raw", {"logical_block_size": 512.5}, "qemu_logical_block_size = 512.5: Input should be a valid integer"),
        ("ua-raw", {"type": {"name": "scsi-hd"}}, "qemu_device: Input should be a valid string"),
    ],
)
def test_an_answer_of_another_type_is_an_error_that_names_disk_and_setting(
    read: Callable[[str], Effective], monkeypatch: pytest.MonkeyPatch, device: str, answer: dict[str, Any], said: str
) -> None:
    monkeypatch.setitem(DEVICES, device, DEVICES[device] | answer)
    with pytest.raises(GuestError) as caught:
        read("ua-raw")
    assert caught.value.message == f"host kvm1: how QEMU serves the guest's disk ua-raw cannot be read: {said}"


@pytest.mark.usefixtures("read")
def test_an_answer_of_another_type_about_a_device_that_is_passed_through_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(DEVICES, "ua-nvme", {"type": "vfio-pci", "host": 1})
    host = PlayedShell({"readlink": "../../../bus/pci/drivers/vfio-pci\n"})
    disk = PciDisk("/dev/nvme0n1", "0000:01:00.0", "vfio-pci", "NVME1", "12", (), ("nvme0n1",), has_vfio=True)
    with pytest.raises(GuestError, match="how QEMU passes ua-nvme through cannot be read: qemu_host = 1: Input should"):
        read_passed_through(cast(Connection, Connected()), None, host, disk, "ua-nvme")


def test_a_missing_disk_is_named_with_the_existing_ones() -> None:
    with pytest.raises(GuestError, match="guest voh-run: libvirt shows no disk ua-gone; it has ua-raw, ua-raw-cached"):
        find_disk(LIVE, "ua-gone")


# --- QEMU's process ---


@pytest.mark.parametrize(
    ("node", "aio"),
    [("libvirt-5-storage", "native"), ("libvirt-4-format", "io_uring"), ("libvirt-3-format", "threads")],
)
def test_the_engine_is_the_argument_of_the_file_below_the_disk(node: str, aio: str) -> None:
    assert parse_process(COMMAND_LINE).aio(node) == aio


def test_an_engine_that_qemus_log_drops_is_not_in_effect() -> None:
    log = "log\tUnable to use Linux AIO, falling back to thread pool: Resource temporarily unavailable\n"
    process = parse_process(log + COMMAND_LINE)
    assert process.aio("libvirt-5-storage") == "threads"
    assert process.aio("libvirt-4-format") == "io_uring"


def test_an_engine_without_a_ring_was_never_set_up() -> None:
    without = COMMAND_LINE.replace("io_uring\t1", "io_uring\t0")
    process = parse_process(without.replace('"driver":"qcow2"', '"driver":"raw"'))
    assert process.aio("libvirt-4-format") == "threads"
    assert process.aio("libvirt-5-storage") == "native"
    assert parse_process(without).aio("libvirt-4-format") == "io_uring", "an empty qcow2 image was not read yet"


@pytest.mark.parametrize(
    ("node", "discard"),
    [("libvirt-5-storage", "ignore"), ("libvirt-4-format", "unmap"), ("libvirt-3-format", "ignore")],
)
def test_a_discard_reaches_the_disk_only_through_layers_that_all_pass_it_on(node: str, discard: str) -> None:
    assert parse_process(COMMAND_LINE).discard(node) == discard


def test_a_block_device_that_the_arguments_lack_is_named() -> None:
    with pytest.raises(
        GuestError, match="QEMU's arguments have no block device libvirt-9-format; they have libvirt-5-storage"
    ):
        parse_process(COMMAND_LINE).aio("libvirt-9-format")


def test_a_process_without_block_devices_has_none() -> None:
    assert parse_process("native\t0\nio_uring\t0\nargument\tqemu\n") == QemuProcess(
        {}, Engines({"native": 0, "io_uring": 0}), ("qemu",)
    )


# --- the guest ---

FEATURES = "".join("1" if bit in (28, 29, 32, 34) else "0" for bit in range(64))
"""As Linux prints a virtio device's features: event_idx and packed rings are 29 and 34."""
SEEN = (
    f"sda\traw\t[none] mq-deadline\t1\twrite back\t512\t4096\t256\t1073741824\t0\t1\t128\tsd\tvirtio_scsi\t{FEATURES}\n"
    "vda\tmapped\t[none]\t0\twrite through\t4096\t4096\t256\t0\t1\t2\t\tvirtio_blk\tvirtio-pci\t\n"
)


def test_a_guest_reports_each_disk_by_its_serial() -> None:
    found = parse_disks(SEEN)
    assert {serial: device.path for serial, device in found.items()} == {"raw": "/dev/sda", "mapped": "/dev/vda"}
    assert found["raw"].effective == Effective(
        guest_scheduler="[none] mq-deadline",
        guest_rotational=True,
        guest_write_cache="write back",
        guest_logical_block_size=512,
        guest_physical_block_size=4096,
        guest_nr_requests=256,
        guest_discard_max_bytes=1073741824,
        guest_read_only=False,
        guest_queues=1,
        guest_queue_size=128,
        guest_packed=True,
        guest_event_idx=True,
        guest_driver="sd",
        guest_controller_driver="virtio_scsi",
    )
    assert found["mapped"].effective.guest_read_only is True
