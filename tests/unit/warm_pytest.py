"""Runs of pytest without the time that each needs to import the harness: a process imports it, and forks for each.

`python -m tests.unit.warm_pytest` reads a request per line, and answers each with the id of the process and, when that
has ended, with its exit status. A run is a process of its own, with directory, environment, arguments and output as
given; so are the workers of `-n 2`, while those of `--numprocesses=2` are new Pythons. Only the plugin itself, pytest's
other plugins and the user's files are imported in the run, because pytest must be the first to import them.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

from harness.lab.lab_file import lab_of
from harness.measure.resume import dump_mode
from harness.report.html import write_report
from harness.results import RunStore
from harness.scenario.load import load_scenario
from tests.build import RUN_ID, synthetic_run
from tests.unit.forked_workers import fork_workers
from tests.unit.processes import has_ended

ROOT = Path(__file__).parents[2]
# What most runs import, apart from harness.plugin.
_IMPORTED = (
    *("pytest", "_pytest.pytester", "execnet", "pygments.lexers.python", "pygments.formatters.terminal"),
    *("harness.cli", "harness.features.calibrate.detectable", "harness.measure.host_measurer"),
    "tests.unit.recorded_campaign",
)


@dataclass(frozen=True)
class Request:
    """A run of pytest: its arguments, and the files that its output goes to."""

    arguments: list[str]
    directory: str
    environment: dict[str, str]
    stdout: str
    stderr: str
    terminal: str = ""
    """The terminal that it is started at, and that its output goes to; none if empty."""


class Running:
    """A run that was started, and the process that forked it."""

    def __init__(self, pid: int, server: subprocess.Popen[str], request: Request) -> None:
        self.pid = pid
        self._server = server
        self._request = request
        self._status: int | None = None

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing happens if it has ended, as with `Popen.send_signal`."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def has_ended(self) -> bool:
        return has_ended(self.pid)

    def wait(self, timeout: float) -> int:
        """The exit status of the run; minus the signal's number if a signal ended it.

        Raises TimeoutError after `timeout` seconds, and no further run is possible then.
        """
        if self._status is None:
            over = Timer(timeout, self._kill)
            over.start()
            try:
                answer = _read_line(self._server)
            finally:
                over.cancel()
            if not answer:
                raise TimeoutError(f"pytest {' '.join(self._request.arguments)} did not end within {timeout} s")
            self._status = int(answer)
        return self._status

    def read_output(self) -> str:
        """What it printed, and then its errors."""
        return "".join(Path(name).read_text() for name in (self._request.stdout, self._request.stderr))

    def _kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        os.killpg(self._server.pid, signal.SIGKILL)


def _read_line(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    return server.stdout.readline()


class WarmPytest:
    """The process that forks; the first run starts it. Not for several threads, and for one run at a time."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    @cached_property
    def _process(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self._stack.enter_context(process)

    @contextmanager
    def started(self, request: Request) -> Iterator[Running]:
        """A run that goes on while the block does. It has to end within 600 s of the block's end."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(request)) + "\n")
        self._process.stdin.flush()
        running = Running(int(_read_line(self._process)), self._process, request)
        try:
            yield running
        except BaseException:
            running.send_signal(signal.SIGKILL)
            raise
        finally:
            running.wait(600)

    def run(self, request: Request, *, timeout: float) -> int:
        """What `Running.wait` returns of a run."""
        with self.started(request) as running:
            return running.wait(timeout)


@contextmanager
def warm_pytest() -> Iterator[WarmPytest]:
    """Runs of pytest that start at once. What they need ends with the block."""
    with ExitStack() as stack:
        yield WarmPytest(stack)


def _warm_up() -> None:
    for name in _IMPORTED:
        import_module(name)
    with TemporaryDirectory() as reports:
        store = RunStore.create(Path(reports), RUN_ID)
        store.write_results(synthetic_run(modes=["host", "passthrough"]))
        write_report(store)
    # The first of each makes the schema.
    dump_mode(load_scenario(ROOT / "scenarios" / "optane.toml").modes[0])
    lab_of({"host": {"here": {"kind": "local"}}}, "lab.toml")
    gc.freeze()


def _serve() -> None:
    for line in sys.stdin:
        request = Request(**json.loads(line))
        child = os.fork()
        if child == 0:
            _become(request)
            if "-n" in request.arguments:
                fork_workers(Path(request.directory, "python"))
            runpy.run_module("pytest", run_name="__main__", alter_sys=True)
            raise AssertionError("pytest ends its process")
        print(child, flush=True)  # noqa: T201
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


def _become(request: Request) -> None:
    """Have this process look as if Python had just been started for the request."""
    if request.terminal:
        os.login_tty(os.open(request.terminal, os.O_RDWR))
    else:
        _redirect(request)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv = ["pytest", *request.arguments]
    sys.path[0] = request.directory


def _redirect(request: Request) -> None:
    for number, (path, flags) in enumerate(
        [
            (os.devnull, os.O_RDONLY),
            (request.stdout, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (request.stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ]
    ):
        file = os.open(path, flags)
        os.dup2(file, number)
        os.close(file)


if __name__ == "__main__":
    _warm_up()
    _serve()
