"""A run that is told to end, or whose terminal is closed, takes down what it made as after Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.unit.processes import has_ended
from tests.unit.test_plugin import FINE, Play, play, run, warm
from tests.unit.warm_pytest import Request, Running, WarmPytest

pytest_plugins = ["pytester"]
__all__ = ["play", "run", "warm"]

# Its first round is a command that does not end by itself; its end a command that has to run.
WAITING = """
    from harness.lab.transport.local import LocalRunner

    class Waiting(RecordedMeasurer):
        def measure(self, group, segment, began):
            LocalRunner().run(["sh", "-c", "echo $$ >measuring.part; mv measuring.part measuring; exec sleep 300"],
                              deadline=300)

        def close(self):
            print("taking down what was made", flush=True)
            LocalRunner().run(["sh", "-c", "sleep 0.3; echo done >taken-down"], deadline=20)

    host_measurer.HostMeasurer = Waiting
"""
NOT_IGNORED = pytest.mark.skipif(
    signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="whoever started the tests has them ignore SIGHUP"
)


@pytest.fixture
def waiting(play: Play, pytester: pytest.Pytester) -> Path:
    play(FINE)
    with (pytester.path / "conftest.py").open("a") as conftest:
        conftest.write(WAITING)
    return pytester.path


ARGUMENTS = ["-p", "no:cacheprovider", "-k", "alpha"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *ARGUMENTS, *arguments]


@contextmanager
def measuring(warm: WarmPytest, directory: Path) -> Iterator[Running]:
    """A run that measures."""
    output, errors = str(directory / "stdout"), str(directory / "stderr")
    with warm.started(Request(ARGUMENTS, str(directory), dict(os.environ), output, errors)) as running:
        wait_for((directory / "measuring").exists, "it does not measure")
        yield running


def wait_for(condition: Callable[[], bool], what: str) -> None:
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.05)


def taken_down(directory: Path) -> bool:
    stored = json.loads((directory / "reports" / "latest" / "results.json").read_text())
    run_ended = (directory / "taken-down").exists() and stored["run"]["status"] == "interrupted"
    return run_ended and has_ended(int((directory / "measuring").read_text()))


@NOT_IGNORED
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_gets_a_signal_removes_what_it_created(
    warm: WarmPytest, waiting: Path, number: signal.Signals
) -> None:
    with measuring(warm, waiting) as process:
        process.send_signal(number)
        status = process.wait(60)
    assert status == pytest.ExitCode.INTERRUPTED, process.read_output()
    assert taken_down(waiting)


LEAVING = """
    from harness.errors import HostError
    from harness.signals import Cleanup

    def remove():
        raise HostError("the host does not answer")

    class Leaving(Waiting):
        def measure(self, group, segment, began):
            with Cleanup("kvm1", "run: virt-overhead reap") as cleanup:
                cleanup.by("the guest", remove)
                super().measure(group, segment, began)

    host_measurer.HostMeasurer = Leaving
"""


def test_what_a_run_could_not_remove_after_a_signal_is_named(warm: WarmPytest, waiting: Path) -> None:
    with (waiting / "conftest.py").open("a") as conftest:
        conftest.write(LEAVING)
    with measuring(warm, waiting) as process:
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
    output = process.read_output()
    assert status == pytest.ExitCode.INTERRUPTED, output
    left = "left behind: the guest (the host does not answer); run: virt-overhead reap"
    assert output.count(f"virt-overhead: kvm1: {left}") == 1, output


@NOT_IGNORED
@pytest.mark.parametrize("capture", ["--capture=fd", "--capture=no"])
def test_a_run_whose_terminal_is_closed_removes_what_it_created(warm: WarmPytest, waiting: Path, capture: str) -> None:
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)

    def is_measuring() -> bool:
        # Nobody reads a terminal that is full: the run would wait for it.
        with suppress(BlockingIOError):
            os.read(ours, 1 << 16)
        return (waiting / "measuring").exists()

    request = Request([*ARGUMENTS, capture, "-v"], str(waiting), dict(os.environ), "", "", os.ttyname(theirs))
    with warm.started(request) as process:
        wait_for(is_measuring, "it does not measure")
        os.close(theirs)
        os.close(ours)
        assert process.wait(60) == pytest.ExitCode.INTERRUPTED
    assert taken_down(waiting)


@NOT_IGNORED
def test_a_second_hangup_does_not_interrupt_the_clean_up(warm: WarmPytest, waiting: Path) -> None:
    with measuring(warm, waiting) as process:
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: has_ended(int((waiting / "measuring").read_text())), "the command goes on")
        process.send_signal(signal.SIGHUP)
        status = process.wait(60)
    assert status == pytest.ExitCode.INTERRUPTED, process.read_output()
    assert taken_down(waiting)


def test_under_nohup_a_hangup_ends_nothing(waiting: Path) -> None:
    ignoring = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command()]
    with subprocess.Popen(ignoring, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        wait_for((waiting / "measuring").exists, "it does not measure")
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        assert not (waiting / "taken-down").exists()
        process.terminate()
        process.communicate(timeout=60)
    assert taken_down(waiting)


COMMAND = """
import sys, time
from pathlib import Path
import harness.cli
from harness.cli import main

def work(options):
    try:
        Path(sys.argv[1], "working").touch()
        time.sleep(300)
    finally:
        print("taking down", flush=True)
        Path(sys.argv[1], "taken-down").touch()

harness.cli._images = work
sys.exit(main(["images"]))
"""


@NOT_IGNORED
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_command_ends_as_after_ctrl_c(tmp_path: Path, number: signal.Signals) -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", COMMAND, str(tmp_path)], cwd=root, stderr=subprocess.PIPE) as process:
        wait_for((tmp_path / "working").exists, "it does not work")
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said == b"virt-overhead: interrupted\n"
    assert (tmp_path / "taken-down").exists()


@NOT_IGNORED
@pytest.mark.parametrize(
    ("number", "again"),
    [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGHUP), (signal.SIGHUP, signal.SIGTERM)],
)
def test_a_second_signal_does_not_interrupt_the_clean_up(
    warm: WarmPytest, waiting: Path, number: signal.Signals, again: signal.Signals
) -> None:
    with measuring(warm, waiting) as process:
        process.send_signal(number)
        wait_for(lambda: has_ended(int((waiting / "measuring").read_text())), "the command goes on")
        while not (waiting / "taken-down").exists() and not process.has_ended():
            process.send_signal(again)
            time.sleep(0.02)
        status = process.wait(60)
    assert status == pytest.ExitCode.INTERRUPTED, process.read_output()
    assert taken_down(waiting)


STARTED = """
import sys
from harness.lab.transport.local import LocalRunner
from harness.signals import ended_like_ctrl_c

try:
    with ended_like_ctrl_c():
        sys.stdout.write("ready\\n")
        sys.stdout.flush()
        while True:
            LocalRunner().run(["sleep", "0.02"], deadline=30)
            LocalRunner().run(["sleep", sys.argv[1]], deadline=300)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_command_goes_on_whenever_the_signal_comes(number: signal.Signals) -> None:
    """Also in the moment in which the process exists and Python does not know of it yet."""
    root, duration = Path(__file__).parents[2], _choose_duration()
    for _ in range(12):
        argv = [sys.executable, "-c", STARTED, duration]
        with subprocess.Popen(argv, cwd=root, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            wait_for(lambda: bool(children.read_text()), "no command starts")  # noqa: B023 - called at once
            seen = {int(child) for child in children.read_text().split()}
            process.send_signal(number)
            assert process.wait(60) == 130
        assert all(has_ended(child) for child in seen)
        assert duration not in "".join(_command_lines())


def _choose_duration() -> str:
    """Seconds to sleep that no other test of this machine has, to find the command by."""
    return f"297.{os.getpid()}{time.monotonic_ns()}"


def _command_lines() -> list[str]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in lines if line.startswith("sleep")]


REMOVING = """
import signal, sys, time
from harness.signals import Cleanup
from harness.lab.transport.local import LocalRunner
from harness.signals import ended_like_ctrl_c

def remove():
    print("removing", flush=True)
    LocalRunner().run(["sleep", "0.5"], deadline=20)
    print("removed", flush=True)

try:
    with ended_like_ctrl_c():
        with Cleanup("host here", "look") as cleanup:
            cleanup.by("something", remove)
        print("the next step", flush=True)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_while_things_are_removed_anyway_ends_the_run_after_that(number: signal.Signals) -> None:
    root = Path(__file__).parents[2]
    argv = [sys.executable, "-c", REMOVING]
    with subprocess.Popen(argv, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "removing\n"
        for _ in range(3):
            process.send_signal(number)
            time.sleep(0.05)
        output, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output == "removed\n"
    assert said.count("virt-overhead reap") == 1


@NOT_IGNORED
def test_a_worker_of_xdist_removes_what_it_created_after_several_signals_to_its_controller(waiting: Path) -> None:
    with (waiting / "conftest.py").open("a") as conftest:
        conftest.write(WAITING.replace("sleep 0.3;", "sleep 12;").replace("deadline=20", "deadline=60"))
    argv = command("-n", "1")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        wait_for((waiting / "measuring").exists, "it does not measure")
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert taken_down(waiting)


IN_A_THREAD = """
import sys, threading, time
from harness.errors import HostError
from harness.lab.transport.local import LocalRunner
from harness.signals import ended_like_ctrl_c

def work():
    try:
        LocalRunner().run(["sleep", sys.argv[1]], deadline=300)
    except HostError as error:
        sys.stderr.write(str(error))

try:
    with ended_like_ctrl_c():
        threading.Thread(target=work).start()
        time.sleep(0.5)
        sys.stdout.write("ready\\n")
        sys.stdout.flush()
        time.sleep(300)
except KeyboardInterrupt:
    LocalRunner().run(["sleep", "1.5"], deadline=20)
    sys.exit(130)
"""


def test_a_command_of_another_thread_ends_as_well_and_clean_up_goes_on() -> None:
    root, duration = Path(__file__).parents[2], _choose_duration()
    argv = [sys.executable, "-c", IN_A_THREAD, duration]
    with subprocess.Popen(argv, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == f"this machine: the run was interrupted: `sleep {duration}` was ended"
    assert duration not in "".join(_command_lines())
