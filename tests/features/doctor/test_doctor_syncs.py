"""How long a write takes until it is safe, and what the doctor says of the disk because of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli import main
from harness.errors import HostError
from harness.features.doctor.machine import Level
from harness.features.doctor.syncs import SyncedDisk, TimedSyncs, examine_syncs, judge_syncs, parse_syncs
from harness.lab.transport.local import LocalRunner
from tests.unit.loop_disks import loop, require, run, sparse

NVME = SyncedDisk("nvme0n1", rotational=False, cache="write back", fua=True, model="Samsung SSD 990 PRO 2TB")
HDD = SyncedDisk("sda", rotational=True, cache="write back", model="ST4000NM0035")
VIRTUAL = SyncedDisk("vda", rotational=True, cache="write back")
FIO = {
    "write": {"lat_ns": {"mean": 2000.0}},
    "sync": {"lat_ns": {"N": 512, "percentile": {"50.0": 1.3e6, "99.0": 4e6}}},
}
PRINTED = (
    "disk\tnvme0n1\t0\twrite back\t1\tSamsung SSD 990 PRO 2TB\t\ndisk\tsda\t1\twrite through\t\t\tiSCSI\n"
    "ignored\tthe file system is mounted with rw,nobarrier\n"
    "fio: a note\n" + json.dumps({"jobs": [FIO]})
)


def test_times_and_disks_are_read_from_what_the_host_prints() -> None:
    timed = parse_syncs(PRINTED, "node1")
    assert timed.disks == (NVME, SyncedDisk("sda", rotational=True, cache="write through", network="iSCSI"))
    assert timed.ignored == ("the file system is mounted with rw,nobarrier",)
    assert (timed.number, timed.median, timed.p99) == pytest.approx((512, 1302e-6, 4002e-6))


@pytest.mark.parametrize("printed", ["", "disk\tsda\t0\n{}", json.dumps({"jobs": [{"write": {}}]})])
def test_other_output_is_an_error_that_names_the_host(printed: str) -> None:
    with pytest.raises(HostError, match="node1"):
        parse_syncs(printed, "node1")


@pytest.mark.parametrize(
    ("disk", "median", "level", "said"),
    [
        (NVME, 1.3e-3, Level.ADVICE, "probably no power-loss protection"),
        (SyncedDisk("sdb", rotational=False, cache="write through"), 1.3e-3, Level.ADVICE, "no volatile cache"),
        (NVME, 40e-6, Level.OK, "nvme0n1 Samsung SSD 990 PRO 2TB, write back with FUA"),
        (NVME, 5e-6, Level.OK, "a layer below answers from memory"),
        (SyncedDisk("nvme0n1", rotational=False, model="INTEL SSDPF21Q400GA"), 9e-6, Level.OK, "INTEL SSDPF21Q400GA"),
        (SyncedDisk("pmem0", rotational=False), 3e-6, Level.OK, "400; 99 % within 9 us): pmem0"),
        (
            replace(NVME, network="NVMe/tcp"),
            900e-6,
            Level.ADVICE,
            "the network (NVMe/tcp) or the disk of the other machine",
        ),
        (replace(NVME, network="NVMe/tcp"), 90e-6, Level.OK, "write back with FUA, NVMe/tcp"),
        (replace(NVME, model="Amazon Elastic Block Store"), 1e-3, Level.ADVICE, "a virtual disk"),
        (HDD, 8e-3, Level.OK, "a hard disk waits for its platter"),
        (HDD, 100e-6, Level.OK, "faster than a platter turns"),
        (VIRTUAL, 4e-3, Level.ADVICE, "a virtual disk: the storage of its own host"),
        (VIRTUAL, 100e-6, Level.OK, "100 us each (median of 400; 99 % within 300 us): vda, write back"),
        (None, 4e-3, Level.OK, "no disk of this host is below it"),
    ],
)
def test_the_time_of_a_sync_names_what_the_disk_probably_lacks(
    disk: SyncedDisk | None, median: float, level: Level, said: str
) -> None:
    judged = judge_syncs(TimedSyncs((disk,) if disk else (), 400, median, 3 * median))
    assert (judged.level, bool(judged.advice)) == (level, level is Level.ADVICE)
    assert said in judged.value


def test_a_disk_that_needs_tenths_of_a_second_is_named_although_there_are_few_syncs() -> None:
    judged = judge_syncs(TimedSyncs((NVME,), 8, 0.25, 0.3))
    assert judged.level is Level.ADVICE
    assert judged.value.startswith("250000 us each (median of 8 within two seconds): nvme0n1")
    assert "probably no power-loss protection" in judged.value
    assert judge_syncs(TimedSyncs((NVME,), 0, 0.0, 0.0)).level is Level.UNKNOWN


def test_a_sync_that_does_not_reach_the_disk_is_no_sign_of_protection() -> None:
    judged = judge_syncs(TimedSyncs((NVME,), 400, 30e-6, 90e-6, ("sync is disabled on the dataset tank/vms",)))
    assert judged.level is Level.ADVICE
    assert "syncs do not empty the cache of the disk: sync is disabled on the dataset tank/vms" in judged.value


def test_a_mount_that_drops_syncs_is_found(tmp_path: Path) -> None:
    require("mkfs.ext4")
    mount = tmp_path / "mount"
    mount.mkdir()
    with loop(sparse(tmp_path / "disk", 32 << 20)) as device:
        run("mkfs.ext4", "-q", device)
        run("mount", "-o", "nobarrier", device, str(mount))
        try:
            (finding,) = examine_syncs(LocalRunner(), "fio", [str(mount)])
        finally:
            run("umount", str(mount))
    assert "the file system is mounted with rw,relatime,nobarrier" in finding.value


def test_a_directory_of_this_machine_is_measured_and_nothing_remains(tmp_path: Path) -> None:
    (finding,) = examine_syncs(LocalRunner(), "fio", [str(tmp_path)])
    assert finding.check == f"{tmp_path}: syncs"
    assert "us each (median of" in finding.value
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_measured_is_a_finding_with_the_reason(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for directory, said in ((open_to_all, "another user could exchange it"), (tmp_path / "none", "not measured")):
        (finding,) = examine_syncs(LocalRunner(), "fio", [str(directory)])
        assert finding.level is Level.UNKNOWN
        assert said in finding.value
    (finding,) = examine_syncs(LocalRunner(), "/nowhere/fio", [str(tmp_path)])
    assert "not measured: " in finding.value
    assert list(tmp_path.iterdir()) == [open_to_all]


def test_a_directory_has_an_absolute_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--sync", "images"]) == 2
    assert "--sync images: not an absolute path" in capsys.readouterr().err
