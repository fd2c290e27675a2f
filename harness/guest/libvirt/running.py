"""A started domain: whether it still runs, its last output, and its end."""

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
    """A transient domain by libvirt's handle. `console` is the file on the host with the output of its console."""

    connection: Connection
    handle: Any
    name: str
    console: str

    def is_running(self) -> bool:
        """Whether it runs. Raises HostError if libvirt does not answer."""
        try:
            return bool(self.connection.call("report the guest's state", self.handle.isActive, deadline=30))
        except Refused as error:
            if error.gone:
                return False
            raise

    def last_words(self, host: Runner) -> str:
        """The last lines of its console, for the end of a message."""
        return last_words(host, self.console)

    def destroy(self) -> None:
        # The domain may already have ended by itself or with its connection.
        with suppress(HostError):
            self.connection.call("destroy the guest", self.handle.destroy, deadline=60)
