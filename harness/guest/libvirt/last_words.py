"""The last lines of a guest's console and of QEMU's log. They show the cause if a guest ends by itself."""

from __future__ import annotations

from contextlib import suppress

from harness.errors import GuestError, HostError
from harness.lab.transport.base import Runner

_LOGS = "/var/log/libvirt/qemu"


def qemu_log(name: str, directory: str = _LOGS) -> str:
    """The file to which libvirt writes the output of this guest's QEMU. Its last line says why the guest ended."""
    return f"{directory}/{name}.log"


def last_words(runner: Runner, file: str, whose: str = "its console") -> str:
    """The last lines of the file, as text for the end of a message; empty if it is empty or cannot be read."""
    with suppress(HostError):
        found = runner.run(["tail", "-c", "400", file], deadline=20, check=False).stdout.strip()
        if found:
            return f"; {whose} ends with:\n     " + "\n     ".join(found.splitlines()[-4:])
    return ""


def ended_while_booting(runner: Runner, host: str, console: str, log: str) -> GuestError:
    """The error for a guest that ended before the login, with everything that is known about the cause."""
    known = last_words(runner, console) + last_words(runner, log, whose="QEMU's log")
    return GuestError(
        f"host {host}: the guest ended while it was booting{known or '; its console and QEMU printed nothing'}",
        hint=f"see {console} and {log} on {host}",
    )
