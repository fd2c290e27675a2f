"""Which disks may be written to: the judgement for every reason against one, and the evidence from real devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HostError, SafetyError
from harness.lab.guard import DiskEvidence, Writable, built_on, inspect, lend, refusals, require_writable, writable
from harness.lab.guard.writable import PROBES
from harness.lab.inventory import DiskByFile, DiskById, DiskSpec
from harness.lab.pin import BlockPin
from harness.lab.transport.base import Completed
from tests.unit.granted import granted
from tests.unit.loop_disks import RUNNER, loop, partition, require, run, sparse

BY_ID = DiskById("optane", "/dev/disk/by-id/nvme-900P", "PHM1", destroy=True)
BY_FILE = DiskByFile("loop", Path("/var/tmp/loop.img"), 2 << 30, destroy=True)
UNKNOWN_DATA = (
    "it holds data of an unknown kind: encrypted volumes, raw databases and wiped disks look like this, and only its "
    "owner knows"
)
BLANK = DiskEvidence(
    pin=BlockPin("/dev/nvme0n1", "259:0", "7", 256 << 21, "PHM1"),
    serials=("INTEL_900P_PHM1", "PHM1"),
    backing_file="",
    read_only=False,
    is_whole_disk=True,
)


@pytest.mark.parametrize(
    ("spec", "evidence"),
    [
        (BY_ID, BLANK),
        (BY_ID, replace(BLANK, contents="left")),
        (replace(BY_ID, overwrite_data="PHM1"), replace(BLANK, contents="data")),
        (BY_FILE, replace(BLANK, serials=(), backing_file="/var/tmp/loop.img")),
    ],
    ids=["blank", "as a run has left it", "data that the owner gave up", "a loop device on its file"],
)
def test_a_disk_that_nobody_needs_is_accepted(spec: DiskSpec, evidence: DiskEvidence) -> None:
    assert refusals(spec, evidence) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"serials": ("PHM2",)}, "its serial number is PHM2, not PHM1"),
        ({"serials": ("A_PHM2", "PHM2")}, "its serial number is A_PHM2 or PHM2, not PHM1"),
        ({"serials": ()}, "its serial number is unknown, not PHM1"),
        ({"is_whole_disk": False}, "it is not a whole disk"),
        ({"read_only": True}, "it is read-only"),
        ({"is_root": True}, "the host's root file system is on it"),
        ({"mounts": ("/dev/nvme0n1p1 on /data",)}, "/dev/nvme0n1p1 on /data is mounted"),
        ({"swaps": ("/dev/nvme0n1p3",)}, "/dev/nvme0n1p3 is used as swap"),
        ({"holders": ("nvme0n1 by dm-0 (data), LVM",)}, "nvme0n1 by dm-0 (data), LVM is in use"),
        (
            {"holders": ("sdb by dm-3 (mpatha), mpath",)},
            "sdb is a path of the multipath map mpatha",
        ),
        (
            {"paths": ("sdc (naa.6001405d)",)},
            "it is the same disk as sdc (naa.6001405d), which others may use, and multipath is not supported",
        ),
        (
            {"serials": ("PHM1", "mpath-36001405d"), "is_whole_disk": False},
            "it is a multipath map, and multipath is not supported",
        ),
        ({"users": ("/dev/nvme0n1 by qemu (process 12)",)}, "/dev/nvme0n1 by qemu (process 12) is open"),
        ({"claims": ("/dev/nvme0n1: busy",)}, "/dev/nvme0n1: busy: the kernel does not grant exclusive access"),
        ({"definitions": ("/etc/x names it",)}, "a virtual machine or a storage is defined with it: /etc/x names it"),
        ({"signatures": ("nvme0n1: ext4",)}, "there is a signature on it: nvme0n1: ext4"),
        ({"partitions": ("nvme0n1p1",)}, "it has partitions: nvme0n1p1"),
        ({"contents": "data"}, UNKNOWN_DATA),
        (
            {"unknown": {"signatures": "Input/output error"}},
            "the probe `signatures` could not tell: Input/output error",
        ),
    ],
)
def test_each_reason_against_a_disk_is_given_by_itself(change: dict[str, Any], reason: str) -> None:
    assert refusals(BY_ID, replace(BLANK, **change)) == [reason]


@pytest.mark.parametrize("change", [{"signatures": ("nvme0n1: ext4",)}, {"partitions": ("nvme0n1p1",)}])
def test_contents_that_are_known_are_refused_whatever_the_owner_wrote(change: dict[str, Any]) -> None:
    assert refusals(replace(BY_ID, overwrite_data="PHM1"), replace(BLANK, contents="data", **change)) != []


def test_the_serial_number_of_another_disk_gives_nothing_up() -> None:
    assert refusals(replace(BY_ID, overwrite_data="PHM2"), replace(BLANK, contents="data")) != []


@pytest.mark.parametrize("spec", [BY_ID, BY_FILE])
def test_a_disk_that_its_owner_did_not_release_is_refused(spec: DiskById | DiskByFile) -> None:
    evidence = replace(BLANK, backing_file="/var/tmp/loop.img")
    assert refusals(replace(spec, destroy=False), evidence) == [
        "its owner did not write `destroy = true` in the lab file"
    ]


def test_a_loop_device_on_another_file_is_refused() -> None:
    assert refusals(BY_FILE, replace(BLANK, backing_file="/home/disk.img")) == [
        "its backing file is /home/disk.img, not /var/tmp/loop.img"
    ]


def test_a_disk_that_is_not_there_is_refused() -> None:
    assert refusals(BY_ID, None) == ["the host has no such block device"]


def test_all_reasons_are_given_at_once() -> None:
    assert len(refusals(BY_ID, replace(BLANK, serials=(), is_root=True, read_only=True))) == 3


class Recorded:
    """A host that answers of a disk what a host of Debian 13 answered (data/guard), with some lines changed."""

    def __init__(self, recording: str, *, without: str = "", instead: str = "") -> None:
        self.name = "host there"
        lines = (Path(__file__).parent / "data" / "guard" / f"{recording}.txt").read_text().splitlines()
        kept = [line for line in lines if not without or line.partition("\t")[0] != without]
        self._answer = "\n".join([*kept, instead])

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: float,  # noqa: ARG002
        stdin: str | bytes | None = None,  # noqa: ARG002
        check: bool = True,  # noqa: ARG002
    ) -> Completed:
        return Completed(tuple(argv), 0, self._answer, "")

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("recording", "device", "serial"),
    [
        ("scsi", "/dev/sda", "sim_scsi"),
        ("nvme", "/dev/nvme0n1", "sim_nvme"),
        ("md", "/dev/md127", "a61d194b:7b58769a:09da19f2:a3fed8e4"),
    ],
)
def test_a_disk_of_each_kind_is_known_by_its_serial_number_and_by_no_other(
    recording: str, device: str, serial: str
) -> None:
    spec = DiskById("disk", "/dev/disk/by-id/disk", serial, destroy=True)
    assert require_writable(Recorded(recording), spec, spec.id).path == device
    (reason,) = refusals(replace(spec, serial=serial[:-1]), inspect(Recorded(recording), spec.id))
    assert reason.endswith(f"not {serial[:-1]}")


def test_a_member_of_an_array_is_refused_by_the_array_that_holds_it() -> None:
    spec = DiskById("ssd1", "/dev/disk/by-id/lab-sim_ssd1", "sim_ssd1", destroy=True)
    assert refusals(spec, inspect(Recorded("member"), spec.id)) == [
        "sim_ssd1 by md127, md is in use",
        "there is a signature on it: sim_ssd1: linux_raid_member",
    ]


def test_a_device_of_device_mapper_is_known_by_its_uuid_and_refused_because_it_takes_no_partitions() -> None:
    uuid = "LVM-dCCMSrGLoicDNm90X2l3PCtGf33EziesWsKDUUUXKt6A4G8cALrLTuRtNEc8ikwL"
    spec = DiskById("volume", f"/dev/disk/by-id/dm-uuid-{uuid}", uuid, destroy=True)
    assert refusals(spec, inspect(Recorded("lv"), spec.id)) == ["it is not a whole disk"]


@pytest.mark.parametrize("probe", PROBES)
def test_a_probe_that_gives_no_answer_or_fails_is_a_refusal(probe: str) -> None:
    spec = DiskById("disk", "/dev/disk/by-id/disk", "sim_scsi", destroy=True, overwrite_data="sim_scsi")
    assert refusals(spec, inspect(Recorded("scsi"), spec.id)) == []
    silent = refusals(spec, inspect(Recorded("scsi", without=probe), spec.id))
    assert f"the probe `{probe}` could not tell: it gave no answer" in silent
    failed = Recorded("scsi", without=probe, instead=f"{probe}\t1\tInput/output error")
    assert f"the probe `{probe}` could not tell: Input/output error" in refusals(spec, inspect(failed, spec.id))


@pytest.mark.parametrize(
    "answer", ["{", "[]", '{"blockdevices": []}', '{"blockdevices": [{"children": 5}]}', "[" * 9999]
)
def test_an_answer_that_cannot_be_understood_is_an_error_that_names_host_and_disk(answer: str) -> None:
    odd = Recorded("scsi", without="block", instead=f"block\t0\t{answer}")
    with pytest.raises(HostError, match="host there: the evidence about /dev/sda cannot be read"):
        inspect(odd, "/dev/sda")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    require("mkfs.ext4")
    return sparse(tmp_path / "disk.img", 64 << 20)


def by_file(file: Path) -> DiskByFile:
    return DiskByFile("loop", file, 64 << 20, destroy=True)


def found_on(device: str) -> DiskEvidence:
    evidence = inspect(RUNNER, device)
    assert evidence is not None
    return evidence


def test_a_blank_loop_device_may_be_written_to(file: Path) -> None:
    with loop(file) as device:
        allowed = require_writable(RUNNER, by_file(file), device)
    assert (allowed.path, allowed.disks, allowed.size_bytes) == (device, (str(file),), 64 << 20)


def test_only_the_guard_issues_a_permission(file: Path) -> None:
    with loop(file) as device:
        pin = found_on(device).pin
        with pytest.raises(TypeError, match="only the guard issues"):
            Writable(RUNNER, pin, [], issuer=object())


def test_a_file_system_on_the_disk_is_refused_by_its_name_with_a_remedy(file: Path) -> None:
    with loop(file) as device:
        run("mkfs.ext4", "-q", device)
        with pytest.raises(SafetyError, match=r"host here: disk loop, loop device on .*: ext4") as error:
            require_writable(RUNNER, by_file(file), device)
    assert error.value.hint is not None
    assert f"nobody needs the data on {device}" in error.value.hint


@pytest.mark.parametrize("names", [("EFI system", "data"), ("voh:20260101-000000-abcd:device",), ("",)])
def test_partitions_are_refused_whatever_they_are_called(file: Path, names: tuple[str, ...]) -> None:
    require("sfdisk")
    with loop(file) as device:
        partition(device, *names)
        with pytest.raises(SafetyError, match=r"there is a signature on it: loop.*: gpt") as error:
            require_writable(RUNNER, by_file(file), device)
    assert "virt-overhead reap removes it" in str(error.value.hint)


def test_a_read_only_disk_is_refused(file: Path) -> None:
    with loop(file) as device:
        run("blockdev", "--setro", device)
        try:
            assert refusals(by_file(file), found_on(device)) == ["it is read-only"]
        finally:
            run("blockdev", "--setrw", device)


@pytest.mark.parametrize("end", ["echo it is broken >&2; exit 1", "kill -KILL $$"], ids=["fails", "is killed"])
@pytest.mark.parametrize("tool", ["wipefs", "lsblk", "perl", "awk", "sed"])
def test_a_host_on_which_a_probe_cannot_tell_is_refused(
    file: Path, tool: str, end: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run("mkfs.ext4", "-q", "-F", str(file))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / tool).write_text(f"#!/bin/sh\n{end}\n")
    (broken / tool).chmod(0o755)
    with loop(file) as device:
        monkeypatch.setenv("PATH", str(broken), prepend=":")
        with pytest.raises((SafetyError, HostError), match=r"could not tell: |cannot be read"):
            require_writable(RUNNER, by_file(file), device)
        monkeypatch.undo()


def test_a_link_that_leads_to_another_disk_is_not_passed_through(file: Path, tmp_path: Path) -> None:
    with (
        loop(file) as device,
        loop(sparse(tmp_path / "other.img", 64 << 20)) as other,
        pytest.raises(SafetyError, match="does not lead to the disk that was checked"),
    ):
        lend(granted(device), other)


def test_what_is_not_on_the_checked_disk_gets_no_permission(file: Path, tmp_path: Path) -> None:
    require("sfdisk")
    with loop(file) as device, loop(sparse(tmp_path / "other.img", 64 << 20)) as other:
        run("sfdisk", "--quiet", device, text="label: gpt\nsize=16MiB\n")
        run("partx", "--update", device)
        (allowed,) = built_on([granted(device)], [f"{device}p1"])
        assert allowed.path == f"{device}p1"
        for elsewhere in (other, str(file)):
            with pytest.raises(SafetyError, match=f"{elsewhere} will not be written to: not on {device} only"):
                built_on([granted(device)], [elsewhere])


def test_the_disk_of_the_root_file_system_is_refused() -> None:
    require("findmnt")
    source = run("findmnt", "-nvo", "SOURCE", "/").strip()
    if not source.startswith("/dev/") or not Path(source).is_block_device():
        pytest.skip(f"/ is on {source}, which is no block device")
    disk = run("lsblk", "-nspo", "PATH", source).split()[-1]
    evidence = found_on(disk)
    assert "the host's root file system is on it" in refusals(DiskById("disk", disk, "x", destroy=True), evidence)


def test_a_link_to_nothing_is_refused_with_where_to_look(tmp_path: Path) -> None:
    spec = DiskById("optane", str(tmp_path / "nvme-900P"), "PHM1", destroy=True)
    with pytest.raises(SafetyError, match="the host has no such block device") as error:
        require_writable(RUNNER, spec, spec.id)
    assert error.value.hint is not None
    assert "ls -l /dev/disk/by-id/" in error.value.hint


def test_a_disk_that_the_host_has_twice_is_one_disk(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = tmp_path / "block"

    def add(name: str, *, serial: str = "S1", hidden: str = "0", wwid: str = "naa.6001405d") -> None:
        (block / name / "device").mkdir(parents=True)
        for path, text in {"size": "131072", "hidden": hidden, "device/wwid": wwid, "device/vpd_pg80": serial}.items():
            (block / name / path).write_text(text)

    with loop(file) as device:
        add(Path(device).name)
        add("sdy")
        add("sdx", serial="S2")  # a cheap disk of the same model
        add("sdw", hidden="1")
        add("sdv", wwid="naa.6001405e")
        add("sdu")  # without a WWID: the kernel does not let anybody read it
        (block / "sdu/device/wwid").unlink()
        (block / "sdu/device/wwid").symlink_to("/proc/self/clear_refs")
        monkeypatch.setattr(writable, "INSPECT", writable.INSPECT.replace("'/sys/class/block'", f"'{block}'"))
        evidence = found_on(device)
    assert evidence.paths == ("sdy (naa.6001405d)",)
    assert not evidence.unknown
