"""Commands that live as long as they are held: here, and over SSH connections."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.lab.transport import base as held_module
from harness.lab.transport.base import MOST_LINE_BYTES, MOST_LINES, HoldingRunner
from harness.lab.transport.local import LocalRunner
from harness.lab.transport.ssh import SshRunner
from tests.unit.processes import ends, has_ended
from tests.unit.transport_servers import Server, dropbear, sshd

# Prints its process number, then every line that it reads; it ends with its standard input.
ECHO = ("sh", "-c", 'echo $$; while read -r line; do echo "$line"; done')
SOON = 20.0


@pytest.fixture(scope="module", params=[None, sshd, dropbear], ids=["local", "sshd", "dropbear"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HoldingRunner]:
    if request.param is None:
        yield LocalRunner("host lab")
        return
    with request.param(tmp_path_factory.mktemp("server")) as server:
        far = SshRunner.connect(server.target(), name="host lab", deadline=20)
        yield far
        far.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with sshd(tmp_path) as running:
        yield running


def wait_until(what: str, happened: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + SOON
    while not happened():
        assert time.monotonic() < give_up_at, f"not within {SOON:.0f} s: {what}"
        time.sleep(0.02)


def test_a_held_command_answers_and_ends_with_the_block(runner: HoldingRunner) -> None:
    with runner.hold(ECHO, what="the echo", deadline=SOON) as held:
        pid = int(held.lines[0])
        held.send("one")
        held.send("two")
        assert held.wait(lambda lines: lines[-1] == "two", SOON)
        assert held.lines == (str(pid), "one", "two")
        assert held.alive
        assert not has_ended(pid)
        assert runner.run(["echo", "beside it"], deadline=SOON).stdout == "beside it\n"
    wait_until("the command ends", lambda: has_ended(pid))
    assert not held.alive


def test_a_held_command_also_ends_after_a_failure(runner: HoldingRunner) -> None:
    with pytest.raises(ZeroDivisionError), runner.hold(ECHO, what="the echo", deadline=SOON) as held:
        raise ZeroDivisionError
    wait_until("the command ends", lambda: has_ended(int(held.lines[0])))


def test_the_end_of_the_command_is_noticed_and_nothing_more_is_sent(runner: HoldingRunner) -> None:
    with runner.hold(ECHO, what="the echo", deadline=SOON) as held:
        os.kill(int(held.lines[0]), signal.SIGKILL)
        wait_until("the end is noticed", lambda: not held.alive)
        assert not held.wait(lambda lines: "never" in lines, SOON)
        with suppress(HostError):
            held.send("this may still fit into a buffer")
        with pytest.raises(HostError, match="host lab: the echo has ended"):
            held.send("one")


def test_a_command_that_prints_nothing_is_an_error_and_is_ended(runner: HoldingRunner, tmp_path: Path) -> None:
    silent = ("sh", "-c", f"echo $$ >{tmp_path}/pid; read -r line")
    with (
        pytest.raises(HostError, match="host lab: the echo did not answer within 500 ms"),
        runner.hold(silent, what="the echo", deadline=0.5),
    ):
        pass
    wait_until("the command ends", lambda: has_ended(int((tmp_path / "pid").read_text())))


def test_a_command_that_ends_without_output_is_an_error(runner: HoldingRunner) -> None:
    with (
        pytest.raises(HostError, match="host lab: the echo ended without an answer"),
        runner.hold(("true",), what="the echo", deadline=SOON),
    ):
        pass


def test_standard_error_is_also_read(runner: HoldingRunner) -> None:
    with runner.hold(("sh", "-c", "echo oops >&2; read -r line"), what="the echo", deadline=SOON) as held:
        assert held.lines == ("oops",)


def test_only_the_end_of_a_long_output_is_stored(runner: HoldingRunner) -> None:
    long = "echo first; head -c 300000 /dev/zero | tr '\\0' x; echo; seq 1000; echo end; read -r line"
    with runner.hold(("sh", "-c", long), what="the echo", deadline=SOON) as held:
        assert held.wait(lambda lines: lines[-1] == "end", SOON)
        assert held.lines[-2:] == ("1000", "end")
        assert len(held.lines) == MOST_LINES
        assert max(map(len, held.lines)) <= MOST_LINE_BYTES


def test_a_process_here_that_outlives_its_input_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.lab.transport.local.HELD_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(held_module, "HELD_GRACE_SECONDS", 0.2)
    with LocalRunner().hold(("sh", "-c", "echo $$; exec sleep 60"), what="it", deadline=SOON) as held:
        pid = int(held.lines[0])
    assert ends(pid)


def test_a_missing_program_here_says_what_to_install() -> None:
    with (
        pytest.raises(HostError, match="the program `fio-of-the-future` is missing"),
        LocalRunner().hold(("fio-of-the-future",), what="it", deadline=SOON),
    ):
        pass


def test_it_ends_with_its_connection(server: Server) -> None:
    far = SshRunner.connect(server.target(), name="host lab", deadline=20)
    connection = int(far.run(["sh", "-c", "echo $PPID"], deadline=SOON).stdout)
    with far.hold(ECHO, what="the echo", deadline=SOON) as held:
        os.kill(connection, signal.SIGKILL)
        wait_until("the end is noticed", lambda: not held.alive)
        wait_until("the command ends", lambda: has_ended(int(held.lines[0])))
    with (
        pytest.raises(HostError, match=r"host lab: the connection was lost: \w.* \(while running `the echo`\)"),
        far.hold(ECHO, what="the echo", deadline=SOON),
    ):
        pass
    far.close()
