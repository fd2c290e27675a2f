"""Waits while settings are held: until a command has ended, or until the user presses Ctrl-C."""

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
    """Run a command on this terminal and wait until it has ended by itself, also after Ctrl-C. Returns its exit status.

    The terminal sends Ctrl-C to the command as well, which may need time to clean up. SIGTERM and SIGHUP are forwarded
    to it. Raises ConfigError if the command cannot be run.
    """
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, _frame: FrameType | None) -> None:
        if process is not None:
            process.send_signal(number)

    # A handler that does nothing. With SIG_IGN, the command would inherit it and ignore the signal as well.
    with handling({signal.SIGINT: lambda *_: None, signal.SIGTERM: forward, signal.SIGHUP: forward}):
        try:
            # The command may start a run of virt-overhead, which needs the secrets that were withdrawn here.
            process = subprocess.Popen(argv, env=whole_environment())
        except OSError as error:
            raise ConfigError(
                f"cannot run {argv[0]}: {error.strerror}", hint="after --, give a command of this machine"
            ) from None
        status = process.wait()
    return status if status >= 0 else 128 - status


def until_interrupted(ready: Callable[[], None]) -> None:
    """Wait for Ctrl-C, SIGTERM or SIGHUP, without a deadline. Calls `ready` as soon as the signals are handled."""
    ended = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    with handling(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), end)):
        ready()
        ended.wait()
