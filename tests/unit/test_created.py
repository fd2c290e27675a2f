"""The creation log: records are whole or known as damaged, and nothing is created once a clean-up has begun."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.lab import created
from harness.lab.created import CreationLog, Entry, Processes, close, fenced, read_log
from harness.lab.inventory import DiskByFile
from harness.lab.pin import FILE_IDENTITY
from harness.lab.storages import look_at
from harness.lab.transport.base import Completed
from harness.layout.disks import BackingFile, block_device, own_file
from harness.measure.reap import describe_entry, reap, split_by_disks
from tests.unit.loop_disks import NO_HYPERVISOR, NO_PROCESS, RUNNER, creation_log, require, run, sparse

MIB = 1024**2
RUN = "20260101-000000-abcd"
MARK = Processes(disks=("PHM1",), mark=NO_PROCESS)


class CutOff:
    """The real machine behind RUNNER, over a connection that is lost after `sent` bytes of standard input."""

    def __init__(self, sent: int) -> None:
        self.name = RUNNER.name
        self._sent = sent

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        return RUNNER.run(argv, deadline=deadline, stdin=stdin and stdin[: self._sent], check=check)

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        RUNNER.put(source, target, deadline=deadline)

    def close(self) -> None:
        RUNNER.close()


def entries(place: Path) -> list[Entry]:
    return read_log(RUNNER, str(place / "created"))


def reaped(place: Path) -> list[str]:
    return reap(RUNNER, NO_HYPERVISOR, entries(place))


@pytest.mark.parametrize("sent", [0, 1, 60, -1])
def test_a_record_of_which_a_part_arrived_replaces_nothing(tmp_path: Path, sent: int) -> None:
    log = creation_log(tmp_path)
    entry = log.record(MARK)
    log.runner = CutOff(sent)
    with pytest.raises(HostError, match="did not arrive as a whole"):
        log.amend(entry, MARK.model_copy(update={"mark": "VIRT_OVERHEAD=another"}))
    assert entries(tmp_path) == [entry]
    assert [file.name for file in (tmp_path / "created" / RUN).iterdir()] == [entry.file]


def test_a_first_record_of_which_a_part_arrived_leaves_nothing(tmp_path: Path) -> None:
    log = creation_log(tmp_path)
    log.runner = CutOff(10)
    with pytest.raises(HostError, match="did not arrive as a whole"):
        log.record(MARK)
    assert list((tmp_path / "created").iterdir()) == []


class Interrupted(CutOff):
    """The same connection. A signal comes when the host has done the first command, before its answer is here."""

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        done = RUNNER.run(argv, deadline=deadline, stdin=stdin, check=check)
        if stdin is not None:
            raise KeyboardInterrupt
        return done


def test_a_signal_while_a_record_is_written_leaves_none(tmp_path: Path) -> None:
    log = CreationLog(Interrupted(0), creation_log(tmp_path).run_id, str(tmp_path / "created"))
    with pytest.raises(KeyboardInterrupt), log.making(MARK, lambda: pytest.fail("nothing was created")):
        pytest.fail("the record was written")
    assert list((tmp_path / "created").rglob("*")) == []


def test_a_damaged_byte_makes_its_record_unreadable_and_no_other(tmp_path: Path) -> None:
    good = creation_log(tmp_path).record(MARK)
    directory = tmp_path / "created" / RUN
    content = (directory / good.file).read_bytes()
    for position in range(0, len(content), 9):
        file = f"{position:020d}-processes.json"
        damaged = content[:position] + bytes([content[position] ^ 0x11]) + content[position + 1 :]
        (directory / file).write_bytes(damaged)
    assert good in entries(tmp_path)
    for entry in entries(tmp_path):
        assert entry == good or entry.record in ({}, good.record), entry.file
    unreadable = [entry for entry in entries(tmp_path) if not entry.kind]
    assert len(unreadable) > 0.9 * len(content) / 9
    # A run on other disks goes on. One on the disk that the record still names asks its user.
    assert all(entry in split_by_disks(entries(tmp_path), {"other"})[1] for entry in unreadable)
    assert sum(entry.disks == {"PHM1"} for entry in unreadable) > 0.7 * len(content) / 9
    with pytest.raises(HostError, match="is damaged: find out what run") as error:
        reaped(tmp_path)
    assert good not in entries(tmp_path), "the others are removed"
    assert unreadable[0].path in (error.value.hint or "")
    assert describe_entry(unreadable[0]) == f"a record that cannot be read ({unreadable[0].path}), of run {RUN}"


@pytest.mark.parametrize("name", ["a\nb.json", "\n\n", "x y.json", "\\x.json", "\udcff.json", "a\tb"])
def test_files_with_any_name_or_content_do_not_confuse_the_reading(tmp_path: Path, name: str) -> None:
    entry = creation_log(tmp_path).record(MARK)
    for content in (b"", b"\x00\xff\n", (f'{{"kind": "processes"}}\n{RUN}/x').encode(), bytes(3 * MIB)):
        (tmp_path / "created" / RUN / name).write_bytes(content)
        listed = entries(tmp_path)
        assert len(listed) == 2
        assert entry in listed
        (other,) = (other for other in listed if other != entry)
        assert not other.kind
        assert other.file.isprintable()


def test_nothing_is_created_after_the_clean_up_of_the_thing_has_begun(tmp_path: Path) -> None:
    log = creation_log(tmp_path)
    entry = log.record(MARK)
    RUNNER.run(fenced(entry, ["touch", str(tmp_path / "before")]), deadline=20)
    (closed,) = close(RUNNER, [entry])
    assert entries(tmp_path) == [closed]
    with pytest.raises(HostError, match="nothing is created, because its clean-up has begun"):
        RUNNER.run(fenced(entry, ["touch", str(tmp_path / "late")]), deadline=20)
    with pytest.raises(HostError):
        log.amend(entry, MARK)
    reaped(tmp_path)
    with pytest.raises(HostError):
        RUNNER.run(fenced(entry, ["touch", str(tmp_path / "late")]), deadline=20)
    assert (tmp_path / "before").exists()
    assert not (tmp_path / "late").exists()


def test_a_command_that_still_creates_something_keeps_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(created, "_LOCK_SECONDS", 1)
    entry = creation_log(tmp_path).record(MARK)
    started = tmp_path / "started"
    hangs = fenced(entry, ["sh", "-c", 'touch "$1"; sleep 60', "sh", str(started)])
    with subprocess.Popen(hangs, start_new_session=True) as process:
        try:
            while not started.exists():
                assert process.poll() is None
            with pytest.raises(HostError, match="a command of the run that creates something has not ended yet"):
                reaped(tmp_path)
            assert entries(tmp_path) == [entry]
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    reaped(tmp_path)
    assert entries(tmp_path) == []


@pytest.fixture
def mounted(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An ext4 of this test, with the options of its parameter. `remount` mounts it again."""
    require("mkfs.ext4", "losetup", "findmnt", "blkid")
    image = sparse(tmp_path / "fs.img", 2 * 1024 * MIB)
    run("mkfs.ext4", "-q", *getattr(request, "param", ()), str(image))
    point = tmp_path / "mnt"
    point.mkdir()
    run("mount", "-o", "loop", str(image), str(point))
    yield point
    unmount(point)


def unmount(point: Path) -> None:
    with suppress(subprocess.CalledProcessError):
        run("umount", str(point))


@contextmanager
def another_disk(point: Path) -> Iterator[None]:
    """Another disk, made in the same way, is mounted there, and then the first one again, with another number."""
    other = sparse(point.parent / "other.img", 2 * 1024 * MIB)
    run("mkfs.ext4", "-q", str(other))
    run("umount", str(point))
    run("mount", "-o", "loop", str(other), str(point))
    yield
    second = point.parent / "second"
    second.mkdir()
    run("umount", str(point))
    run("mount", "-o", "loop", str(other), str(second))
    run("mount", "-o", "loop", str(point.parent / "fs.img"), str(point))
    run("umount", str(second))


def killed(place: Path, path: Path, *, at: str = "", behind_loop: bool = False) -> None:
    """A process that makes the file ends without any clean-up, before its log is asked to `at`, or while it has it."""
    if os.fork() == 0:
        try:
            log = creation_log(place)
            if at:
                setattr(log, at, lambda *_: os._exit(0))
            with ExitStack() as stack:
                if behind_loop:
                    stack.enter_context(block_device(log, DiskByFile("d", path, 8 * MIB, destroy=True)))
                else:
                    stack.enter_context(own_file(log, str(path), 8 * MIB, ("PHM1",), "refused: "))
                os._exit(0)
        finally:
            os._exit(1)
    assert os.wait()[1] == 0


WITH_AND_WITHOUT_BIRTH = pytest.mark.parametrize("mounted", [(), ("-I", "128")], indirect=True, ids=["birth", "none"])


@WITH_AND_WITHOUT_BIRTH
def test_the_file_of_a_killed_run_is_removed_also_after_the_disk_was_mounted_again(
    tmp_path: Path, mounted: Path
) -> None:
    file = mounted / "disk.img"
    killed(tmp_path, file)
    assert file.stat().st_size == 8 * MIB
    with another_disk(mounted):
        file.write_text("of somebody else")
        with pytest.raises(HostError, match="not on the file system on which the run made the file: mount that one"):
            reaped(tmp_path)
        file.unlink()
        with pytest.raises(HostError, match="mount that one again"):
            reaped(tmp_path)
    (sentence,) = reaped(tmp_path)
    assert sentence == f"removed after a killed run: the file {file}, of run {RUN}"
    assert [path.name for path in mounted.iterdir()] == ["lost+found"]


@WITH_AND_WITHOUT_BIRTH
def test_a_new_file_of_its_owner_stays_although_it_has_the_inode_of_the_runs_file(
    tmp_path: Path, mounted: Path
) -> None:
    file = mounted / "disk.img"
    killed(tmp_path, file)
    file.unlink()
    file.write_text("the data of its owner")
    (sentence,) = reaped(tmp_path)
    assert "is not the run's file, and stays" in sentence
    assert file.read_text() == "the data of its owner"
    assert entries(tmp_path) == []
    assert sorted(path.name for path in mounted.iterdir()) == ["disk.img", "lost+found"]


def test_a_file_that_somebody_has_written_over_stays(tmp_path: Path) -> None:
    file = tmp_path / "disk.img"
    killed(tmp_path, file)
    file.write_text("the data of its owner")
    (sentence,) = reaped(tmp_path)
    assert "is not the run's file, and stays" in sentence
    assert file.read_text() == "the data of its owner"
    assert entries(tmp_path) == []


def test_a_loop_device_of_the_owner_on_his_new_file_is_not_detached(tmp_path: Path, mounted: Path) -> None:
    file = mounted / "disk.img"
    killed(tmp_path, file, behind_loop=True)
    run("losetup", "-d", run("losetup", "--list", "--noheadings", "--output", "NAME", "-j", str(file)).strip())
    file.unlink()
    sparse(file, 16 * MIB)
    device = run("losetup", "--find", "--show", str(file)).strip()
    try:
        reaped(tmp_path)
        assert device in run("losetup", "-j", str(file))
        assert file.stat().st_size == 16 * MIB
        assert entries(tmp_path) == []
    finally:
        run("losetup", "-d", device)


def test_a_loop_device_is_detached_although_its_file_was_removed(tmp_path: Path, mounted: Path) -> None:
    file = mounted / "disk.img"
    killed(tmp_path, file, behind_loop=True)
    file.unlink()
    reaped(tmp_path)
    assert str(file) not in run("losetup", "-a")
    assert entries(tmp_path) == []


@pytest.mark.parametrize("at", ["record", "amend"])
def test_a_kill_while_the_file_is_made_leaves_nothing_that_reap_does_not_find(tmp_path: Path, at: str) -> None:
    place = tmp_path / "vms"
    place.mkdir()
    killed(tmp_path, place / "disk.img", at=at)
    assert len(list(place.iterdir())) == len(entries(tmp_path))
    reaped(tmp_path)
    assert list(place.iterdir()) == []
    assert entries(tmp_path) == []


def test_a_file_of_others_in_place_of_the_draft_stays(tmp_path: Path) -> None:
    place = tmp_path / "vms"
    place.mkdir()
    killed(tmp_path, place / "disk.img", at="amend")
    (draft,) = place.iterdir()
    draft.unlink()
    draft.write_text("the data of its owner")
    (sentence,) = reaped(tmp_path)
    assert f"{draft} is not the run's file, and stays" in sentence
    assert draft.read_text() == "the data of its owner"
    assert entries(tmp_path) == []


def test_a_record_of_an_earlier_version_without_a_birth_time_removes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "disk.img"
    file.write_text("of somebody")
    facts = file.stat()
    log: CreationLog = creation_log(tmp_path)
    log.record(BackingFile(path=str(file), draft=f"{file}.draft", inode=f"{facts.st_dev}:{facts.st_ino}"))
    with pytest.raises(HostError, match="recorded it without a birth time: remove the file if it is the run's"):
        reaped(tmp_path)
    assert file.exists()
    assert len(entries(tmp_path)) == 1


def test_another_disk_that_is_mounted_at_the_same_place_is_another_storage(mounted: Path) -> None:
    before = look_at(RUNNER, "directory", str(mounted)).identity
    with another_disk(mounted):
        assert look_at(RUNNER, "directory", str(mounted)).identity != before
    assert look_at(RUNNER, "directory", str(mounted)).identity == before


def test_another_overlay_at_the_same_place_is_another_file_system(tmp_path: Path) -> None:
    require("mount")
    base, place = tmp_path / "base", tmp_path / "place"
    place.mkdir()
    base.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64M", "none", str(base)], check=False).returncode != 0:
        pytest.skip("this machine does not mount a tmpfs")
    with ExitStack() as stack:
        stack.callback(run, "umount", str(base))
        for name in ("lower", "upper1", "upper2", "work1", "work2"):
            (base / name).mkdir()

        @contextmanager
        def overlay(number: int) -> Iterator[None]:
            options = f"lowerdir={base}/lower,upperdir={base}/upper{number},workdir={base}/work{number}"
            command = ["mount", "-t", "overlay", "overlay", "-o", options, str(place)]
            if subprocess.run(command, check=False).returncode != 0:
                pytest.skip("this machine does not mount an overlay")
            try:
                yield
            finally:
                run("umount", str(place))

        def identity() -> str:
            return RUNNER.run(
                ["sh", "-c", FILE_IDENTITY + 'filesystem_of "$1"', "sh", f"{place}/not/there"], deadline=20
            ).stdout

        with overlay(1):
            first = identity()
            assert first.startswith("overlay:upperdir=")
        with overlay(2):
            assert identity() not in ("", first)
        with overlay(1):
            assert identity() == first
