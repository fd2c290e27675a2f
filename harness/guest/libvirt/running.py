"""A domain that was started: whether it still runs, what it printed last, and its end."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from harness.errors import HostError
from harness.guest.libvirt.connection import Connection, Refused
from harness.guest.libvirt.last_words import last_words
from harness.lab.transport.base import Runner


@dataclass(frozen=True, slots=True)
class RunningDomain:
    """A transient domain by libvirt's handle; `console` is the file on the host with what its console printed."""

    connection: Connection
    handle: Any
    name: str
    console: str

    def is_running(self) -> bool:
        """HostError where libvirt does not answer."""
        try:
            return bool(self.connection.call("tell the guest's state", self.handle.isActive, deadline=30))
        except Refused as error:
            if error.gone:
                return False
            raise

    def last_words(self, host: Runner) -> str:
        """What its console ends with, for the end of a message."""
        return last_words(host, self.console)

    def destroy(self) -> None:
        # A domain that has ended by itself, or with its connection, is as gone as one that is destroyed.
        with suppress(HostError):
            self.connection.call("destroy the guest", self.handle.destroy, deadline=60)
