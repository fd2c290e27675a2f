"""What a build says when it cannot be done: programs, rights, room, network, time."""

from __future__ import annotations

import os
import platform
import shutil
import time
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from harness.errors import LabUnavailable
from harness.image.build import Recipe, build, has_space, remove_scratch, require_mode
from harness.signals import wait_until
from tests.unit.processes import ends

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="images are built on x86_64")

RECIPE = Recipe("tiny", "extract", ("base-files",), {"build": b"true\n"}, outputs=("result",), scratch_bytes=1)


class Workshop:
    """Directories for one build, with a stand-in for mmdebstrap first in PATH."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.programs, self.scratch, self.out = (path / name for name in ("bin", "tmp", "out"))
        for directory in (self.programs, self.scratch, path / "in", self.out):
            directory.mkdir()
        self.path, self.log = path, path / "tiny.log"
        self.stopped = Event()
        for program in ("apt-get", "mke2fs", "newuidmap"):
            self.program(program, "exit 0")
        monkeypatch.setenv("PATH", f"{self.programs}:{os.environ['PATH']}")
        monkeypatch.setenv("TMPDIR", str(self.scratch))

    def program(self, name: str, script: str) -> None:
        (self.programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.programs / name).chmod(0o755)

    def build(self, recipe: Recipe = RECIPE, *, deadline: float = 20) -> None:
        build(recipe, {}, self.path, self.log, self.stopped, deadline=deadline)

    def failure(self, recipe: Recipe = RECIPE, *, deadline: float = 20) -> str:
        with pytest.raises(LabUnavailable) as caught:
            self.build(recipe, deadline=deadline)
        assert list(self.scratch.iterdir()) == [], "scratch space is given back"
        return str(caught.value)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    if os.geteuid() != 0:
        pytest.skip("building without root needs subordinate ids, which depends on the machine")
    return Workshop(tmp_path, monkeypatch)


def test_a_build_creates_the_files_of_the_recipe(workshop: Workshop) -> None:
    workshop.program("mmdebstrap", f'echo made in "$TMPDIR"; echo it >"{workshop.out}/result"')
    workshop.build()
    assert (workshop.out / "result").read_text() == "it\n"
    assert f"made in {workshop.scratch}/virt-overhead-build-" in workshop.log.read_text()


def test_packages_come_from_the_parts_of_the_archive_that_the_recipe_names(workshop: Workshop) -> None:
    script = f'for word; do case $word in --components=*) echo "${{word#*=}}" >"{workshop.out}/result";; esac; done'
    workshop.program("mmdebstrap", script)
    workshop.build(replace(RECIPE, components=("main", "contrib")))
    assert (workshop.out / "result").read_text() == "main,contrib\n"


def test_packages_come_from_the_archives_that_the_recipe_names(workshop: Workshop) -> None:
    workshop.program("mmdebstrap", f'for word; do :; done; echo "$word" >"{workshop.out}/result"')
    archive = "deb http://deb.debian.org/debian trixie-backports main"
    workshop.build(replace(RECIPE, archives=(archive,)))
    assert (workshop.out / "result").read_text() == f"{archive}\n"


def test_a_sparse_file_stays_sparse(workshop: Workshop) -> None:
    script = f'cd "{workshop.out}" && truncate -s 64M root.img && tar --sparse --remove-files -cf root.img.tar root.img'
    workshop.program("mmdebstrap", script)
    workshop.build(Recipe("tiny", "extract", (), {}, outputs=("root.img",), scratch_bytes=1))
    status = (workshop.out / "root.img").stat()
    assert status.st_size == 64 << 20
    assert status.st_blocks * 512 < 1 << 20
    assert not (workshop.out / "root.img.tar").exists()


def test_a_build_that_lacks_a_file_is_refused(workshop: Workshop) -> None:
    workshop.program("mmdebstrap", "exit 0")
    assert "did not create result" in workshop.failure()


def test_a_failure_shows_the_log_and_its_end(workshop: Workshop) -> None:
    workshop.program("mmdebstrap", "echo one; echo 'E: the last word' >&2; exit 25")
    said = workshop.failure()
    assert "(status 25)" in said
    assert str(workshop.log) in said
    assert "E: the last word" in said


def test_the_hint_for_a_network_failure_names_the_proxy(workshop: Workshop) -> None:
    workshop.program("mmdebstrap", "echo 'E: Temporary failure resolving the archive'; exit 1")
    assert "http_proxy" in workshop.failure()


def test_the_message_names_a_full_file_system_and_the_space_needed(workshop: Workshop) -> None:
    workshop.program("mmdebstrap", "echo 'tar: write error: No space left on device'; exit 1")
    said = workshop.failure()
    assert "needs 100 MiB; the file system ran full" in said
    assert "TMPDIR" in said


def test_a_build_does_not_start_without_enough_space(workshop: Workshop) -> None:
    workshop.program("mmdebstrap", "exit 0")
    said = workshop.failure(Recipe("tiny", "extract", (), {}, outputs=(), scratch_bytes=1 << 50))
    assert "needs 1024 TiB of scratch space" in said
    assert "free" in said
    assert not workshop.log.exists()


def test_builds_run_together_only_if_there_is_space_for_both(workshop: Workshop) -> None:
    free = shutil.disk_usage(workshop.out).free
    halves = [replace(RECIPE, scratch_bytes=free // 16, size_bytes=free // 3)] * 2
    assert has_space(halves, workshop.out)
    assert not has_space([*halves, *halves], workshop.out)


def test_a_build_past_its_deadline_is_ended_with_its_children(workshop: Workshop) -> None:
    workshop.program("mmdebstrap", "sleep 600 & echo waiting; echo $!; wait")
    start = time.monotonic()
    said = workshop.failure(deadline=0.3)
    assert time.monotonic() - start < 300, "it did not wait for the child"
    assert "more than 300 ms" in said
    assert "waiting" in said
    child = workshop.log.read_text().split()[-1]
    assert ends(int(child))


def test_a_build_that_is_stopped_ends_with_its_children(workshop: Workshop) -> None:
    workshop.program("mmdebstrap", 'sleep 600 & echo $!; touch "$TMPDIR/../begun"; wait')
    begun = workshop.scratch / "begun"

    def stop() -> None:
        wait_until(begun.exists, deadline=60, every=0.05)
        begun.unlink()
        workshop.stopped.set()

    stopping = Thread(target=stop)
    stopping.start()
    said = workshop.failure(deadline=300)
    stopping.join()
    assert "the tiny image was stopped" in said
    assert ends(int(workshop.log.read_text().split()[-1]))


def test_missing_programs_are_named_with_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("mmdebstrap", path="/usr/sbin:/sbin"):
        pytest.skip("mmdebstrap cannot be hidden here")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabUnavailable, match="without mmdebstrap") as caught:
        require_mode(uid=0)
    assert "apt-get install" in str(caught.value.hint)
    assert "mmdebstrap" in str(caught.value.hint)


@pytest.fixture
def nobody_with_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("mmdebstrap", "apt-get", "mke2fs", "newuidmap"):
        (programs / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(programs))
    return tmp_path


NOBODY = 65534


@pytest.mark.parametrize("table", ["", "root:100000:65536\n", "nobody:100000:1000\n", "nonsense\n"])
def test_without_subordinate_ids_the_hint_has_the_command(nobody_with_programs: Path, table: str) -> None:
    for name in ("subuid", "subgid"):
        (nobody_with_programs / name).write_text(table)
    with pytest.raises(LabUnavailable, match="user nobody needs 65536 subordinate ids") as caught:
        require_mode(etc=nobody_with_programs, uid=NOBODY)
    assert "usermod --add-subuids" in str(caught.value.hint)


@pytest.mark.parametrize("owner", ["nobody", str(NOBODY)])
def test_with_subordinate_ids_no_root_is_needed(nobody_with_programs: Path, owner: str) -> None:
    for name in ("subuid", "subgid"):
        (nobody_with_programs / name).write_text(f"root:1:65536\n{owner}:165536:65536\n")
    assert require_mode(etc=nobody_with_programs, uid=NOBODY) == "unshare"


def test_only_scratch_directories_of_ours_are_taken_away(tmp_path: Path) -> None:
    remove_scratch(tmp_path)
    assert tmp_path.exists()
