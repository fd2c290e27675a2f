"""Holds a state for as long as a command runs, or until the user ends it."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from types import FrameType

from harness.errors import ConfigError
from harness.lab.withdrawn import whole_environment
from harness.signals import handling


def run_command(argv: Sequence[str]) -> int:
    """Run a command on this terminal and wait until it has ended by itself, also at Ctrl-C; its exit status.

    Ctrl-C reaches the command too, which may need its time to clean up; SIGTERM and SIGHUP are handed on to it.
    Raises ConfigError where there is no such command.
    """
    process: subprocess.Popen[bytes] | None = None

    def hand_on(number: int, _frame: FrameType | None) -> None:
        if process is not None:
            process.send_signal(number)

    # A handler, where ignoring the signal would make the command ignore it as well.
    with handling({signal.SIGINT: lambda *_: None, signal.SIGTERM: hand_on, signal.SIGHUP: hand_on}):
        try:
            # The command may be a run of ours, which needs the secrets that were withdrawn here.
            process = subprocess.Popen(argv, env=whole_environment())
        except OSError as error:
            raise ConfigError(
                f"cannot run {argv[0]}: {error.strerror}", hint="after -- comes a command of this machine"
            ) from None
        status = process.wait()
    return status if status >= 0 else 128 - status


def until_interrupted(ready: Callable[[], None]) -> None:
    """Wait for Ctrl-C, SIGTERM or SIGHUP, as long as it takes. `ready` is called once they are waited for."""
    ended = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    with handling(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), end)):
        ready()
        ended.wait()
