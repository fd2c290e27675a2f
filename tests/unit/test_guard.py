"""Which disks are written to: the judgement for every reason against one, and the evidence from real devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import SafetyError
from harness.lab.guard import DiskSeen, inspect, refusals, require_writable
from harness.lab.inventory import DiskByFile, DiskById, DiskSpec
from harness.lab.transport.base import Completed
from tests.unit.loop_disks import RUNNER, loop, mounted, partition, require, run, sparse

BY_ID = DiskById("optane", "/dev/disk/by-id/nvme-900P", "PHM1", destroy=True)
BY_FILE = DiskByFile("loop", Path("/var/tmp/loop.img"), 2 << 30, destroy=True)
BLANK = DiskSeen(
    device="/dev/nvme0n1",
    serials=("INTEL_900P_PHM1", "PHM1"),
    backing_file="",
    size_bytes=256 << 30,
    read_only=False,
    is_whole_disk=True,
    mounts=(),
    holders=(),
    swaps=(),
    is_root=False,
    partitions=(),
    signatures=(),
)
OURS = replace(BLANK, partitions=("voh:run:device", "voh:run:lvm"), signatures=("nvme0n1: gpt", "nvme0n1p2: LVM2"))


@pytest.mark.parametrize(
    ("spec", "seen"),
    [(BY_ID, BLANK), (BY_ID, OURS), (BY_FILE, replace(BLANK, serials=(), backing_file="/var/tmp/loop.img"))],
    ids=["blank", "what a killed run of ours left", "a loop device on its file"],
)
def test_a_disk_with_nothing_of_others_is_accepted(spec: DiskSpec, seen: DiskSeen) -> None:
    assert refusals(spec, seen) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"serials": ("PHM2",)}, "its serial is PHM2, not PHM1"),
        ({"serials": ("A_PHM2", "PHM2")}, "its serial is A_PHM2 or PHM2, not PHM1"),
        ({"serials": ()}, "its serial is unknown, not PHM1"),
        ({"is_whole_disk": False}, "it is not a whole disk"),
        ({"read_only": True}, "it is read-only"),
        ({"is_root": True}, "the host's root file system is on it"),
        ({"mounts": ("/dev/nvme0n1p1 on /data",)}, "/dev/nvme0n1p1 on /data is mounted"),
        ({"swaps": ("/dev/nvme0n1p3",)}, "/dev/nvme0n1p3 is used as swap"),
        ({"holders": ("nvme0n1 by dm-0",)}, "nvme0n1 by dm-0 is in use (LVM, md, multipath or the like)"),
        ({"signatures": ("nvme0n1: ext4",)}, "nvme0n1: ext4 is there and not of our making"),
        ({"partitions": ("EFI", "")}, "it has partitions that are not of our making"),
        (
            {"partitions": ("voh:run:device", "EFI"), "signatures": ("nvme0n1: gpt",)},
            "nvme0n1: gpt is there and not of our making",
        ),
        ({"partitions": ("vohoo",), "signatures": ("nvme0n1: gpt",)}, "nvme0n1: gpt is there and not of our making"),
    ],
)
def test_each_reason_against_a_disk_is_told_by_itself(change: dict[str, Any], reason: str) -> None:
    assert refusals(BY_ID, replace(BLANK, **change)) == [reason]


@pytest.mark.parametrize("change", [{"mounts": ("/dev/a on /b",)}, {"holders": ("a by dm-0",)}, {"is_root": True}])
def test_what_is_in_use_is_refused_though_it_bears_our_name(change: dict[str, Any]) -> None:
    assert len(refusals(BY_ID, replace(OURS, **change))) == 1


@pytest.mark.parametrize("spec", [BY_ID, BY_FILE])
def test_a_disk_that_its_owner_did_not_release_is_refused(spec: DiskById | DiskByFile) -> None:
    seen = replace(BLANK, backing_file="/var/tmp/loop.img")
    assert refusals(replace(spec, destroy=False), seen) == ["its owner did not write `destroy = true` in the lab file"]


def test_a_loop_device_on_another_file_is_refused() -> None:
    assert refusals(BY_FILE, replace(BLANK, backing_file="/home/disk.img")) == [
        "its backing file is /home/disk.img, not /var/tmp/loop.img"
    ]


def test_a_disk_that_is_not_there_is_refused() -> None:
    assert refusals(BY_ID, None) == ["there is no such block device on the host"]


def test_all_reasons_are_told_at_once() -> None:
    assert len(refusals(BY_ID, replace(BLANK, serials=(), is_root=True, read_only=True))) == 3


class Recorded:
    """A host that says of a disk what a host of Debian 13 said (data/guard)."""

    def __init__(self, recording: str) -> None:
        self.name = "host there"
        self._said = (Path(__file__).parent / "data" / "guard" / f"{recording}.txt").read_text()

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: float,  # noqa: ARG002
        stdin: str | bytes | None = None,  # noqa: ARG002
        check: bool = True,  # noqa: ARG002
    ) -> Completed:
        return Completed(tuple(argv), 0, self._said, "")

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("recording", "device", "serial"),
    [
        ("scsi", "/dev/sda", "sim_scsi"),
        ("nvme", "/dev/nvme0n1", "sim_nvme"),
        ("md", "/dev/md127", "5406367e:9acc34e6:c6bc2170:54d01746"),
    ],
)
def test_a_disk_of_each_kind_is_known_by_its_serial_and_by_no_other(recording: str, device: str, serial: str) -> None:
    spec = DiskById("disk", "/dev/disk/by-id/disk", serial, destroy=True)
    assert require_writable(Recorded(recording), spec, spec.id).device == device
    (reason,) = refusals(replace(spec, serial=serial[:-1]), inspect(Recorded(recording), spec.id))
    assert reason.endswith(f"not {serial[:-1]}")


def test_a_member_of_an_array_is_refused_by_the_array_that_holds_it() -> None:
    spec = DiskById("ssd1", "/dev/disk/by-id/lab-sim_ssd1", "sim_ssd1", destroy=True)
    assert refusals(spec, inspect(Recorded("member"), spec.id)) == [
        "sim_ssd1 by md127 is in use (LVM, md, multipath or the like)",
        "sim_ssd1: linux_raid_member is there and not of our making",
    ]


def test_a_device_of_device_mapper_is_known_by_its_uuid_and_refused_for_it_takes_no_partitions() -> None:
    uuid = "LVM-77VxU2lbSQzI9NYCxsVfD3ot0r8CcXYocAGRfzOqRufz1UUWj0tKi2lgRn8228D2"
    spec = DiskById("volume", f"/dev/disk/by-id/dm-uuid-{uuid}", uuid, destroy=True)
    assert refusals(spec, inspect(Recorded("lv"), spec.id)) == ["it is not a whole disk"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    require("mkfs.ext4")
    return sparse(tmp_path / "disk.img", 64 << 20)


def by_file(file: Path) -> DiskByFile:
    return DiskByFile("loop", file, 64 << 20, destroy=True)


def seen_on(device: str) -> DiskSeen:
    seen = inspect(RUNNER, device)
    assert seen is not None
    return seen


def test_a_blank_loop_device_may_be_written_to(file: Path) -> None:
    with loop(file) as device:
        seen = require_writable(RUNNER, by_file(file), device)
    assert (seen.device, seen.backing_file, seen.size_bytes) == (device, str(file), 64 << 20)
    assert not seen.is_ours


def test_a_file_system_on_the_disk_is_refused_by_its_name_with_a_remedy(file: Path) -> None:
    with loop(file) as device:
        run("mkfs.ext4", "-q", device)
        with pytest.raises(
            SafetyError, match=r"host here: disk loop, loop device on .*: ext4 is there and not"
        ) as error:
            require_writable(RUNNER, by_file(file), device)
    assert error.value.hint is not None
    assert f"nothing on {device} is needed" in error.value.hint


def test_a_mounted_disk_is_refused_by_its_mount_point(file: Path, tmp_path: Path) -> None:
    with loop(file) as device:
        run("mkfs.ext4", "-q", device)
        with mounted(device, tmp_path / "at"):
            assert f"{device} on {tmp_path / 'at'} is mounted" in refusals(by_file(file), seen_on(device))


def test_partitions_that_bear_our_name_are_ours(file: Path) -> None:
    require("sfdisk")
    with loop(file) as device:
        partition(device, "voh:20260101-000000-abcd:device", "voh:20260101-000000-abcd:ext4")
        seen = require_writable(RUNNER, by_file(file), device)
        assert seen.is_ours
        assert seen.partitions == ("voh:20260101-000000-abcd:device", "voh:20260101-000000-abcd:ext4")


@pytest.mark.parametrize("names", [("EFI system", "data"), ("voh:run:device", "data"), ("",)])
def test_partitions_of_others_are_refused_also_beside_ours(file: Path, names: tuple[str, ...]) -> None:
    require("sfdisk")
    with loop(file) as device:
        partition(device, *names)
        reasons = refusals(by_file(file), seen_on(device))
    assert f"{Path(device).name}: gpt is there and not of our making" in reasons


def test_a_read_only_disk_is_refused(file: Path) -> None:
    with loop(file) as device:
        run("blockdev", "--setro", device)
        try:
            assert refusals(by_file(file), seen_on(device)) == ["it is read-only"]
        finally:
            run("blockdev", "--setrw", device)


def test_the_disk_of_the_root_file_system_is_refused() -> None:
    require("findmnt")
    source = run("findmnt", "-nvo", "SOURCE", "/").strip()
    if not source.startswith("/dev/") or not Path(source).is_block_device():
        pytest.skip(f"/ is on {source}, which is no block device")
    disk = run("lsblk", "-nspo", "PATH", source).split()[-1]
    seen = seen_on(disk)
    assert "the host's root file system is on it" in refusals(DiskById("disk", disk, "x", destroy=True), seen)


def test_a_link_to_nothing_is_refused_with_where_to_look(tmp_path: Path) -> None:
    spec = DiskById("optane", str(tmp_path / "nvme-900P"), "PHM1", destroy=True)
    with pytest.raises(SafetyError, match="there is no such block device on the host") as error:
        require_writable(RUNNER, spec, spec.id)
    assert error.value.hint is not None
    assert "ls -l /dev/disk/by-id/" in error.value.hint
