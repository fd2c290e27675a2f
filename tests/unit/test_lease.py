"""One run at a time on a host: who waits, who is told, and what becomes of the lease of a dead run."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.errors import LabUnavailable
from harness.events import Event, Events, Note
from harness.lab.lease import lease
from harness.lab.transport.local import LocalRunner

RUNNER = LocalRunner("host node1")


@dataclass
class Room:
    """A directory for leases, and what was said about them."""

    directory: Path
    said: list[Event] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.directory / "lease"

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.said if isinstance(event, Note)]

    @contextmanager
    def lease(self, run_id: str, *, wait: float = 0.0) -> Iterator[None]:
        events = Events(self.said.append)
        with lease(RUNNER, "node1", run_id, events, wait=wait, directory=str(self.directory)):
            yield

    def left_by(self, run_id: str, host: str, pid: object) -> None:
        self.directory.mkdir(exist_ok=True)
        self.file.write_text(f"{run_id} {host} {pid}\n")


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path / "virt-overhead")


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_the_lease_names_its_run_and_is_gone_at_the_end(room: Room) -> None:
    with room.lease("run1"):
        assert room.file.read_text() == f"run1 {socket.gethostname()} {os.getpid()}\n"
    assert not room.file.exists()
    assert room.notes == []


def test_the_lease_is_gone_after_a_failure_too(room: Room) -> None:
    with pytest.raises(ZeroDivisionError), room.lease("run1"):
        raise ZeroDivisionError
    assert not room.file.exists()


def test_a_second_run_is_refused_and_told_who_holds_the_host(room: Room) -> None:
    with room.lease("run1"):
        with (
            pytest.raises(LabUnavailable, match=r"host node1 is being measured by another run \(run1 ") as error,
            room.lease("run2"),
        ):
            pass
        assert room.file.read_text().startswith("run1 ")
    assert error.value.hint is not None
    assert "virt-overhead reap --host node1 --force" in error.value.hint


def test_the_lease_of_a_dead_process_of_this_machine_is_taken_over_and_told(room: Room) -> None:
    room.left_by("killed", socket.gethostname(), dead_pid())
    with room.lease("run2"):
        assert room.file.read_text().startswith("run2 ")
    assert room.notes == ["host node1: the lease of run killed is taken over, its process is gone"]
    assert not room.file.exists()


@pytest.mark.parametrize("text", ["run1 elsewhere 1", "", "something else"])
def test_a_lease_that_cannot_be_judged_from_here_is_respected(room: Room, text: str) -> None:
    room.directory.mkdir()
    room.file.write_text(text)
    with pytest.raises(LabUnavailable), room.lease("run2"):
        pass
    assert room.file.read_text() == text


def test_a_run_that_waits_says_so_once_and_goes_on_when_the_host_is_free(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.lab.lease._POLL_SECONDS", 0.02)
    room.left_by("run1", socket.gethostname(), os.getpid())
    free = threading.Timer(0.2, room.file.unlink)
    free.start()
    with room.lease("run2", wait=10):
        assert room.file.read_text().startswith("run2 ")
    free.join()
    assert room.notes == ["host node1: waiting for run run1 to end"]


def test_waiting_ends_when_its_time_is_over(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.lab.lease._POLL_SECONDS", 0.02)
    room.left_by("run1", socket.gethostname(), os.getpid())
    start = time.monotonic()
    with pytest.raises(LabUnavailable, match="run1"), room.lease("run2", wait=0.2):
        pass
    assert 0.2 <= time.monotonic() - start < 5


def test_a_run_whose_lease_was_forced_from_it_leaves_the_next_ones_alone(room: Room) -> None:
    with room.lease("run1"):
        room.left_by("run2", "elsewhere", 1)
    assert room.file.read_text() == "run2 elsewhere 1\n"
