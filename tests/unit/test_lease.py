"""One run at a time on a host: who waits, who is refused, and how the lease of a run ends with the run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.errors import HostError, LabUnavailable
from harness.events import Event, Events, Note
from harness.lab.lease import Lease, end_holder, lease
from harness.lab.transport.base import HoldingRunner
from harness.lab.transport.local import LocalRunner
from harness.lab.transport.ssh import SshRunner
from tests.unit.lease_controllers import CONTAINER, ROOT, controller
from tests.unit.transport_servers import Server, dropbear, sshd

RUNNER = LocalRunner("host node1")
SOON = 30.0
RACERS = 8
TURNS = 10


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
    def lease(
        self, run_id: str, *, wait: float = 0.0, runner: HoldingRunner = RUNNER, beat: float = 5, silence: float = 30
    ) -> Iterator[Lease]:
        events = Events(self.said.append)
        place = str(self.directory)
        with lease(runner, "node1", run_id, events, wait=wait, directory=place, beat=beat, silence=silence) as held:
            yield held

    def refusal(self, run_id: str) -> LabUnavailable:
        with pytest.raises(LabUnavailable) as error, self.lease(run_id):
            pass
        return error.value


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    monkeypatch.setattr("harness.lab.lease._POLL_SECONDS", 0.02)
    return Room(tmp_path / "virt-overhead")


@pytest.fixture(scope="module", params=[None, sshd, dropbear], ids=["local", "sshd", "dropbear"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server | None]:
    """How the controllers reach the host: None where they run on it."""
    if request.param is None:
        yield None
        return
    with request.param(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def openssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with sshd(tmp_path_factory.mktemp("server")) as running:
        yield running


def holder_process(room: Room) -> int:
    """The process on the host that holds the lease."""
    return int(room.file.read_text().splitlines()[1].split()[0])


def wait_until(what: str, happened: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + SOON
    while not happened():
        assert time.monotonic() < give_up_at, f"not within {SOON:.0f} s: {what}"
        time.sleep(0.02)


def no_run_follows(room: Room, held: Lease) -> None:
    """The lease is lost: nothing more is run on the host, and nothing written."""
    written = room.directory.parent / "written"
    with pytest.raises(HostError, match="host node1: this run has lost its lease: "):
        held.require_held()
    for do in (
        lambda: held.runner.run(["touch", str(written)], deadline=20),
        lambda: held.runner.put(Path(__file__), str(written), deadline=20),
        lambda: held.runner.hold(["touch", str(written)], what="touch", deadline=20).__enter__(),
    ):
        with pytest.raises(HostError, match="has lost its lease"):
            do()
    assert not written.exists()


def test_the_lease_names_its_run_and_is_gone_at_the_end(room: Room) -> None:
    with room.lease("run1") as held:
        assert room.file.read_text().startswith("run1 of ")
        held.require_held()
        assert held.runner.run(["echo", "x"], deadline=20).stdout == "x\n"
        assert room.directory.stat().st_mode & 0o777 == 0o700
        assert room.file.stat().st_mode & 0o777 == 0o600
    assert list(room.directory.iterdir()) == []
    assert room.notes == []
    with room.lease("run2"):
        pass


def test_a_failure_also_ends_the_lease(room: Room) -> None:
    with pytest.raises(ZeroDivisionError), room.lease("run1"):
        raise ZeroDivisionError
    with room.lease("run2"):
        assert room.file.read_text().startswith("run2 ")


def test_a_second_run_is_refused_and_the_message_identifies_the_first(room: Room) -> None:
    with room.lease("run1") as held:
        error = room.refusal("run2")
        held.require_held()
    machine = Path("/etc/machine-id").read_text().strip() if Path("/etc/machine-id").exists() else "unknown"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert re.fullmatch(
        rf"host node1 is being measured by another run \(run1 of \S+@{re.escape(socket.gethostname())}, "
        rf"process {os.getpid()} started {moment}, machine-id {machine}, boot-id {boot}, since {moment}\)",
        error.message,
    )
    assert "virt-overhead reap --host node1 --force" in str(error.hint)


@pytest.mark.parametrize("text", ["run1 {host} 1", "run1 {host} {pid}", "run1 elsewhere 12", "", "something else"])
def test_a_file_without_a_lock_is_ignored(room: Room, text: str) -> None:
    room.directory.mkdir()
    room.file.write_text(text.format(host=socket.gethostname(), pid=os.getpid()))
    with room.lease("run2"):
        assert room.file.read_text().startswith("run2 of ")
    assert not room.file.exists()


def test_a_run_that_waits_reports_it_once_and_continues_when_the_host_is_free(room: Room) -> None:
    held = threading.Event()

    def hold_until_it_is_waited_for() -> None:
        with room.lease("run1"):
            held.set()
            wait_until("a note", lambda: bool(room.notes))

    first = threading.Thread(target=hold_until_it_is_waited_for)
    first.start()
    assert held.wait(SOON)
    with room.lease("run2", wait=SOON):
        assert room.file.read_text().startswith("run2 ")
    first.join()
    (note,) = room.notes
    assert note.startswith("host node1: waiting for the end of the run that holds it: run1 of ")


def test_waiting_ends_when_its_time_is_over(room: Room) -> None:
    with room.lease("run1"), pytest.raises(LabUnavailable, match="run1"), room.lease("run2", wait=0.2):
        pass


def test_racing_controllers_never_have_the_lease_at_once(room: Room, tmp_path: Path) -> None:
    arguments = ["race", str(room.directory), str(tmp_path / "marker"), str(TURNS), str(RACERS)]
    raced = subprocess.run(
        [sys.executable, "-m", "tests.unit.lease_controllers", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    assert raced.stderr == ""
    assert raced.returncode == 0


def test_a_controller_that_sees_no_process_of_the_holder_is_refused(room: Room) -> None:
    require_namespaces()
    with room.lease("run1") as held, controller(room.directory, "run2", inside=CONTAINER) as other:
        assert "is being measured by another run (run1 of " in other.answer()
        held.require_held()


def test_controllers_of_one_host_name_and_process_number_exclude_each_other(room: Room) -> None:
    require_namespaces()
    with controller(room.directory, "run1", inside=CONTAINER) as first:
        assert first.answer() == "held"
        with controller(room.directory, "run2", inside=CONTAINER) as second:
            answer = second.answer()
            assert "is being measured by another run (run1 of " in answer
            assert f"@{socket.gethostname()}, process 1 started " in answer
        assert first.run_a_command() == "done"


def test_a_controller_that_is_killed_leaves_a_free_host(room: Room, server: Server | None) -> None:
    with controller(room.directory, "run1", server=server) as first:
        assert first.answer() == "held"
        assert room.refusal("run2").message.startswith("host node1 is being measured by another run (run1 of ")
        first.process.kill()
        with room.lease("run2", wait=SOON):
            assert room.file.read_text().startswith("run2 of ")


def test_a_silent_controller_loses_the_host_and_notices(room: Room, server: Server | None) -> None:
    with controller(room.directory, "run1", server=server, beat=0.2, silence=1.5) as first:
        assert first.answer() == "held"
        first.process.send_signal(signal.SIGSTOP)
        with room.lease("run2", wait=SOON) as held:
            first.process.send_signal(signal.SIGCONT)
            lost = "host node1: this run has lost its lease: the host received nothing from this run for 1.5 s"
            assert first.run_a_command() == lost
            held.require_held()


def test_a_controller_that_does_nothing_keeps_the_host(room: Room) -> None:
    silence = 1.5
    with room.lease("run1", beat=0.2, silence=silence) as held:
        time.sleep(1.5 * silence)
        held.require_held()


def test_the_lease_is_lost_if_its_holder_no_longer_answers(room: Room) -> None:
    with room.lease("run1", silence=1) as held:
        pid = holder_process(room)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(HostError, match=r"its holder on the host did not answer within 1 s"):
                held.require_held()
        finally:
            os.kill(pid, signal.SIGCONT)
        no_run_follows(room, held)


def test_a_lease_that_is_ended_on_the_host_stops_its_run(room: Room) -> None:
    with room.lease("run1") as held:
        held.require_held()
        holder = end_holder(RUNNER, "node1", directory=str(room.directory))
        assert str(holder).startswith("run1 of ")
        with room.lease("run2") as second:
            no_run_follows(room, held)
            second.require_held()
    assert end_holder(RUNNER, "node1", directory=str(room.directory)) is None


def test_the_fence_is_open_only_for_the_run_that_has_the_host(room: Room, server: Server | None) -> None:
    runner = RUNNER if server is None else SshRunner.connect(server.target(), name="host node1", deadline=20)

    def passes(fence: str) -> bool:
        return runner.run(["sh", "-c", fence], deadline=20, check=False).status == 0

    with room.lease("run1", runner=runner) as first:
        assert passes(first.fence)
        stale = room.file.read_text()
    assert not passes(first.fence)
    room.file.write_text(stale)
    assert not passes(first.fence)
    with room.lease("run2", runner=runner) as second:
        assert passes(second.fence)
        assert not passes(first.fence)
    runner.close()


def test_only_the_holder_is_ended_by_force(room: Room) -> None:
    with room.lease("run1") as held, subprocess.Popen(["sleep", "60"]) as bystander:
        try:
            who, _ = room.file.read_text().splitlines()
            room.file.write_text(f"{who}\n{bystander.pid} 1\n")
            with pytest.raises(LabUnavailable, match=r"run1 of .*: its process is not visible there"):
                end_holder(RUNNER, "node1", directory=str(room.directory))
            assert bystander.poll() is None
            held.require_held()
        finally:
            bystander.kill()


def test_the_host_of_a_lost_connection_is_free_and_the_run_stops(room: Room, openssh: Server) -> None:
    far = SshRunner.connect(openssh.target(), name="host node1", deadline=20)
    connection = int(far.run(["sh", "-c", "echo $PPID"], deadline=20).stdout)
    with room.lease("run1", runner=far) as held:
        held.require_held()
        os.kill(connection, signal.SIGKILL)
        with room.lease("run2", wait=SOON):
            no_run_follows(room, held)
    far.close()


def test_a_directory_that_is_replaced_ends_the_lease(room: Room) -> None:
    with room.lease("run1") as held:
        room.directory.rename(room.directory.parent / "moved")
        with room.lease("run2") as second:
            with pytest.raises(HostError, match="was replaced on the host"):
                held.require_held()
            second.require_held()


def test_a_directory_of_earlier_versions_is_closed_to_others(room: Room) -> None:
    room.directory.mkdir(mode=0o755)
    with room.lease("run1"):
        assert room.directory.stat().st_mode & 0o777 == 0o700


def test_a_link_instead_of_the_directory_is_refused(room: Room, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    room.directory.symlink_to(tmp_path / "elsewhere")
    error = room.refusal("run1")
    assert error.message == f"host node1 cannot be leased: {room.directory} is not a directory"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_link_instead_of_the_file_is_refused_and_not_followed(room: Room, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    room.directory.mkdir(mode=0o700)
    room.file.symlink_to(victim)
    error = room.refusal("run1")
    assert f"{room.file} is not a regular file of user {os.geteuid()}" in error.message
    assert victim.read_text() == "precious"
    assert room.file.is_symlink()


def test_a_directory_that_others_may_write_is_refused(room: Room) -> None:
    room.directory.mkdir()
    room.directory.chmod(0o1777)
    assert f"does not belong to user {os.geteuid()} alone" in room.refusal("run1").message


def test_a_directory_or_file_of_somebody_else_is_refused(room: Room) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    room.directory.mkdir(mode=0o700)
    os.chown(room.directory, 65534, 65534)
    assert "does not belong to user 0 alone: owner 65534, mode 700" in room.refusal("run1").message
    os.chown(room.directory, 0, 0)
    room.file.write_text("run0")
    os.chown(room.file, 65534, 65534)
    assert f"{room.file} is not a regular file of user 0" in room.refusal("run1").message


@pytest.mark.parametrize("missing", ["bash", "flock"])
def test_a_host_without_what_the_lease_needs_is_named_with_the_remedy(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in {"sh", "bash", "flock", "stat"} - {missing}:
        (programs / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(programs))
    error = room.refusal("run1")
    assert error.message == f"host node1: its lease needs `{missing}`, which is not installed there"
    assert error.hint == f"install `{missing}` on the host"


def require_namespaces() -> None:
    if subprocess.run([*CONTAINER, "true"], check=False, capture_output=True).returncode:
        pytest.skip("namespaces cannot be made here: root is needed")
