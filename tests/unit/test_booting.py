"""A guest is started again where it does not become ready, is always ended, and is explained where it was lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from harness.errors import GuestError, HostError
from harness.events import Event, Events, Note, StepFinished, StepStarted
from harness.guest.booting import Booted, BootedGuest, Started, booted, logging_in
from harness.lab.transport.ssh import SshRunner
from tests.unit.played_shell import PlayedShell


class Machines:
    """Makes guests, of which those in `hanging` never load their drivers. `running` are those that were not ended."""

    def __init__(self, *hanging: int) -> None:
        self.hanging = hanging
        self.started = 0
        self.running: list[int] = []

    @contextmanager
    def start(self) -> Iterator[Started[int]]:
        self.started += 1
        number = self.started
        self.running.append(number)
        fails = "sh" if number in self.hanging else ""
        try:
            yield Started(number, cast("SshRunner", PlayedShell({}, name="guest on node1", fails=fails)))
        finally:
            self.running.remove(number)


def said(events: list[Event]) -> list[str]:
    return [each.text if isinstance(each, Note) else type(each).__name__ for each in events]


def test_a_guest_is_up_within_the_block_and_ended_after_it() -> None:
    machines, events = Machines(), list[Event]()
    with booted(machines.start, tries=3, expected_s=12.0, events=Events(events.append)) as guest:
        assert guest.machine == 1
        assert machines.running == [1]
    assert machines.running == []
    assert events[0] == StepStarted("boot the guest", 12.0)
    assert isinstance(events[1], StepFinished)
    assert guest.seconds is not None
    assert 0 <= guest.seconds <= events[1].seconds


def test_a_guest_that_hangs_is_ended_and_started_again_with_a_note() -> None:
    machines, events = Machines(1), list[Event]()
    with booted(machines.start, tries=2, expected_s=12.0, events=Events(events.append)) as guest:
        assert guest.machine == 2
        assert machines.running == [2]
    note = "guest on node1: it answers, but its drivers were not loaded within 60 s; starting it again (2 of 2)"
    assert said(events) == ["StepStarted", note, "StepStarted", "StepFinished"]


def test_the_error_of_the_last_try_is_raised_and_nothing_runs_any_more() -> None:
    machines = Machines(1, 2)
    with (
        pytest.raises(GuestError, match="its drivers were not loaded"),
        booted(machines.start, tries=2, expected_s=12.0, events=Events()),
    ):
        pass
    assert (machines.started, machines.running) == (2, [])


def test_a_failure_while_the_guest_is_used_does_not_start_another_one() -> None:
    machines = Machines()
    with (
        pytest.raises(GuestError, match="it was lost"),
        booted(machines.start, tries=3, expected_s=12.0, events=Events()),
    ):
        raise GuestError("it was lost")
    assert (machines.started, machines.running) == (1, [])


def test_a_login_that_fails_is_an_error_of_the_guest_with_its_last_words() -> None:
    with (
        pytest.raises(GuestError) as error,
        logging_in("host node1: VM 9000", hint="see its console", last_words=lambda: "; it panicked"),
    ):
        raise HostError("no SSH login within 60 s")
    assert error.value.message == "host node1: VM 9000 did not answer over SSH: no SSH login within 60 s; it panicked"
    assert error.value.hint == "see its console"


class Connection(PlayedShell):
    """The connection to a guest, as far as it is known."""

    alive = False


class Lost(BootedGuest):
    """A guest of which its hypervisor has something to say, or nothing."""

    def __init__(self, *, alive: bool, silent: bool = False) -> None:
        connection = Connection({})
        connection.alive = alive
        super().__init__(Booted(None, cast("SshRunner", connection), 1.0), threads=None)
        self.silent = silent

    def state(self) -> str:
        if self.silent:
            raise HostError("host node1: libvirt does not answer")
        return "libvirt reports that it has ended"


def test_only_a_lost_guest_has_a_state_from_the_hypervisor() -> None:
    assert Lost(alive=True).post_mortem() is None
    assert Lost(alive=False).post_mortem() == "libvirt reports that it has ended"
    assert Lost(alive=False, silent=True).post_mortem() == "host node1: libvirt does not answer"
