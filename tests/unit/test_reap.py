"""Reaping removes what killed runs left behind if its identity is unchanged. Everything else stays."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.lab.created import CreationLog, Entry, Processes, read_log
from harness.lab.facts import read_facts
from harness.lab.inventory import DiskByFile
from harness.layout.build import built
from harness.measure.reap import describe_entry, reap, split_by_disks
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.layout import Partition, RawFile
from harness.model.mode import Mode
from tests.unit.loop_disks import NO_HYPERVISOR, NO_PROCESS, RUNNER, creation_log, loop, require, run, sparse, traces

MIB = 1024**2
RUN = "20260101-000000-abcd"
MODES = (
    Mode("passthrough", Device(), Attach()),
    Mode("partition", Partition(), Attach()),
    Mode("raw", RawFile(), Attach()),
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    require("sfdisk", "mkfs.ext4", "blkid", "mountpoint")
    monkeypatch.setattr("harness.layout.storage_files.MOUNT_DIRECTORY", str(tmp_path / "mnt"))
    (tmp_path / "mnt").mkdir()
    (tmp_path / "created").mkdir()
    return tmp_path


def killed(place: Path) -> DiskByFile:
    """Build layouts in a process that ends without any clean-up."""
    disk = DiskByFile("loop", place / "disk.img", 512 * MIB, destroy=True)
    if os.fork() == 0:
        with built(creation_log(place), read_facts(RUNNER), [disk], MODES, span=32 * MIB):
            os._exit(0)
    assert os.wait()[1] == 0
    return disk


def entries(place: Path) -> list[Entry]:
    return read_log(RUNNER, str(place / "created"))


def reaped(place: Path) -> list[str]:
    return reap(RUNNER, NO_HYPERVISOR, entries(place))


def device_of(disk: DiskByFile) -> str:
    return run("losetup", "--list", "--noheadings", "--output", "NAME", "-j", str(disk.file)).strip()


def partition_of(disk: DiskByFile, number: int) -> str:
    return f"{device_of(disk)}p{number}"


def test_everything_that_a_killed_run_left_behind_is_removed_the_latest_first(place: Path) -> None:
    before = traces(place)
    disk = killed(place)
    mount = f"the file system at {place}/mnt/voh-{RUN}-ext4"
    left = [f"the file {disk.file}", f"the loop device on {disk.file}", f"the partitions on {disk.file}", mount]
    assert [describe_entry(entry) for entry in entries(place)] == [f"{what}, of run {RUN}" for what in left]
    assert reaped(place) == [f"removed after a killed run: {what}, of run {RUN}" for what in reversed(left)]
    assert traces(place) == before
    assert reaped(place) == []


def test_a_foreign_file_system_in_our_partition_stays_and_so_does_the_table(place: Path) -> None:
    disk = killed(place)
    theirs = partition_of(disk, 2)
    run("mkfs.ext4", "-q", theirs)
    before = run("cksum", theirs)
    with pytest.raises(HostError, match=r"the partitions on .*: not removed, .*: one of its partitions has contents"):
        reaped(place)
    assert run("cksum", theirs) == before
    assert run("sfdisk", "-d", device_of(disk)).count(f'name="voh:{RUN}:') == 3
    # Asked again, it is still there, with the loop device and the file that it is in.
    with pytest.raises(HostError, match=r"the file .*: not removed, because something on it remains"):
        reaped(place)
    assert run("cksum", theirs) == before
    clean_up(disk)


def test_a_foreign_partition_table_in_place_of_ours_stays(place: Path) -> None:
    disk = killed(place)
    device = device_of(disk)
    run("umount", f"{place}/mnt/voh-{RUN}-ext4")
    # The names of its partitions are ours: a name is not evidence.
    run("sfdisk", "--quiet", device, text=f'label: gpt\nsize=64MiB, name="voh:{RUN}:device"\n')
    before = run("cksum", device)
    with pytest.raises(HostError, match=r"the partitions on .*: not removed, .*: /dev/loop\d+ has another partition"):
        reaped(place)
    assert run("cksum", device) == before
    clean_up(disk)


def test_a_partition_table_with_a_foreign_partition_stays(place: Path) -> None:
    disk = killed(place)
    run("umount", f"{place}/mnt/voh-{RUN}-ext4")
    run("sfdisk", "--quiet", "--append", "--no-reread", device_of(disk), text="size=16MiB\n")
    with pytest.raises(HostError, match=r"the partitions on .*: not removed, .*: its partitions are not the ones"):
        reaped(place)
    clean_up(disk)


def test_a_foreign_file_in_place_of_ours_stays(place: Path) -> None:
    disk = killed(place)
    device = device_of(disk)
    run("umount", f"{place}/mnt/voh-{RUN}-ext4")
    disk.file.rename(place / "moved")
    disk.file.write_text("somebody's")
    said = reaped(place)
    assert (
        f"the file {disk.file}, of run {RUN}: not removed, because it is no longer the thing that was created"
        in said[-1]
    )
    assert disk.file.read_text() == "somebody's"
    assert device not in run("losetup", "--list", "--noheadings", "--output", "NAME")


def test_a_foreign_file_system_on_our_mount_point_stays_mounted(place: Path) -> None:
    disk = killed(place)
    point = f"{place}/mnt/voh-{RUN}-ext4"
    run("umount", point)
    theirs = sparse(place / "theirs.img", 64 * MIB)
    with loop(theirs) as device:
        run("mkfs.ext4", "-q", device)
        run("mount", device, point)
        with pytest.raises(HostError, match=f"the file system at {point}, of run {RUN}: not removed"):
            reaped(place)
        assert Path(point).is_mount()
        run("umount", point)
    assert disk.file.exists()
    clean_up(disk)


def test_a_thing_in_use_is_an_error_that_names_it_and_stays_in_the_log(place: Path) -> None:
    disk = killed(place)
    point = f"{place}/mnt/voh-{RUN}-ext4"
    with subprocess.Popen(["sleep", "60"], cwd=point) as process:
        try:
            with pytest.raises(HostError, match=f"the file system at {point}.* cannot be removed: .*busy"):
                reaped(place)
            assert process.poll() is None
        finally:
            process.kill()
    assert f"the file system at {point}, of run {RUN}" in [describe_entry(entry) for entry in entries(place)]
    reaped(place)
    assert not disk.file.exists()


def clean_up(disk: DiskByFile) -> None:
    run("sh", "-c", 'for at in "$1"/mnt/*; do umount "$at"; done; losetup -d "$2"; true', "sh",
        str(disk.file.parent), device_of(disk))  # fmt: skip


@pytest.fixture
def marked() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    mark = f"VIRT_OVERHEAD={uuid.uuid4()}"
    with subprocess.Popen(["env", mark, "sleep", "60"]) as process:
        yield process, mark
        process.kill()


def test_processes_of_a_killed_run_are_ended_and_those_with_another_mark_are_not(
    place: Path, marked: tuple[subprocess.Popen[bytes], str]
) -> None:
    process, mark = marked
    log = creation_log(place)
    log.record(Processes(mark=NO_PROCESS))
    assert reaped(place) == []
    assert process.poll() is None
    log.record(Processes(mark=mark))
    assert reaped(place) == [f"removed after a killed run: processes that measure, of run {RUN}"]
    assert process.wait(timeout=600) == -9


def test_a_record_that_cannot_be_read_is_an_error_that_names_it_and_the_rest_is_done(place: Path) -> None:
    creation_log(place).record(Processes(mark=NO_PROCESS))
    (place / "created" / RUN / "00000000000000000001-array.json").write_text('{"kind": "arr')
    with pytest.raises(HostError, match=f"{RUN}/00000000000000000001-array.json"):
        reaped(place)
    assert [entry.file for entry in entries(place)] == ["00000000000000000001-array.json"]


def plant(place: Path, record: dict[str, object], *, digest: bool = True) -> None:
    """A record as somebody wrote it by hand, also with a digest that matches."""
    made = {"disks": [], **record}
    if digest:
        made["check"] = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()
    (place / "created" / RUN).mkdir()
    (place / "created" / RUN / "00000000000000000001-planted.json").write_text(json.dumps(made))


TOKEN = "00000000-0000-4000-8000-000000000000"
MARKED = {"mark": f"VIRT_OVERHEAD={TOKEN}"}


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"kind": "processes", "mark": "THEIRS=yes"}, 'mark = "THEIRS=yes"'),
        ({"kind": "container", **MARKED, "name": "voh", "directory": "THEIRS"}, "directory = "),
        ({"kind": "storage-daemon", **MARKED, "directory": "THEIRS"}, "directory = "),
        ({"kind": "guest-system", "directory": "THEIRS"}, "directory = "),
        ({"kind": "trace-instance", "path": "THEIRS"}, "path = "),
        ({"kind": "stored-volume", "name": "data", "group_uuid": "a", "tag": ""}, "tag is empty"),
        ({"kind": "filesystem", "point": "THEIRS", "uuid": "", "partuuid": TOKEN}, "uuid is empty"),
    ],
)
def test_a_record_without_an_identity_of_its_own_removes_nothing(
    place: Path, record: dict[str, object], why: str
) -> None:
    theirs = place / "theirs"
    theirs.mkdir()
    for name in ("seed", "socket", "pid"):
        (theirs / name).touch()
    (theirs / "link").symlink_to("socket")
    plant(place, {key: str(theirs) if value == "THEIRS" else value for key, value in record.items()})
    with subprocess.Popen(["env", "-i", "THEIRS=yes", "sleep", "60"]) as process:
        try:
            with pytest.raises(HostError) as refused:
                reaped(place)
            assert process.poll() is None
        finally:
            process.kill()
    assert why in refused.value.message
    assert "\n    " not in refused.value.message
    assert {path.name for path in theirs.iterdir()} == {"seed", "socket", "pid", "link"}


def test_a_record_without_its_digest_is_damaged(place: Path, marked: tuple[subprocess.Popen[bytes], str]) -> None:
    process, mark = marked
    plant(place, {"kind": "processes", "mark": mark}, digest=False)
    with pytest.raises(HostError, match=r"planted\.json is damaged"):
        reaped(place)
    assert process.poll() is None


def test_only_the_disks_of_a_run_are_cleaned_at_its_start() -> None:
    def entry(run_id: str, kind: str, *disks: str) -> Entry:
        return Entry("/log", run_id, f"{run_id}-{kind}", {"kind": kind, "disks": list(disks)})

    mine = [entry("one", "partition-table", "S1"), entry("one", "domain", "S1", "S2"), entry("one", "pve-vm")]
    # What measures is ended, whichever run has left it.
    mine += [entry("one", "processes"), entry("two", "processes")]
    # This run was killed before it used a disk, when it looked at the system of a guest.
    mine += [entry("three", "domain"), entry("three", "guest-system")]
    others = [entry("one", "partition-table", "S2"), entry("two", "partition-table", "S3"), entry("two", "pve-vm")]
    # A record that cannot be read.
    others.append(Entry("/log", "one", "one-array", {}))
    assert split_by_disks([*mine, *others], {"S1"}) == (mine, others)


def test_a_record_is_there_before_the_thing_and_gone_after_it(place: Path) -> None:
    log: CreationLog = creation_log(place)
    thing = Processes(mark=NO_PROCESS)
    with log.making_here(thing):
        (entry,) = entries(place)
        stored = json.loads((place / "created" / RUN / entry.file).read_text())
        assert len(stored.pop("check")) == 64
        assert stored == entry.record == {"kind": "processes", "disks": [], "mark": NO_PROCESS}
    assert list((place / "created").iterdir()) == []


def test_a_record_survives_a_kill_at_any_moment_of_writing_it(place: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from harness.lab.created import Processes\n"
        "from tests.unit.loop_disks import NO_PROCESS, creation_log\n"
        "log = creation_log(Path(sys.argv[1]))\n"
        "print('ready', flush=True)\n"
        "while True: log.record(Processes(mark=NO_PROCESS))\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(place)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while len(entries(place)) < 5:
            pass
        process.kill()
    assert all(entry.kind == "processes" for entry in entries(place))
