"""SIGTERM and SIGHUP act like Ctrl-C, so clean-up runs after them."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Within the block, SIGTERM and SIGHUP (a closed terminal) raise KeyboardInterrupt; SIGHUP not under nohup."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    terminals = frozenset(number for descriptor in (0, 1, 2) if (number := _terminal(descriptor)) is not None)

    def hung_up(number: int, frame: FrameType | None) -> None:
        # The shell and the kernel may both send SIGHUP. The second one must not interrupt the clean-up.
        signal.signal(signal.SIGHUP, lambda *_: None)
        _drop_terminals(terminals)
        signal.default_int_handler(number, frame)

    with handling({signal.SIGTERM: signal.default_int_handler, signal.SIGHUP: hung_up}):
        yield


@contextmanager
def handling(wanted: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Install these handlers within the block, except for signals that are ignored."""
    # A signal that was ignored at the start stays ignored, as nohup requires.
    handled = {number: handler for number, handler in wanted.items() if signal.getsignal(number) is not signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in handled.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminal(descriptor: int) -> int | None:
    """The device number of the descriptor's terminal; None if it is not a terminal."""
    with suppress(OSError):
        return os.fstat(descriptor).st_rdev if os.isatty(descriptor) else None
    return None


def _drop_terminals(numbers: frozenset[int]) -> None:
    """Redirect all descriptors of terminals that are gone to /dev/null: a write would be an error during clean-up.

    This includes copies of standard output, which pytest has while it captures.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            status = os.fstat(int(entry.name))
            if stat.S_ISCHR(status.st_mode) and status.st_rdev in numbers:
                os.dup2(nowhere, int(entry.name), inheritable=int(entry.name) <= 2)
    os.close(nowhere)
