"""The bytes that a run wrote to a disk: by the disk's own counter, and across parts that were killed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HostError
from harness.features.write_limit import limit as meter
from harness.features.write_limit.limit import Meter
from harness.lab.inventory import AnyDisk, DiskByFile, DiskById, DiskByStorage
from harness.lab.transport.base import Completed
from harness.lab.transport.local import LocalRunner
from harness.results import RunStore
from tests.build import RUN_ID

DISKS: dict[str, AnyDisk] = {"nvme": DiskById("nvme", "/dev/disk/by-id/nvme-a", "A", destroy=True)}
MIB = 1024**2


class Counting(LocalRunner):
    """A host whose disk shows this counter, in MiB written. The device is another one after `again`."""

    boot, seq, written = "b1", 1, 100
    asked: Sequence[str] = ()

    def run(self, argv: Sequence[str], **_: Any) -> Completed:
        self.asked = argv[3:]
        line = f"{self.boot}/{self.seq}/nvme0n1 {self.written * 2048}" if self.written >= 0 else "-"
        return Completed(tuple(argv), 0, "".join(f"{line}\n" for _ in self.asked), "")


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path, RUN_ID)


@pytest.fixture
def host() -> Counting:
    return Counting("host here")


def in_mib(of: Meter) -> float:
    return of.written["nvme"] / MIB


def test_only_what_is_written_after_the_first_reading_counts(store: RunStore, host: Counting) -> None:
    found = Meter(store, DISKS)
    found.read(host)
    assert in_mib(found) == 0
    host.written = 130
    found.read(host)
    host.written = 131
    found.read(host)
    assert in_mib(found) == 31
    assert list(host.asked) == ["/dev/disk/by-id/nvme-a"]


def test_a_disk_that_comes_back_from_a_guest_counts_from_its_new_counter(store: RunStore, host: Counting) -> None:
    found = Meter(store, DISKS)
    found.read(host)
    found.may_write("slices", {"nvme": 50 * MIB})
    found.add("nvme", 7 * MIB)
    host.seq, host.written = 2, 0
    found.read(host)
    host.written = 3
    found.read(host)
    assert in_mib(found) == 10


def test_a_device_that_vanished_during_a_step_counts_with_the_most_that_the_step_may_have_written(
    store: RunStore, host: Counting
) -> None:
    found = Meter(store, DISKS)
    found.read(host)
    found.may_write("slices", {"nvme": 50 * MIB})
    host.written = -1
    found.read(host)
    assert in_mib(found) == 0
    host.boot, host.written = "b2", 900
    found.read(host)
    assert in_mib(found) == 50


def test_a_killed_run_goes_on_by_the_counter_if_the_host_still_runs(store: RunStore, host: Counting) -> None:
    killed = Meter(store, DISKS)
    killed.read(host)
    host.written = 120
    killed.read(host)
    killed.may_write("filling", {"nvme": 64 * MIB})
    host.written = 140
    resumed = Meter(store, DISKS)
    resumed.read(host)
    assert in_mib(resumed) == 40


def test_a_killed_run_on_a_host_that_booted_again_goes_on_with_the_most_that_its_step_may_have_written(
    store: RunStore, host: Counting
) -> None:
    killed = Meter(store, DISKS)
    killed.read(host)
    host.written = 120
    killed.read(host)
    killed.may_write("filling", {"nvme": 64 * MIB})
    host.boot, host.written = "b2", 3
    resumed = Meter(store, DISKS)
    resumed.read(host)
    assert in_mib(resumed) == 84


def test_what_others_write_after_the_end_of_a_run_does_not_count_if_it_is_resumed(
    store: RunStore, host: Counting
) -> None:
    first = Meter(store, DISKS)
    first.read(host)
    host.written = 120
    first.read(host)
    first.end()
    host.written = 9000
    resumed = Meter(store, DISKS)
    resumed.read(host)
    assert in_mib(resumed) == 20


def test_loop_devices_are_found_by_their_file_and_disks_below_storages_by_their_name(
    store: RunStore, host: Counting
) -> None:
    disks: dict[str, AnyDisk] = {
        "file": DiskByFile("file", Path("/srv/disk.img"), 1 << 30, destroy=True),
        "pool": DiskByStorage("pool", {"raw": "local"}),
    }
    found = Meter(store, disks)
    found.read(host)
    assert list(host.asked) == ["file:/srv/disk.img", "-"]
    found.found({"pool": "sdb"})
    found.read(host)
    assert list(host.asked) == ["file:/srv/disk.img", "/dev/sdb"]


def test_counters_that_cannot_be_read_are_an_error_with_the_host(store: RunStore) -> None:
    class Silent(LocalRunner):
        def run(self, argv: Sequence[str], **_: Any) -> Completed:
            return Completed(tuple(argv), 0, "", "")

    with pytest.raises(HostError, match="host here: the counters of bytes written cannot be read"):
        Meter(store, DISKS).read(Silent("host here"))


def test_a_run_without_a_limit_reads_nothing(store: RunStore) -> None:
    class Never(LocalRunner):
        def run(self, argv: Sequence[str], **_: Any) -> Completed:
            raise AssertionError(argv)

    Meter(store, {}).read(Never("host here"))
    assert not store.journal_path.exists()


def test_the_script_reads_the_kernels_counter_of_sectors_written_of_the_device_behind_a_link(tmp_path: Path) -> None:
    device = tmp_path / "sys" / "nvme0n1"
    device.mkdir(parents=True)
    (device / "stat").write_text("   93  0  4184  17  1200  5  819200  90  0 20 107 3 0 0 0 0 0\n")
    (device / "diskseq").write_text("9\n")
    (tmp_path / "nvme0n1").touch()
    (tmp_path / "by-id").symlink_to(tmp_path / "nvme0n1")
    script = meter._READ.replace("/sys/class/block", str(tmp_path / "sys"))
    argv = ["sh", "-s", "--", str(tmp_path / "by-id"), str(tmp_path / "gone"), "-"]
    printed = subprocess.run(argv, input=script, capture_output=True, text=True, check=True).stdout.splitlines()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert printed == [f"{boot}/9/nvme0n1 819200", "-", "-"]
