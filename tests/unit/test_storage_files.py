"""Measuring in a directory that is in use: what a run creates in it, and that nothing else in it changes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from harness.config.names import RunId
from harness.errors import HostError, SafetyError, Unsupported
from harness.lab import storages as storage_space
from harness.lab.created import Entry, read_log
from harness.lab.facts import HostFacts
from harness.lab.guard import require_room
from harness.lab.guard.writable import created_directory
from harness.lab.pin import disks_below
from harness.lab.storages import FoundStorage, look_at
from harness.lab.transport.base import Runner
from harness.lab.transport.local import LocalRunner
from harness.layout import BlockSource
from harness.layout.build import Layouts, SharedStorage
from harness.layout.storage import build_on_storage, refuse_on_storage
from harness.layout.storage_files import create_raw
from harness.measure.reap import reap
from harness.model.attach import Attach
from harness.model.base import Device, Md
from harness.model.layout import Lvm, Qcow2, RawFile
from harness.model.mode import Mode
from tests.unit.failing import outcomes
from tests.unit.granted import granted
from tests.unit.loop_disks import NO_HYPERVISOR, RUNNER, creation_log

MIB, GIB = 1 << 20, 1 << 30
SPAN = 16 * MIB
LABEL = "directory vms"

HOST = Mode("host", Device(), None)
RAW = Mode("raw", RawFile(), Attach())
OTHER = Mode("other", RawFile(preallocation="off"), Attach(bus="virtio-blk"))
QCOW2 = Mode("qcow2", Qcow2(), Attach())


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory with the file of another guest. Afterwards it is as it was."""
    if os.getuid() != 0:
        pytest.skip("files of volumes are made by root")
    found = tmp_path / "vms"
    found.mkdir()
    (found / "bystander.raw").write_bytes(b"its own data")
    yield found
    assert [path.name for path in found.iterdir()] == ["bystander.raw"]
    assert (found / "bystander.raw").read_bytes() == b"its own data"


@pytest.fixture
def found(directory: Path) -> FoundStorage:
    try:
        return look_at(RUNNER, "directory", str(directory))
    except Unsupported as error:
        pytest.skip(f"the directory for temporary files is of another kind: {error.message}")


def build(
    directory: Path, found: FoundStorage, *modes: Mode, runner: Runner = RUNNER
) -> AbstractContextManager[Layouts]:
    log = creation_log(directory.parent)
    log.runner = runner
    return build_on_storage(log, found, LABEL, modes, span=SPAN)


def logged(directory: Path) -> list[str]:
    return [entry.kind for entry in read_log(RUNNER, str(directory.parent / "created"))]


def test_each_mode_and_the_baseline_have_a_file_of_their_own(directory: Path, found: FoundStorage) -> None:
    with build(directory, found, HOST, RAW, OTHER) as layouts:
        (own,) = (path for path in directory.iterdir() if path.is_dir())
        sources = [layouts.twin(None), layouts.twin(RAW), layouts.twin(OTHER)]
        assert [each.path for each in sources] == [f"{own}/{name}.raw" for name in ("host", "raw", "other")]
        assert {each.size for each in sources} == {SPAN}
        assert layouts.guest(RAW) == layouts.twin(RAW)
        assert Path(sources[1].path).stat().st_blocks * 512 >= SPAN
        assert Path(sources[2].path).stat().st_blocks == 0
        assert own.stat().st_mode & 0o777 == 0o711, "QEMU's user must be able to enter it"
        assert logged(directory) == ["stored-directory"]
        sources[0].writable.run(["sh", "-c", 'printf x | dd of="$1" conv=notrunc', "sh", sources[0].path], deadline=20)
        assert Path(sources[0].path).read_bytes()[:1] == b"x"
    assert logged(directory) == []


def test_the_disks_below_are_named_and_their_bytes_include_those_of_others(
    directory: Path, found: FoundStorage
) -> None:
    with build(directory, found, RAW) as layouts:
        assert layouts.shared is not None
        assert layouts.disk == layouts.shared.disks[0]
        assert Path(f"/sys/block/{layouts.disk}").exists()
        assert layouts.disks(None) == layouts.disks(RAW) == ()
        assert "together with those of others" in layouts.shared.how_counted(layouts.device)
        assert layouts.shared.facts["file system"] == found.filesystem


def test_a_file_that_was_replaced_by_a_link_is_not_written_to(directory: Path, found: FoundStorage) -> None:
    with build(directory, found, RAW) as layouts:
        file = Path(layouts.twin(RAW).path)
        file.unlink()
        file.symlink_to(directory / "bystander.raw")
        with pytest.raises(SafetyError, match="a command that writes was not started"):
            layouts.twin(RAW).writable.run(["true"], deadline=20)
        file.unlink()


@pytest.mark.parametrize("program", ["fallocate", "truncate"])
def test_a_file_that_its_owner_puts_there_while_a_command_goes_on_is_not_written_to(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """As after a kill: the command does not end with its run."""
    file, programs = directory / "own.raw", tmp_path / "programs"
    programs.mkdir()
    slow = programs / program
    slow.write_text(f'#!/bin/sh\nrm -f "{file}" && echo theirs >"{file}"\nexec {shutil.which(program)} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    writable = created_directory(
        RUNNER, Entry("", RunId("20260101-000000-abcd"), "", {"disks": [LABEL]}), str(directory)
    )
    create_raw(writable, str(file), SPAN, "off" if program == "truncate" else "falloc")
    assert file.read_text() == "theirs\n"
    file.unlink()


def test_nothing_is_created_if_less_than_the_reserve_would_stay_free(
    directory: Path, found: FoundStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_space, "shortage", lambda *_: "too little is free")
    with pytest.raises(Unsupported, match=f"storage directory {directory} .*: too little is free"):
        build(directory, found, RAW).__enter__()
    assert logged(directory) == []


def test_a_directory_that_fills_up_is_not_written_to_any_more(
    directory: Path, found: FoundStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed: list[int] = []
    monkeypatch.setattr(storage_space, "shortage", lambda _free, _all, size: needed.append(size))
    room = require_room(RUNNER, found, 3 * SPAN)
    sparse = directory.parent / "sparse"
    sparse.touch()
    os.truncate(sparse, SPAN)
    room.require_for(str(sparse), SPAN, SPAN // 4)
    os.posix_fallocate(os.open(sparse, os.O_RDWR), 0, SPAN)
    room.require_for(str(sparse), SPAN, SPAN // 4)
    assert needed == [3 * SPAN, SPAN // 4, 0], "what is allocated is not needed again"
    monkeypatch.setattr(storage_space, "shortage", lambda *_: "2 MiB are free")
    with pytest.raises(SafetyError, match=r"nothing more is written to directory .*: 2 MiB are free"):
        room.require(0)


def test_nothing_is_created_if_another_directory_is_in_its_place(directory: Path, found: FoundStorage) -> None:
    directory.rename(directory.with_name("moved"))
    directory.mkdir()
    try:
        with pytest.raises(SafetyError, match=f"{directory} was"):
            build(directory, found, RAW).__enter__()
        assert list(directory.iterdir()) == []
    finally:
        directory.rmdir()
        directory.with_name("moved").rename(directory)


def test_after_any_failure_nothing_is_left(directory: Path, found: FoundStorage) -> None:
    def check(outcome: str) -> None:
        left = [path.name for path in directory.iterdir()]
        if outcome == "left":
            reap(RUNNER, NO_HYPERVISOR, read_log(RUNNER, str(directory.parent / "created")))
            left = [path.name for path in directory.iterdir()]
        assert left == ["bystander.raw"]
        assert logged(directory) == []

    seen = outcomes(RUNNER, lambda runner: build(directory, found, HOST, RAW, OTHER, runner=runner), check)
    assert seen[-1] == "built"
    assert "clean" in seen


def abandoned(directory: Path, found: FoundStorage) -> Path:
    """What a run leaves that is killed while it measures: the directory of the run, and the log."""
    log, kept, hidden = (directory.parent / name for name in ("created", "kept", "hidden"))
    with build(directory, found, HOST, RAW):
        own = next(path for path in directory.iterdir() if path.is_dir())
        shutil.copytree(log, kept)
        own.rename(hidden)
    hidden.rename(own)
    shutil.rmtree(log)
    kept.rename(log)
    return own


def left_log(directory: Path) -> list[str]:
    return reap(RUNNER, NO_HYPERVISOR, read_log(RUNNER, str(directory.parent / "created")))


def test_reap_removes_what_a_killed_run_left(directory: Path, found: FoundStorage) -> None:
    own = abandoned(directory, found)
    (done,) = left_log(directory)
    assert done.startswith(f"removed after a killed run: the directory {own}")
    assert logged(directory) == []


def killed_before_the_inode_was_recorded(directory: Path, own: Path) -> None:
    (file,) = (directory.parent / "created").glob("*/*.json")
    record = json.loads(file.read_text())
    assert record["inode"]
    made = {key: value for key, value in record.items() if key != "check"} | {"inode": "", "made": []}
    made["check"] = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps(made))
    (own / ".voh").unlink()
    os.truncate(own / "raw.raw", 0)
    (own / "host.raw").unlink()


def test_reap_removes_a_directory_whose_creation_was_killed(directory: Path, found: FoundStorage) -> None:
    own = abandoned(directory, found)
    killed_before_the_inode_was_recorded(directory, own)
    (own / ".voh").write_text("only a part of the tok")
    assert len(left_log(directory)) == 1
    assert not own.exists()


def test_reap_leaves_a_file_of_others_in_a_directory_whose_creation_was_killed(
    directory: Path, found: FoundStorage
) -> None:
    own = abandoned(directory, found)
    killed_before_the_inode_was_recorded(directory, own)
    with_a_replaced_file(own)
    with pytest.raises(HostError, match="somebody has replaced"):
        left_log(directory)
    assert (own / "raw.raw").read_bytes() == b"the data of its owner"
    (own / "raw.raw").unlink()
    assert len(left_log(directory)) == 1
    assert not own.exists()


def recreated(own: Path) -> None:
    own.rename(own.with_name("moved"))
    own.mkdir()
    (own / "theirs").touch()


def with_a_file_of_others(own: Path) -> None:
    (own / "theirs").touch()


def with_another_token(own: Path) -> None:
    (own / ".voh").write_text("another")


def with_a_replaced_file(own: Path) -> None:
    (own / "raw.raw").unlink()
    (own / "raw.raw").write_bytes(b"the data of its owner")


@pytest.mark.parametrize("change", [with_a_file_of_others, with_another_token, with_a_replaced_file])
def test_reap_leaves_a_directory_in_which_others_have_changed_something_and_its_record(
    directory: Path, found: FoundStorage, change: Callable[[Path], None]
) -> None:
    own = abandoned(directory, found)
    change(own)
    before = {path: path.lstat().st_ino for path in directory.rglob("*")}
    with pytest.raises(HostError, match="move what is not the run's out of it"):
        left_log(directory)
    assert {path: path.lstat().st_ino for path in directory.rglob("*")} == before
    assert logged(directory) == ["stored-directory"]
    shutil.rmtree(own)
    assert left_log(directory) == []


@pytest.mark.parametrize("change", [recreated])
def test_reap_leaves_what_is_no_longer_what_the_run_created(
    directory: Path, found: FoundStorage, change: Callable[[Path], None]
) -> None:
    own = abandoned(directory, found)
    change(own)
    before = {path: path.lstat().st_ino for path in directory.rglob("*")}
    (sentence,) = left_log(directory)
    assert "not removed, because it is no longer the thing that was created" in sentence
    assert {path: path.lstat().st_ino for path in directory.rglob("*")} == before
    for path in directory.iterdir():
        if path.is_dir():
            for file in path.iterdir():
                file.unlink()
            path.rmdir()


def test_reap_waits_for_a_storage_that_is_not_mounted(directory: Path, found: FoundStorage) -> None:
    abandoned(directory, found)
    directory.rename(directory.with_name("unmounted"))
    directory.mkdir()
    with pytest.raises(HostError, match="is not the storage, which may not be mounted"):
        left_log(directory)
    assert logged(directory) == ["stored-directory"]
    directory.rmdir()
    directory.with_name("unmounted").rename(directory)
    assert len(left_log(directory)) == 1


@pytest.mark.parametrize(
    ("at", "why"),
    [("/proc", "file system of the type proc"), ("/nowhere/at/all", "there is no such directory")],
)
def test_a_directory_that_is_not_on_a_storage_is_refused(at: str, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        look_at(RUNNER, "directory", at)


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (HOST, None),
        (RAW, None),
        (QCOW2, "qemu-img is not installed there"),
        (Mode("raw-xfs", RawFile("xfs"), Attach()), "its files are on xfs, but directory /srv is on ext4"),
        (Mode("passthrough", Device(), Attach()), "directory /srv is not a device; directory /srv offers: raw, qcow2"),
        (Mode("lvm", Lvm(), Attach()), "its layout is lvm on bare device; directory /srv offers: raw, qcow2"),
        (Mode("raid", RawFile(on=Md(1, 2)), Attach()), "its layout is raw on RAID 1 over 2 disks"),
    ],
    ids=lambda value: value.name if isinstance(value, Mode) else "",
)
def test_a_mode_that_a_directory_cannot_have_is_skipped_with_the_reason(mode: Mode, why: str | None) -> None:
    said = refuse_on_storage(mode, FoundStorage("directory", "/srv", "2 ef53", filesystem="ext4"), HostFacts({}))
    assert (said or "").startswith(why or "")
    assert (said is None) == (why is None)


def test_a_file_on_btrfs_gets_its_attribute_while_it_is_empty(
    tmp_path: Path, directory: Path, found: FoundStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as it can be seen without btrfs: each file with its sign, when it is there and nothing is in it."""
    programs, said = tmp_path / "programs", tmp_path / "said"
    programs.mkdir()
    chattr = programs / "chattr"
    chattr.write_text(f'#!/bin/sh\n[ -s "$2" ] || echo "$1 ${{2##*/}}" >>"{said}"\n')
    chattr.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    copied = Mode("cow", RawFile("btrfs", nodatacow=False), Attach())
    in_place = Mode("place", RawFile("btrfs", nodatacow=True), Attach())
    with build(directory, found, RAW, copied, in_place):
        assert sorted(said.read_text().splitlines()) == ["+C place.raw", "-C cow.raw"]


@pytest.mark.parametrize(
    ("kind", "mount", "below"),
    [("nfs4", "/srv/vms", ("nfs:/srv/vms",)), ("nfs", "/srv/my vms", ()), ("cifs", "/srv/vms", ())],
)
def test_the_files_of_an_nfs_server_are_on_its_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, mount: str, below: tuple[str, ...]
) -> None:
    program = tmp_path / "findmnt"
    program.write_text(
        f"#!/bin/sh\ncase $* in *FSTYPE*) echo {kind};; *TARGET*) echo '{mount}';; *SOURCE*) echo nas:/vms;; esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert disks_below(LocalRunner(), str(program)) == below
    source = BlockSource(str(program), "file", 0, 4096, grant=granted(str(program)))
    room: Any = None
    counted = SharedStorage("directory /srv/vms", below, room).how_counted(source)
    assert ("counted at /srv/vms by NFS" in counted) is bool(below)
    assert ("not counted on a disk" in counted) is not bool(below)
