"""The space that stays free for others: what a run was promised counts together, and what is below a file system."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from harness.errors import SafetyError, Unsupported
from harness.events import Events
from harness.lab.facts import read_facts
from harness.lab.guard import require_room
from harness.lab.guard.room import no_space, reserve_places
from harness.lab.inventory import DiskByFile
from harness.lab.storages import Promise, look_at, read_space
from harness.layout.build import built
from harness.layout.disks import block_device, partitioned_disks
from harness.layout.regions import Need
from harness.layout.storage_files import files
from harness.measure.prepare import condition
from harness.model.layout import RawFile
from tests.unit.loop_disks import RUNNER, creation_log

MIB, GIB = 1 << 20, 1 << 30

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can mount file systems")


@contextmanager
def file_system(directory: Path, size: int, *options: str) -> Iterator[Path]:
    """An ext4 in a sparse file, mounted below `directory`."""
    image, point = directory / "fs.img", directory / "mnt"
    point.mkdir(parents=True)
    image.touch()
    os.truncate(image, size)
    subprocess.run(["mkfs.ext4", "-q", *options, str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=False, capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"this machine mounts no file: {mounted.stderr.decode().strip()}")
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


def available(point: Path) -> int:
    status = os.statvfs(point)
    return status.f_bavail * status.f_frsize


def test_two_disks_in_files_of_one_file_system_count_together(tmp_path: Path) -> None:
    with file_system(tmp_path, 6 * GIB, "-m", "0") as point:
        size = int(available(point) * 0.75) // MIB * MIB
        one, two = (DiskByFile(name, point / f"{name}.img", size, destroy=True) for name in ("a", "b"))
        log = creation_log(tmp_path)
        for disk in (one, two):
            with reserve_places(log, {str(disk.file): size}, "refused: "):
                pass
        disks = partitioned_disks(log, [one, two], [{"device": Need(0, 1)}] * 2, span=size)
        with pytest.raises(SafetyError, match=r"too little space: .*a\.img, .*b\.img \(file system"):
            disks.__enter__()
        assert [path.name for path in point.iterdir()] == ["lost+found"]
        assert log.promises == []


def test_a_second_file_counts_with_what_the_first_one_will_take(tmp_path: Path) -> None:
    with file_system(tmp_path, 6 * GIB, "-m", "0") as point:
        size = int(available(point) * 0.75) // MIB * MIB
        one, two = (DiskByFile(name, point / f"{name}.img", size, destroy=True) for name in ("a", "b"))
        log = creation_log(tmp_path)
        with block_device(log, one), pytest.raises(SafetyError, match="too little space"):
            block_device(log, two).__enter__()
        assert [path.name for path in point.iterdir()] == ["lost+found"]


def test_a_file_and_a_storage_on_one_file_system_count_together_until_they_are_written(tmp_path: Path) -> None:
    with file_system(tmp_path, 8 * GIB, "-m", "0") as point, ExitStack() as stack:
        log = creation_log(tmp_path)
        size = 4 * GIB
        disk = point / "disk.img"
        stack.enter_context(reserve_places(log, {str(disk): size}, "refused: "))
        found = look_at(RUNNER, "directory", str(point))
        with pytest.raises(Unsupported, match="the run needs 8 GiB"):
            require_room(RUNNER, found, 4 * GIB, log.promises)
        room = require_room(RUNNER, found, 2 * GIB, log.promises)
        # The sparse files of the storage take nothing yet.
        stack.enter_context(files(log, room, "vms", {"host": RawFile(preallocation="off")}, 2 * GIB))
        with pytest.raises(SafetyError, match="refused: too little space"):
            reserve_places(log, {str(point / "backup.raw"): GIB}, "refused: ").__enter__()
        subprocess.run(["fallocate", "--length", str(size), str(disk)], check=True)
        stack.enter_context(reserve_places(log, {str(point / "backup.raw"): 512 * MIB}, "refused: "))
        assert no_space(RUNNER, str(point), 3 * GIB) is not None


def test_a_disk_in_a_file_is_not_filled_any_more_when_others_have_used_the_space(tmp_path: Path) -> None:
    with file_system(tmp_path, 6 * GIB, "-m", "0") as point, ExitStack() as stack:
        log = creation_log(tmp_path)
        file = point / "disk.img"
        disk = DiskByFile("disk", file, 3 * GIB, destroy=True)
        layouts = stack.enter_context(built(log, read_facts(RUNNER), [disk], [], span=3 * GIB))
        reserve = layouts.reserve
        assert reserve is not None
        reserve.require_for(layouts.device.path, layouts.device.size, GIB)
        subprocess.run(
            ["fallocate", "--length", str(available(point) - GIB - 512 * MIB), str(point / "theirs")], check=True
        )
        reserve.require_for(layouts.device.path, layouts.device.size, 256 * MIB)
        before = file.stat().st_blocks
        with pytest.raises(SafetyError, match=f"nothing more is written to {file}, which is filling up"):
            condition(RUNNER, layouts, "fill", [], seed=1, events=Events())
        assert file.stat().st_blocks == before
        (point / "theirs").unlink()
        # What the file has already been allocated is not needed again.
        subprocess.run(["fallocate", "--length", str(3 * GIB), str(file)], check=True)
        subprocess.run(["fallocate", "--length", str(available(point) - MIB), str(point / "theirs")], check=True)
        reserve.require_for(layouts.device.path, layouts.device.size, GIB)


def test_blocks_that_are_reserved_for_root_are_not_free_for_others(tmp_path: Path) -> None:
    with file_system(tmp_path, 30 * GIB, "-m", "20") as point:
        reserve = 30 * GIB // 20
        assert no_space(RUNNER, str(point / "not" / "there" / "disk.img"), available(point) - 2 * reserve) is None
        assert no_space(RUNNER, str(point / "disk.img"), available(point) - reserve // 2) is not None


def test_a_file_system_in_a_sparse_file_also_takes_the_space_of_the_file_system_below(tmp_path: Path) -> None:
    with (
        file_system(tmp_path / "outer", 4 * GIB, "-m", "0") as outer,
        file_system(outer / "inner", 100 * GIB, "-m", "0", "-E", "lazy_itable_init=1") as inner,
    ):
        own, *below = read_space(RUNNER, ["disk", "dir", str(inner)])
        assert (own.is_below, own.available_bytes) == (False, available(inner))
        assert below[0].is_below
        assert below[0].available_bytes == available(outer)
        why = no_space(RUNNER, str(inner / "disk.img"), 4 * GIB)
        assert why is not None
        assert below[0].name in why
        assert no_space(RUNNER, str(inner / "disk.img"), 256 * MIB) is None


def test_the_thin_pool_below_a_directory_has_not_what_its_file_system_has_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools, percent = tmp_path / "tools", tmp_path / "percent"
    tools.mkdir()
    (tools / "lvs").write_text(
        f"""#!/bin/sh
case "$*" in
*vg_name,pool_lv*) echo " vg pool";;
*data_percent*) echo " {20 * GIB} $(cat {percent}) 65536 {64 * MIB} 1.00";;
esac
"""
    )
    (tools / "lvs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    percent.write_text("10.00")
    with file_system(tmp_path, 8 * GIB) as point:
        log = creation_log(tmp_path)
        room = require_room(RUNNER, look_at(RUNNER, "directory", str(point)), 3 * GIB)
        with files(log, room, "vms", {"host": RawFile(preallocation="falloc")}, 3 * GIB) as made:
            path = made["host"].twin.path
            room.require_for(path, 3 * GIB, GIB)
            percent.write_text("94.75")
            with pytest.raises(SafetyError, match="thin pool vg/pool"):
                room.require_for(path, 3 * GIB, GIB)


def test_a_file_system_has_one_identity_under_several_names_of_its_device(tmp_path: Path) -> None:
    with file_system(tmp_path, 2 * GIB) as point:
        other = tmp_path / "other"
        other.mkdir()
        subprocess.run(["mount", "--bind", str(point), str(other)], check=True)
        try:
            places = read_space(RUNNER, ["a", "dir", str(point), "b", "dir", str(other)])
        finally:
            subprocess.run(["umount", str(other)], check=True)
    assert len({place.identity for place in places if not place.is_below}) == 1


def test_a_promise_without_a_path_counts_in_full(tmp_path: Path) -> None:
    with file_system(tmp_path, 4 * GIB, "-m", "0") as point:
        log = creation_log(tmp_path)
        log.promises.append(Promise("thin pool", "dir", str(point), 2 * GIB))
        with pytest.raises(SafetyError, match="refused: too little space"):
            reserve_places(log, {str(point / "disk.img"): GIB}, "refused: ").__enter__()
