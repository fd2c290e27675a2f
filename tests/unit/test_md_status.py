"""What /proc/mdstat says about arrays, in the format of the kernel's md_seq_show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.lab.counters import ArrayStatus, CounterFiles, CpuTime, HostCounters, Sample, parse_mdstat, parse_samples
from harness.lab.counters import read_samples as sample_host
from harness.lab.transport.local import LocalRunner
from harness.measure.ran_slices import count_array
from harness.model.counters import ArrayCounts, HostCounts

MDSTAT = """\
Personalities : [raid6] [raid5] [raid4] [raid0] [raid1]
md125 : active raid5 sdh1[6] sdf1[4] sde1[3] sdd1[2] sdc1[1] sdb1[0]
      76800 blocks super 1.2 level 5, 64k chunk, algorithm 2 [6/5] [UUUUU_]
      [==>..................]  recovery = 13.3% (2048/15360) finish=0.2min speed=1024K/sec
      bitmap: 0/1 pages [0KB], 65536KB chunk

md126 : active raid6 sdf2[4] sde2[3] sdd2[2] sdc2[1] sdb2[0]
      61440 blocks super 1.2 level 6, 64k chunk, algorithm 2 [6/5] [UUUUU_]
      bitmap: 0/1 pages [0KB], 65536KB chunk

md127 : active raid0 sdc3[1] sdb3[0]
      92160 blocks super 1.2 64k chunks

md1 : active raid1 sdc4[1] sdb4[0]
      15360 blocks super 1.2 [2/2] [UU]
      [=>...................]  check =  8.3% (1280/15360) finish=0.1min speed=1280K/sec

md2 : active raid10 sdh5[4] sdc5[1] sdb5[0]
      15360 blocks super 1.2 512K chunks 2 near-copies [4/2] [UU__]
        resync=DELAYED

unused devices: <none>
"""
KIB = 1024


def test_missing_members_and_the_progress_of_a_recovery_are_read() -> None:
    assert parse_mdstat(MDSTAT.splitlines()) == {
        "md125": ArrayStatus(missing=1, rebuilt=2048 * KIB),
        "md126": ArrayStatus(missing=1),
        "md127": ArrayStatus(),
        "md1": ArrayStatus(),
        "md2": ArrayStatus(missing=2),
    }


def test_the_state_and_the_limit_of_an_array_are_read_with_the_counters_of_the_disks() -> None:
    files = CounterFiles((), arrays=("md125", "md127"))
    mdstat, limit, missing, *others = files.paths
    assert mdstat == "/proc/mdstat"
    lines = [f"{mdstat}:{line}" for line in MDSTAT.splitlines()]
    # RAID 0 has no such file.
    assert missing == "/sys/class/block/md127/md/sync_speed_max"
    lines += [f"{limit}:1536 (local)", f"{others[0]}:cpu  1 0 0 1 0 0 0 0 0 0", f"{others[0]}:cpu0 1 0 0 1 0 0 0 0 0 0"]
    lines += [f"{others[0]}:ctxt 5", f"{others[1]}:10.0 5.0"]
    found = files.parse(lines, "host here")
    assert found.arrays["md125"].missing == 1
    assert found.limits == {"md125": 1536 * KIB}


def sample(at: float, status: ArrayStatus | None) -> Sample:
    arrays = {} if status is None else {"md125": status}
    counters = HostCounters({}, CpuTime(1, 2), HostCounts(busy_s=1.0), None, None, arrays, {"md125": 1536 * KIB})
    return Sample(at, at, counters)


def counted(before: ArrayStatus | None, after: ArrayStatus | None) -> ArrayCounts | None:
    return count_array(sample(10.0, before), sample(12.0, after), ["md125"])


def test_a_slice_has_the_state_of_both_readings_and_what_was_rebuilt_between_them() -> None:
    recovering = ArrayStatus(missing=1, rebuilt=4096)
    rebuilt = counted(recovering, replace(recovering, rebuilt=12288))
    assert rebuilt == ArrayCounts(state="rebuilding", missing=1, rebuilt=8192, seconds=2.0, limit=1536 * KIB)
    assert counted(ArrayStatus(1), ArrayStatus(1)) == ArrayCounts(state="degraded", missing=1, seconds=2.0)
    assert counted(ArrayStatus(), ArrayStatus()) == ArrayCounts(state="optimal", missing=0, seconds=2.0)


def test_a_slice_in_which_the_state_changed_has_none() -> None:
    recovering = ArrayStatus(missing=1, rebuilt=4096)
    changed = [
        counted(ArrayStatus(1), recovering),
        counted(recovering, ArrayStatus(1)),
        counted(recovering, ArrayStatus()),
        counted(ArrayStatus(), ArrayStatus(1)),
        counted(ArrayStatus(1), ArrayStatus(2)),
        counted(recovering, replace(recovering, rebuilt=0)),
    ]
    assert [each.state for each in changed if each is not None] == [None] * 6
    assert all(each is not None and each.rebuilt >= 0 for each in changed)


def test_an_array_that_the_host_does_not_list_is_not_counted() -> None:
    assert counted(None, None) is None
    assert counted(ArrayStatus(), None) is None


def test_the_host_is_asked_for_the_arrays_with_its_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that reads the counters selects lines by how they begin."""
    file = tmp_path / "mdstat"
    file.write_text(MDSTAT)
    monkeypatch.setattr("harness.lab.counters.MDSTAT", str(file))
    disk = next(path.name for path in Path("/sys/class/block").iterdir())
    files = CounterFiles((disk,), arrays=("md125", "md126"))
    host = LocalRunner("host here")
    (found,) = parse_samples(sample_host(host, files, [0.0], deadline=30), files, host.name, expected=1)
    assert found.counters.arrays == parse_mdstat(MDSTAT.splitlines())
    assert found.counters.limits == {}
    assert set(found.counters.disks) == {disk}
