"""What a host counts of a block device, its CPUs and a guest: read as the kernel documents it, of the right ones."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.lab.counters import (
    LINES,
    MOUNTS,
    CounterFiles,
    CpuTime,
    HostCounters,
    VmThreads,
    parse_cpu_time,
    parse_samples,
    read_samples,
)
from harness.lab.transport.local import LocalRunner
from harness.model.counters import MemberCounts, Transferred, subtract_counts
from tests.unit.loop_disks import loop, require, sparse

RUNNER = LocalRunner("host here")
MIB = 1024**2


def test_busy_is_all_but_idle_and_waiting_and_guests_count_once() -> None:
    # user nice system idle iowait irq softirq steal guest guest_nice; user has the guest's ticks in it already.
    assert parse_cpu_time("cpu  100 10 50 800 30 5 5 0 60 0") == CpuTime(busy=170, total=1000)


def test_the_share_of_a_time_is_that_of_the_ticks_in_between() -> None:
    before, after = parse_cpu_time("cpu  100 0 0 900 0 0 0 0 0 0"), parse_cpu_time("cpu  175 0 0 925 0 0 0 0 0 0")
    assert after.busy_since(before) == 0.75


def test_without_a_tick_the_busy_share_is_zero() -> None:
    moment = parse_cpu_time("cpu  100 0 0 900 0 0 0 0 0 0")
    assert moment.busy_since(moment) == 0.0


def test_what_went_in_between_is_a_difference_by_direction() -> None:
    assert subtract_counts(Transferred(5 * MIB, 3 * MIB), Transferred(MIB, 3 * MIB)) == Transferred(4 * MIB, 0)


def read_counters(*disks: str, vm: VmThreads | None = None) -> HostCounters:
    """The counters of this machine now."""
    files = CounterFiles(disks, vm)
    (found,) = parse_samples(read_samples(RUNNER, files, [0.0], deadline=30), files, RUNNER.name, expected=1)
    return found.counters


def test_a_device_counts_the_bytes_that_are_written_to_it_and_read_from_it(tmp_path: Path) -> None:
    require()
    with loop(sparse(tmp_path / "disk", 16 * MIB)) as device:
        name = Path(device).name
        before = counted(name)
        data = bytes(MIB)
        with Path(device).open("r+b", buffering=0) as disk:
            for _ in range(3):
                disk.write(data)
            os.fsync(disk.fileno())
        written = moved(before, counted(name))
        between = counted(name)
        with Path(device).open("rb", buffering=0) as disk:
            os.posix_fadvise(disk.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(disk.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            disk.read(MIB)
        read = moved(between, counted(name))
    assert written.written == 3 * MIB
    assert (read.read, read.written) == (MIB, 0)


def test_cpus_are_counted_at_the_same_moment() -> None:
    name = _any_device()
    before, after = (read_counters(name).cpu for _ in range(2))
    assert 0 < before.busy < before.total
    assert 0.0 <= after.busy_since(before) <= 1.0


def moved(before: MemberCounts, after: MemberCounts) -> MemberCounts:
    found = subtract_counts(after, before)
    assert found is not None
    return found


def counted(disk: str) -> MemberCounts:
    return read_counters(disk).disks[disk]


def test_of_several_disks_each_is_counted(tmp_path: Path) -> None:
    require()
    with loop(sparse(tmp_path / "one", 16 * MIB)) as one, loop(sparse(tmp_path / "two", 16 * MIB)) as two:
        names = [Path(device).name for device in (one, two)]
        before = read_counters(*names)
        with Path(two).open("r+b", buffering=0) as disk:
            disk.write(bytes(MIB))
            os.fsync(disk.fileno())
        after = read_counters(*names)
    assert [moved(before.disks[name], after.disks[name]).written for name in names] == [0, MIB]


def test_without_a_disk_of_the_host_there_are_the_cpus_to_count() -> None:
    found = read_counters()
    assert found.disks == {}
    assert found.cpu.total > 0


def _any_device() -> str:
    names = sorted(path.name for path in Path("/sys/class/block").iterdir())
    if not names:
        pytest.skip("this machine shows no block device")
    return names[0]


def test_the_host_tells_its_busy_seconds_and_context_switches() -> None:
    name = _any_device()
    before = read_counters(name).host
    started = time.monotonic()
    own = time.process_time() + 0.3
    while time.process_time() < own:
        pass
    after = read_counters(name).host
    # The other programs of this machine are busy as well.
    assert 0.25 <= after.busy_s - before.busy_s <= (time.monotonic() - started + 0.1) * (os.cpu_count() or 1)
    assert (after.switches or 0) > (before.switches or 0)


def test_a_process_tells_its_threads_time_beside_the_hosts() -> None:
    own = VmThreads(os.getpid(), {os.getpid(): "main"}, kvm=None)
    before = read_counters(_any_device(), vm=own).qemu
    until = time.thread_time() + 0.2
    while time.thread_time() < until:
        pass
    after = read_counters(_any_device(), vm=own).qemu
    assert before is not None
    assert after is not None
    assert 0.1 <= after.main_s - before.main_s <= 0.3
    assert after.waits >= before.waits > 0


def test_a_guest_that_is_gone_is_an_error_that_names_its_file() -> None:
    with pytest.raises(HostError, match="/proc/999999999/stat is gone"):
        read_counters(_any_device(), vm=VmThreads(999999999, {999999999: "main"}, kvm=None))


def test_a_device_that_is_gone_is_an_error_that_names_it() -> None:
    with pytest.raises(HostError, match="voh-gone"):
        read_counters("voh-gone")


# What fs/nfs/super.c and fs/proc_namespace.c of Linux print: another file system, and two mounts of NFS.
_MOUNTSTATS = """device proc mounted on /proc with fstype proc
device 192.0.2.1:/export mounted on /srv/vms with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=262144,wsize=262144,namlen=255,acregmin=3,hard,proto=tcp,timeo=600,retrans=2,sec=sys
\tage:\t42
\tcaps:\tcaps=0x3ffbffff,wtmult=512,dtsize=262144,bsize=0,namlen=255
\tevents:\t12 45 1 0 8 0 54 3 0 2 0 0 0 4 0 0 0 4 0 0 0 0 0 0 0 0 0
\tbytes:\t0 0 {read} {written} {read} {written} 0 0
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\tper-op statistics
\t        READ: 8 8 0 1536 8389632 0 20 21 0
\t       WRITE: 4 4 0 4195328 544 0 10 11 0
device 192.0.2.1:/other mounted on /srv/vms/other with fstype nfs4 statvers=1.1
\tbytes:\t0 0 0 0 999 999 0 0
"""


def at_mount(mount: str, read: int, written: int) -> MemberCounts:
    """The counters of the mount, of a host whose other files are those of this machine."""
    files = CounterFiles((f"nfs:{mount}",))
    printed = read_samples(RUNNER, CounterFiles(()), [0.0], deadline=30).splitlines()[1:]
    pattern = re.compile(f"^((?:{LINES}).*)", re.MULTILINE)
    text = _MOUNTSTATS.format(read=read, written=written)
    printed += [f"{MOUNTS}:{match[1]}" for match in pattern.finditer(text)]
    return files.parse(printed, "host there").disks[f"nfs:{mount}"]


def test_the_bytes_of_an_nfs_server_are_those_of_its_mount() -> None:
    change = moved(at_mount("/srv/vms", MIB, 0), at_mount("/srv/vms", 9 * MIB, 4 * MIB))
    assert (change.read, change.written) == (8 * MIB, 4 * MIB)
    assert at_mount("/srv/vms/other", 1, 1).read == 999


def test_a_mount_that_is_gone_is_named() -> None:
    with pytest.raises(HostError, match="no NFS server is mounted on /srv"):
        at_mount("/srv", 1, 1)
