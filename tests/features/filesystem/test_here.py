"""File systems of a guest and of its twin on this machine: real mkfs, loop devices and mounts."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import GuestError, Unsupported
from harness.features.filesystem import volumes
from harness.features.filesystem.mounted import MountedGuest
from harness.features.filesystem.volumes import MIB, build_with_filesystems
from harness.lab.created import read_log
from harness.layout import BlockSource
from harness.layout.build import Layouts
from harness.layout.disks import list_loop_devices
from harness.model.attach import Attach
from harness.model.layout import InnerFilesystem, RawFile
from harness.model.mode import Mode
from tests.unit.granted import granted
from tests.unit.loop_disks import RUNNER, creation_log, loop, require, sparse
from tests.unit.test_measure_blocks import LocalGuest

MODE = Mode("raw-ext4", RawFile(), Attach(), filesystem=InnerFilesystem("ext4", "noatime,commit=30"))
PLAIN = Mode("raw", RawFile(), Attach())
SPAN = 16 * MIB


class Disks:
    """Files as volumes, in a directory."""

    def __init__(self, directory: Path, most: int = 1 << 30) -> None:
        self.directory = directory
        self.most = most

    @contextmanager
    def build(self, modes: Sequence[Mode], span: int) -> Iterator[Layouts]:
        size = min(span, self.most)
        sources = {
            name: BlockSource(str(path), "file", 0, size, grant=granted(str(path)))
            for name in ("host", *(mode.name for mode in modes))
            if (path := sparse(self.directory / name, size))
        }
        yield Layouts(sources.pop("host"), sources, size, "sdx")


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disks:
    require("mkfs.ext4", "fio", "dumpe2fs")
    monkeypatch.setattr(volumes, "MOUNT_DIRECTORY", str(tmp_path / "mnt"))
    (tmp_path / "volumes").mkdir()
    return Disks(tmp_path / "volumes")


def list_mounts(directory: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{directory}/" in line]


def test_guest_and_twin_have_the_same_file_system_with_a_file_of_the_span_and_nothing_is_left(
    disks: Disks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = creation_log(tmp_path)
    with build_with_filesystems(log, [PLAIN, MODE], disks.build, span=SPAN, fio="fio") as (layouts, prepared):
        assert set(layouts.by_mode) == {"raw", "raw-ext4"}
        assert {source.size for source in (layouts.device, *layouts.by_mode.values(), *layouts.twins.values())} == {
            SPAN
        }
        twin, guest = layouts.twin(MODE), layouts.guest(MODE)
        assert Path(twin.path).stat().st_size == SPAN
        assert (twin.kind, guest.path) == ("file", str(disks.directory / "raw-ext4"))
        assert layouts.images == []
        assert list(layouts.regions) == ["device", "raw", "raw-ext4"]
        read = prepared["raw-ext4"].twin
        assert (read.host_filesystem, "noatime" in (read.host_mount_options or "")) == ("ext4", True)
        assert "has_journal" in (read.host_filesystem_features or "")
        # The guest's is not mounted here meanwhile, and no loop device of the run is on it.
        assert list_loop_devices(RUNNER, guest.path) == []
        monkeypatch.setattr("harness.features.filesystem.mounted.MOUNT_DIRECTORY", str(tmp_path / "in-guest"))
        with loop(Path(guest.path)) as device:
            mounted = MountedGuest(LocalGuest(device), {"lvm": prepared["raw-ext4"]})
            path = Path(mounted.device("lvm"))
            data = path.read_bytes()
            assert len(data) == SPAN
            assert data.count(0) < SPAN / 100
            effective = mounted.effective("lvm")
            assert effective.guest_filesystem == "ext4"
            assert effective.guest_mount_options == read.host_mount_options
            mounted.unmount()
            assert not path.exists()
    assert list_mounts(tmp_path) == []
    assert read_log(RUNNER, str(tmp_path / "created")) == []
    assert list_loop_devices(RUNNER, str(disks.directory / "raw-ext4-twin")) == []


def test_a_guest_that_cannot_mount_it_is_an_error_that_says_what_its_kernel_says(
    disks: Disks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.features.filesystem.mounted.MOUNT_DIRECTORY", str(tmp_path / "in-guest"))
    log = creation_log(tmp_path)
    with build_with_filesystems(log, [MODE], disks.build, span=SPAN, fio="fio") as (layouts, prepared):
        wrong = replace(prepared["raw-ext4"], inside=InnerFilesystem("ext4", "no_such_option"))
        with loop(Path(layouts.guest(MODE).path)) as device, pytest.raises(GuestError, match="ext4 cannot be mounted"):
            MountedGuest(LocalGuest(device), {"lvm": wrong})


def test_a_disk_without_room_for_the_journal_is_refused_before_anything_is_made(disks: Disks, tmp_path: Path) -> None:
    disks.most = 70 * MIB
    with (
        pytest.raises(Unsupported, match="volumes of 70 MiB fit, and a file system needs 65"),
        build_with_filesystems(creation_log(tmp_path), [MODE], disks.build, span=SPAN, fio="fio"),
    ):
        pass


def test_a_failure_meanwhile_leaves_neither_mount_nor_loop_device(disks: Disks, tmp_path: Path) -> None:
    log = creation_log(tmp_path)
    with (
        pytest.raises(subprocess.SubprocessError),
        build_with_filesystems(log, [MODE], disks.build, span=SPAN, fio="fio"),
    ):
        raise subprocess.SubprocessError
    assert list_mounts(tmp_path) == []
    assert read_log(RUNNER, str(tmp_path / "created")) == []


def test_a_mode_may_be_called_as_the_file_system_with_the_raw_files(disks: Disks, tmp_path: Path) -> None:
    log = creation_log(tmp_path)
    (tmp_path / "mnt" / f"voh-{log.run_id}-ext4").mkdir(parents=True)
    named = replace(MODE, name="ext4")
    with build_with_filesystems(log, [named], disks.build, span=SPAN, fio="fio") as (layouts, _):
        assert Path(layouts.twin(named).path).stat().st_size == SPAN
    assert [path.name for path in (tmp_path / "mnt").iterdir()] == [f"voh-{log.run_id}-ext4"]
