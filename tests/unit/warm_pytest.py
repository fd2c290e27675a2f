"""Runs of pytest without the time that each needs to import the harness: a process imports it, and forks for each.

`python -m tests.unit.warm_pytest` reads a request per line, and answers each with the exit status. A run is a process
of its own, with directory, environment, arguments and output as given. Only the plugin itself, pytest's other plugins
and the user's files are imported in the run, because pytest must be the first to import them.
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
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

from harness.lab.lab_file import lab_of
from harness.report.html import write_report
from harness.results import RunStore
from harness.scenario.load import load_scenario
from tests.build import RUN_ID, synthetic_run

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


class WarmPytest:
    """The process that forks; the first run starts it. Not for several threads."""

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

    def run(self, request: Request, *, timeout: float) -> int:
        """The exit status of the run; minus the signal's number if a signal ended it.

        Raises TimeoutError after `timeout` seconds, and no further run is possible then.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        over = Timer(timeout, lambda: os.killpg(self._process.pid, signal.SIGKILL))
        over.start()
        try:
            self._process.stdin.write(json.dumps(asdict(request)) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            over.cancel()
        if not answer:
            raise TimeoutError(f"pytest {' '.join(request.arguments)} did not end within {timeout} s")
        return int(answer)


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
    load_scenario(ROOT / "scenarios" / "optane.toml")
    lab_of({"host": {"here": {"kind": "local"}}}, "lab.toml")
    gc.freeze()


def _serve() -> None:
    for line in sys.stdin:
        request = Request(**json.loads(line))
        child = os.fork()
        if child == 0:
            _become(request)
            runpy.run_module("pytest", run_name="__main__", alter_sys=True)
            raise AssertionError("pytest ends its process")
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


def _become(request: Request) -> None:
    """Have this process look as if Python had just been started for the request."""
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
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv = ["pytest", *request.arguments]
    sys.path[0] = request.directory


if __name__ == "__main__":
    _warm_up()
    _serve()
