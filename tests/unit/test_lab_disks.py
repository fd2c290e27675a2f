"""The lab's simulated disks: told apart by name and serial, and made once."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from harness.features.embedded.disks import (
    CONTROLLER_DISKS,
    CONTROLLERS,
    DISKS,
    EMULATED,
    IN_MEMORY,
    EmulatedDisk,
    NullBlkDisk,
    make_creation_script,
)
from harness.lab.guard.writable import WHOLE_BYTES

MIB = 1024**2


def make(disk: NullBlkDisk, directory: Path) -> None:
    subprocess.run(["sh", "-euc", disk.creation()], cwd=directory, check=True)


def test_no_two_disks_share_a_name_a_link_or_a_serial() -> None:
    for values in zip(*((disk.name, disk.spec.id, disk.spec.serial) for disk in DISKS), strict=True):
        assert len(set(values)) == len(DISKS)


def test_there_are_four_equal_disks_for_an_array() -> None:
    members = [disk for disk in IN_MEMORY if disk.name in ("ssd1", "ssd2", "ssd3", "ssd4")]
    assert len(members) == 4
    assert len({(disk.size_bytes, disk.completion_ns, disk.queue_depth, disk.queues) for disk in members}) == 1


def test_null_blk_gets_the_settings_of_the_disk_and_is_switched_on_last(tmp_path: Path) -> None:
    disk = NullBlkDisk("slow", 256 * MIB, completion_ns=4_000_000, queue_depth=1)
    make(disk, tmp_path)
    told = {path.name: path.read_text().strip() for path in (tmp_path / "sim_slow").iterdir()}
    assert told["size"] == "256"
    assert told["completion_nsec"] == "4000000"
    assert told["hw_queue_depth"] == "1"
    assert told["discard"] == "1"
    assert told["mbps"] == "0"
    assert disk.creation().endswith("echo 1 >sim_slow/power; }")


def test_a_disk_of_limited_bandwidth_is_not_discarded_as_null_blk_would_never_end(tmp_path: Path) -> None:
    make(NullBlkDisk("capped", 256 * MIB, completion_ns=1, queue_depth=1, bandwidth_mib_s=500), tmp_path)
    assert (tmp_path / "sim_capped" / "discard").read_text().strip() == "0"
    assert (tmp_path / "sim_capped" / "mbps").read_text().strip() == "500"


def test_a_disk_that_is_there_is_left_alone(tmp_path: Path) -> None:
    disk = NullBlkDisk("known", 256 * MIB, completion_ns=1, queue_depth=1)
    make(disk, tmp_path)
    (tmp_path / "sim_known" / "size").write_text("measured on")
    make(disk, tmp_path)
    assert (tmp_path / "sim_known" / "size").read_text() == "measured on"


@pytest.mark.parametrize("disk", EMULATED, ids=lambda disk: disk.name)
def test_qemu_gives_an_emulated_disk_the_serial_by_which_it_is_found(disk: EmulatedDisk) -> None:
    words = disk.hardware(Path("/state/disk.img"))
    assert any(re.search("file(name)?=/state/disk.img,", word) for word in words)
    assert words[-1].endswith(f"drive={disk.name},serial={disk.spec.serial}")


def test_the_lab_is_ready_when_every_disk_has_its_link() -> None:
    assert make_creation_script().splitlines()[-len(DISKS) :] == [f"test -b {disk.spec.id}" for disk in DISKS]


def test_eight_disks_saturate_a_controller_and_one_does_not() -> None:
    assert [controller.disks for controller in CONTROLLERS] == [16, 8]
    for disk in CONTROLLER_DISKS:
        for own, shared in (
            (disk.limit.iops, disk.controller.limit.iops),
            (disk.limit.bytes_per_s, disk.controller.limit.bytes_per_s),
        ):
            assert own < shared <= 8 * own / 2


def test_the_disks_of_a_controller_share_its_limit_and_have_targets_of_their_own() -> None:
    for controller in CONTROLLERS:
        own = [disk for disk in CONTROLLER_DISKS if disk.controller == controller]
        assert len(own) == controller.disks
        words = [disk.hardware(Path("/state/disk.img")) for disk in own]
        assert all(f",throttle-group={controller.group}," in " ".join(each) for each in words)
        assert len({each[-1].partition("scsi-id=")[2].partition(",")[0] for each in words}) == len(own)


def test_qemu_gives_each_controller_its_address_and_its_limit() -> None:
    first, second = (controller.hardware() for controller in CONTROLLERS)
    assert first == [
        *("-object", "throttle-group,id=raid_a-limit,x-iops-total=800,x-bps-total=33554432"),
        *("-device", "virtio-scsi-pci,id=raid_a,addr=0x10.0"),
    ]
    assert second[-1] == "virtio-scsi-pci,id=raid_b,addr=0x11.0"


def test_the_guard_does_not_read_the_slow_disks_behind_controllers_as_a_whole() -> None:
    assert all(disk.size_bytes > WHOLE_BYTES for disk in CONTROLLER_DISKS)
