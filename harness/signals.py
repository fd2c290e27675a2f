"""Signals that end a run, and waiting that they interrupt. SIGINT, SIGTERM and SIGHUP all act like Ctrl-C, once.

While something is held that must be given back (a process, a lease, something on a host), a signal interrupts waiting
only, and never the code between: a command that has been started is always known to the code that ends it. Clean-up is
not interrupted at all. `Cleanup` removes what was created, in reverse order, and reports what could not be removed.
"""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from types import FrameType, TracebackType
from typing import TypeVar

from harness.errors import HarnessError, HostError

Handler = Callable[[int, FrameType | None], object]

_PATIENCE = (
    b"virt-overhead: it removes what it created, and ends then; each step has a deadline. To end it at once: Ctrl-\\, "
    b"and then remove what is left with `virt-overhead reap`\n"
)


@dataclass(slots=True)
class _State:
    """What happens to a signal. Signals and their handlers belong to the process, so there is one state."""

    handled: bool = False
    """Whether the handlers are installed."""
    held: int = 0
    """Nested blocks in which a signal interrupts waiting only."""
    waiting: int = 0
    """Nested blocks that wait, and may be interrupted."""
    cleaning: int = 0
    """Nested blocks in which nothing is interrupted."""
    pending: bool = False
    """Whether a signal came that has not interrupted anything yet."""
    ending: bool = False
    """Whether a signal has interrupted something. Then all further ones are ignored."""
    reported: bool = False
    interruptions: int = 0
    """How often a signal has interrupted something."""

    def signalled(self) -> None:
        """Take a signal. Raises KeyboardInterrupt if it interrupts."""
        if self.ending or self.cleaning:
            self._report()
        self.pending = not self.ending
        if not self.cleaning and (self.waiting or not self.held):
            self.interrupt()

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt if a signal is pending, and nothing is cleaned up."""
        if self.pending and not self.cleaning:
            self.pending, self.ending = False, True
            self.interruptions += 1
            raise KeyboardInterrupt

    def _report(self) -> None:
        if not self.reported:
            self.reported = True
            with suppress(OSError):
                os.write(2, _PATIENCE)


_STATE = _State()


def in_main_thread() -> bool:
    """Whether signals interrupt this thread: Python runs their handlers in the main thread only."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Within the block, the first SIGINT, SIGTERM or SIGHUP (a closed terminal) raises KeyboardInterrupt.

    Signals that were ignored at the start stay ignored, as nohup requires for SIGHUP.
    """
    if not in_main_thread() or _STATE.handled:
        yield
        return
    terminals = frozenset(number for descriptor in (0, 1, 2) if (number := _terminal(descriptor)) is not None)

    def hung_up(_number: int, _frame: FrameType | None) -> None:
        _drop_terminals(terminals)
        _STATE.signalled()

    with _handle({signal.SIGINT: _take, signal.SIGTERM: _take, signal.SIGHUP: hung_up}):
        yield


@contextmanager
def _handle(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """With these handlers, the state applies within the block. A signal that is pending at its end interrupts then."""
    _STATE.handled = True
    try:
        with handling(handlers):
            yield
        _STATE.interrupt()
    finally:
        _STATE.handled = _STATE.pending = _STATE.ending = _STATE.reported = False


def _take(_number: int, _frame: FrameType | None) -> None:
    _STATE.signalled()


def interruptions() -> int:
    """How often a signal has interrupted the main thread. A command of another thread that began before must end."""
    return _STATE.interruptions


def was_interrupted() -> bool:
    """Whether a signal came that interrupted nothing, because clean-up ran. It is forgotten."""
    pending, _STATE.pending = _STATE.pending, False
    return pending


class Block:
    """A nested block of the state. Without `ended_like_ctrl_c` around it, it handles `signals` itself."""

    def __init__(self, counter: str, signals: tuple[signal.Signals, ...] = ()) -> None:
        self._counter = counter
        self._signals = signals

    def __enter__(self) -> None:
        self._stack = ExitStack()
        self._counts = in_main_thread()
        if self._counts:
            if self._signals and not _STATE.handled and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._stack.enter_context(_handle(dict.fromkeys(self._signals, _take)))
            self._count(1)
            if not self._signals:
                try:
                    _STATE.interrupt()
                except KeyboardInterrupt:
                    self._count(-1)
                    raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if self._counts:
                self._count(-1)
                if self._signals and error is None and not _STATE.held:
                    _STATE.interrupt()

    def _count(self, step: int) -> None:
        setattr(_STATE, self._counter, getattr(_STATE, self._counter) + step)


def held_back() -> Block:
    """A block in which something is started or created that must be given back. A signal interrupts waiting only."""
    return Block("held", (signal.SIGINT,))


def cleaning_up() -> Block:
    """A block that gives it back, which no signal interrupts. Every command in it has a deadline."""
    return Block("cleaning", (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))


def interruptible() -> Block:
    """A block that waits and has nothing to give back. A signal interrupts it, unless clean-up runs."""
    return Block("waiting")


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


_REAP = "virt-overhead reap"


def remedy_of(error: HarnessError, otherwise: str) -> str:
    """What to do about a removal that failed: the error's own hint if it is complete, else `otherwise`."""
    return error.hint if error.hint and _REAP in error.hint else otherwise


class Cleanup:
    """A `with` block that removes at its end what was created in it, even if the creation failed half-way.

    A removal is registered before the thing is created. So the removal must check whether there is anything to remove.
    All removals are tried, even if some fail. If an error ended the block, that error is raised, and the failed
    removals are added to it. If the block ended well, a HostError names all that is left on `host`, and what to do: as
    the failed removals say, or the `remedy`.
    Within the block, a signal interrupts waiting only; it does not interrupt the removals.
    """

    def __init__(self, host: str, remedy: str) -> None:
        self._host = host
        self._remedy = remedy
        self._steps = ExitStack()
        self._left: list[str] = []
        self._hints: list[str] = []
        self._held = held_back()

    def by(self, what: str, remove: Callable[[], object]) -> None:
        """Call `remove` at the end; `what` names the thing."""
        self._steps.callback(self._try, what, remove)

    def __enter__(self) -> Cleanup:
        self._held.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with cleaning_up():
                self._steps.close()
            self._report(error)
        finally:
            self._held.__exit__(kind, error, trace)

    def _report(self, error: BaseException | None) -> None:
        if not self._left:
            return
        left = "; ".join(self._left)
        remedy = "; ".join(dict.fromkeys(self._hints)) or self._remedy
        if error is None:
            raise HostError(f"{self._host}: left behind: {left}", hint=remedy)
        if isinstance(error, HarnessError):
            # Users see only the message and the hint of such an error. A note appears only in a traceback.
            error.message += f"\n  left behind: {left}"
            if remedy not in (error.hint or ""):
                error.hint = f"{error.hint}; {remedy}" if error.hint else remedy
        else:
            error.add_note(f"{self._host}: left behind: {left}; {remedy}")

    def _try(self, what: str, remove: Callable[[], object]) -> None:
        try:
            remove()
        except HarnessError as error:
            self._left.append(f"{what} ({error.message})")
            self._hints.append(remedy_of(error, self._remedy))
        except Exception as error:
            self._left.append(f"{what} ({type(error).__name__}: {error})")
            self._hints.append(self._remedy)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock. Pass it on if several steps share the time."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """Seconds until the deadline; negative when it has passed."""
        return self.at - time.monotonic()

    @property
    def passed(self) -> bool:
        return self.left <= 0


def wait_until(condition: Callable[[], T], *, deadline: Deadline | float, every: float | Iterable[float]) -> T:
    """Call `condition` until its result is true or the deadline (a moment, or seconds from now) has passed.

    Returns the last result. If it is false, the time is up, and the caller raises the error. `every` is the pause
    between two calls in seconds, or a series of pauses. An exception of `condition` ends the waiting.
    """
    end = deadline if isinstance(deadline, Deadline) else Deadline.after(deadline)
    pauses = repeat(every) if isinstance(every, int | float) else iter(every)
    while not (result := condition()) and not end.passed:
        with interruptible():
            time.sleep(min(next(pauses), max(end.left, 0.0)))
    return result


@dataclass(frozen=True, slots=True)
class Attempt:
    """One of several tries. After it comes a pause of `pause` seconds."""

    number: int
    pause: float
    deadline: Deadline

    @property
    def is_last(self) -> bool:
        """Whether there is not enough time for another try."""
        return self.deadline.left < self.pause


def attempts(deadline: Deadline, pauses: Iterable[float]) -> Iterator[Attempt]:
    """Tries with `pauses` between them. The loop must end when a try succeeds, and raise when `is_last`."""
    for number, pause in enumerate(pauses, 1):
        yield Attempt(number, pause, deadline)
        with interruptible():
            time.sleep(pause)


def growing(first: float, longest: float, *, factor: float = 2.0) -> Iterator[float]:
    """An infinite series of pauses in seconds that grow by `factor` up to `longest`."""
    pause = first
    while True:
        yield pause
        pause = min(pause * factor, longest)
