"""Controllers for tests of the lease: processes of their own that take a host, to be killed, stopped and raced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HarnessError
from harness.events import Events
from harness.lab import lease as lease_module
from harness.lab.lease import lease
from harness.lab.transport.base import HoldingRunner
from harness.lab.transport.local import LocalRunner
from harness.lab.transport.ssh import SshRunner
from tests.unit.transport_servers import Server

ROOT = Path(__file__).resolve().parents[2]
BOTH_AT_ONCE = 3
# In namespaces of its own, as in a container: its process number is 1, and it sees none of the others.
CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "--net")


@dataclass(frozen=True)
class Controller:
    """A process that has the lease, or said why not in its first `answer`."""

    process: subprocess.Popen[str]

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def run_a_command(self) -> str:
        """What became of a command on the leased host: `done`, or the error's message."""
        assert self.process.stdin is not None
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        return self.answer()


@contextmanager
def controller(
    directory: Path,
    run_id: str,
    *,
    server: Server | None = None,
    beat: float | None = None,
    silence: float | None = None,
    inside: Sequence[str] = (),
) -> Iterator[Controller]:
    """A controller that takes the lease of `directory` and has it until the block ends; over SSH with a `server`."""
    timing = [] if beat is None else [str(beat), str(silence)]
    reached = [] if server is None else [str(server.port), str(server.user_key), server.host_key]
    arguments = [str(directory), run_id, ",".join(timing), *reached]
    with subprocess.Popen(
        [*inside, sys.executable, "-m", "tests.unit.lease_controllers", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            yield Controller(process)
        finally:
            process.kill()


def race(directory: Path, marker: Path, turns: int, racers: int) -> int:
    """Have so many processes race, and print what was wrong; the exit status.

    They are forked, because importing the harness in each would take longer than the race.
    """
    children = []
    for number in range(racers):
        children.append(os.fork())
        if children[-1] == 0:
            wrong = ["the racer was interrupted by an error"]
            try:
                wrong = _race(directory, marker, turns, number)
            finally:
                sys.stderr.writelines(f"{line}\n" for line in wrong)
                sys.stderr.flush()
                os._exit(bool(wrong))
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def _race(directory: Path, marker: Path, turns: int, number: int) -> list[str]:
    """Take the lease `turns` times, every second time to be killed while holding it; what was wrong meanwhile.

    Each turn is a process of its own. While it has the lease it has `marker`, which can be made only once.
    """
    wrong = []
    lease_module._POLL_SECONDS = 0.0  # the more they meet, the better
    for turn in range(turns):
        child = os.fork()
        if child == 0:
            status = 4
            try:
                status = _turn(directory, marker, killed=(turn + number) % 2 == 0)
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status not in (0, -signal.SIGKILL):
            what = "another controller had the lease too" if status == BOTH_AT_ONCE else f"ended with status {status}"
            wrong.append(f"turn {turn}: {what}")
    return wrong


def _turn(directory: Path, marker: Path, *, killed: bool) -> int:
    try:
        with lease(LocalRunner("host node1"), "node1", "racer", Events(), wait=300, directory=str(directory)):
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            marker.unlink()
            if killed:
                os.kill(os.getpid(), signal.SIGKILL)
    except FileExistsError:
        return BOTH_AT_ONCE
    return 0


def _main(directory: str, run_id: str, timing: str, *reached: str) -> None:
    seconds = dict(zip(("beat", "silence"), map(float, timing.split(",")), strict=True)) if timing else {}
    runner: HoldingRunner = LocalRunner("host node1")
    if reached:
        port, user_key, host_key = reached
        target = Server(int(port), Path(user_key), host_key).target()
        runner = SshRunner.connect(target, name="host node1", deadline=20)
    try:
        with lease(runner, "node1", run_id, Events(), directory=directory, **seconds) as held:
            print("held", flush=True)  # noqa: T201
            for _ in sys.stdin:
                try:
                    held.runner.run(["true"], deadline=20)
                    print("done", flush=True)  # noqa: T201
                except HarnessError as error:
                    print(error.message, flush=True)  # noqa: T201
    except HarnessError as error:
        print(error.message, flush=True)  # noqa: T201


if __name__ == "__main__":
    if sys.argv[1] == "race":
        sys.exit(race(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])))
    _main(*sys.argv[1:])
