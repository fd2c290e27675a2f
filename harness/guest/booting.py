"""Boots a guest: repeated tries, the login, and the state of a guest that is lost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from harness.errors import GuestError, HostError, LabUnavailable, Unsupported
from harness.events import Events, Note
from harness.feature import features
from harness.guest.linux import GuestSystem
from harness.guest.protocol import Backup, Guest
from harness.guest.system import System
from harness.lab.counters import VmThreads
from harness.lab.transport.agent import AgentRunner
from harness.lab.transport.base import Runner
from harness.lab.transport.ssh import SshRunner

GuestRunner = SshRunner | AgentRunner
"""Runs commands in a guest. It knows whether the guest still answers."""
Machine_co = TypeVar("Machine_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Started(Generic[Machine_co]):
    """A guest that was started and logged in to: the hypervisor's handle of it, and the runner for commands in it.

    `fio` is the program fio in it.
    """

    machine: Machine_co
    runner: GuestRunner
    fio: str = field(default="fio", kw_only=True)


@dataclass(frozen=True, slots=True)
class Booted(Started[Machine_co]):
    """A guest that is ready: its drivers are loaded. `seconds` is the time from the start to the first answer."""

    seconds: float | None
    """None for a guest that ran already."""


@contextmanager
def booted(
    start: Callable[[], AbstractContextManager[Started[Machine_co]]], *, tries: int, expected_s: float, events: Events
) -> Iterator[Booted[Machine_co]]:
    """A guest from `start` that is ready for measurements until the end of the block.

    If it does not become ready, it is ended and started again, at most `tries` times in total: nothing is measured yet.
    Raises the GuestError of the last try.
    """
    for attempt in range(1, tries + 1):
        with ExitStack() as stack:
            try:
                with events.step("boot the guest", expected_s) as step:
                    started = stack.enter_context(start())
                    seconds = step.seconds
                    GuestSystem(started.runner).wait_ready()
            except GuestError as error:
                if attempt == tries:
                    raise
                events(Note(f"{error.message}; starting it again ({attempt + 1} of {tries})"))
                continue
            yield Booted(started.machine, started.runner, seconds, fio=started.fio)
            return


@contextmanager
def logging_in(what: str, *, hint: str, last_words: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turns a HostError in the block into a GuestError: `what` did not answer, with the last lines that it printed."""
    try:
        yield
    except HostError as error:
        raise GuestError(f"{what} did not answer over SSH: {error.message}{last_words()}", hint=hint) from error


def system_of(runner: GuestRunner, fio: str = "fio") -> System:
    """The operating system of the guest, which its SSH server reports at the login. `fio` is its program on Linux.

    Raises Unsupported if this installation lacks what measures it.
    """
    if not runner.windows:
        return GuestSystem(runner, fio)
    for feature in features():
        if (windows := feature.systems.get("windows")) is not None:
            return windows(runner)
    raise Unsupported(f"{runner.name}: it runs Windows", hint="install the feature `windows`, which measures it")


class BootedGuest(ABC):
    """The part of a running guest that is the same for all hypervisors."""

    def __init__(self, booted: Booted[object], *, threads: VmThreads | None) -> None:
        self.boot_seconds = booted.seconds
        self.threads = threads
        self.fio = booted.fio
        self.system = system_of(booted.runner, self.fio)
        self.evidence = self.system.evidence()
        self._connected = booted.runner

    @property
    def runner(self) -> Runner:
        return self.system.runner

    @property
    def windows(self) -> bool:
        return self.system.windows

    def backup(self, disk: str, target: str) -> Backup:
        """Only some hypervisors offer it: the others skip modes with a backup before a guest is made."""
        raise Unsupported(f"{self.runner.name}: no backup of {disk} to {target}", hint="leave out backup in the mode")

    def post_mortem(self) -> str | None:
        """The state of a lost guest, as text for the end of a message; None if it still answers."""
        if self._connected.alive:
            return None
        try:
            return self.state()
        except (HostError, LabUnavailable) as error:
            return error.message

    @abstractmethod
    def state(self) -> str:
        """The state of the guest as the hypervisor reports it. Raises HostError or LabUnavailable if it does not."""


@contextmanager
def explained(guest: Guest | None) -> Iterator[None]:
    """Adds the state of the guest to an error in the block, if the guest no longer answers."""
    try:
        yield
    except (HostError, GuestError) as error:
        state = guest.post_mortem() if guest else None
        if state is None:
            raise
        raise GuestError(f"{error.message}; {state}") from error
