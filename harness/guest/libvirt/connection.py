"""A connection to a host's libvirt in which each call has a deadline, and QEMU's monitor behind it."""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from harness.errors import GuestError, HostError, LabUnavailable
from harness.files import install_command, os_ids
from harness.guest.libvirt.binding import libvirt, libvirt_qemu
from harness.lab.hosts import ReachedHost
from harness.lab.transport.base import Overdue, within
from harness.lab.transport.handshake import in_brackets, recall
from harness.lab.transport.ssh import SshTarget
from harness.model.counters import Transferred
from harness.signals import interruptible, wait_until
from harness.units import format_duration
from harness.untrusted import count, parse_json, reading

CONNECT_SECONDS = 60.0
CALL_SECONDS = 120.0
_POLL_SECONDS = 0.1

T = TypeVar("T")

# libvirt prints each error to stderr before it raises it. The harness reports each error once, in its own message.
libvirt.registerErrorHandler(lambda _context, _error: None, None)


class LibvirtRefusal(HostError):
    """libvirt answered with an error, or the connection is lost.

    `gone`: the domain no longer exists. `busy`: another change of it has not ended.
    """

    def __init__(self, message: str, *, hint: str | None, gone: bool, busy: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.gone = gone
        self.busy = busy


class Connection:
    """libvirt of one host. Every call has a deadline, and its errors name the host.

    A call goes on after its deadline. `require_settled` says whether one does that creates something. `reopen` makes a
    new handle.
    """

    def __init__(self, handle: Any, host: str, reopen: Callable[[], Any] | None = None) -> None:
        self.handle = handle
        self.host = host
        self._reopen = reopen
        self._overdue: list[tuple[str, Overdue]] = []

    def call(
        self,
        what: str,
        action: Callable[[], T],
        *,
        deadline: float = CALL_SECONDS,
        hint: str | None = None,
        creates: bool = False,
    ) -> T:
        """What `action` returns. `what` completes the message "libvirt did not ...". With `creates`, it adds something.

        Raises LibvirtRefusal with libvirt's error text and `hint`, HostError if it does not answer by the deadline.
        """
        try:
            return within(deadline, action)
        except Overdue as overdue:
            if creates:
                self._overdue.append((what, overdue))
            raise HostError(
                f"host {self.host}: libvirt did not {what} within {format_duration(deadline)}",
                hint=f"see on {self.host}: systemctl status libvirtd; journalctl -u libvirtd",
            ) from None
        except libvirt.libvirtError as error:
            message = f"host {self.host}: libvirt did not {what}: {error.get_error_message()}"
            gone = error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN
            busy = error.get_error_code() == libvirt.VIR_ERR_OPERATION_TIMEOUT
            raise LibvirtRefusal(message, hint=hint, gone=gone, busy=busy) from error

    def restore(self) -> None:
        """Connect again if libvirtd has ended. Objects of the old connection cannot be used. Raises HostError."""
        if self._reopen is not None and not self.handle.isAlive():
            self.handle = self.call("accept a new connection", self._reopen, deadline=CONNECT_SECONDS)

    def require_settled(self, *, deadline: float = CALL_SECONDS) -> None:
        """Return when no earlier call that creates something goes on. Raises HostError if one does after so long.

        What does not exist before that may still begin to exist.
        """
        if not wait_until(lambda: not self._list_pending(), deadline=deadline, every=_POLL_SECONDS):
            raise HostError(
                f"host {self.host}: libvirt still has not answered, so it may yet {'; '.join(self._list_pending())}",
                hint=f"see on {self.host}: journalctl -u libvirtd. When libvirt answers, run: virt-overhead reap",
            )

    def _list_pending(self) -> list[str]:
        self._overdue = [(what, overdue) for what, overdue in self._overdue if not overdue.ended]
        return [what for what, _ in self._overdue]


@contextmanager
def connect(host: ReachedHost) -> Iterator[Connection]:
    """libvirt on this machine or through SSH with the host's pinned key. Raises LabUnavailable with the remedy."""
    with tempfile.TemporaryDirectory(prefix="virt-overhead-") as directory:
        uri = "qemu:///system" if host.target is None else _build_ssh_uri(host.target, Path(directory))
        reopen = partial(libvirt.open, uri)
        try:
            handle = within(CONNECT_SECONDS, reopen, waiting=interruptible())
        except Overdue:
            raise _explain_failure(host.name, f"no answer within {format_duration(CONNECT_SECONDS)}") from None
        except libvirt.libvirtError as error:
            raise _explain_failure(host.name, error.get_error_message()) from error
        connection = Connection(handle, host.name, reopen)
        try:
            yield connection
        finally:
            with suppress(HostError):
                connection.call("close", connection.handle.close, deadline=20)


def _explain_failure(host: str, why: str) -> LabUnavailable:
    return LabUnavailable(
        f"host {host}: libvirt cannot be reached: {why}",
        hint=f"start it on {host}: systemctl start libvirtd (package libvirt-daemon-system)",
    )


def _build_ssh_uri(target: SshTarget, directory: Path) -> str:
    """A qemu+ssh URI whose ssh ignores the user's own configuration and knows the host's key."""
    ssh = shutil.which("ssh")
    if ssh is None:
        raise LabUnavailable("ssh is not installed on this machine", hint=install_command(os_ids(), "openssh-client"))
    key = target.host_key or (recall(target.known_hosts, target.address) if target.known_hosts else None)
    known = directory / "known_hosts"
    known.write_text(f"lab {key}\n")
    config = directory / "config"
    config.write_text(
        f'Host *\nHostKeyAlias lab\nUserKnownHostsFile "{known}"\nGlobalKnownHostsFile none\n'
        f'StrictHostKeyChecking yes\nIdentityFile "{target.key}"\nIdentitiesOnly yes\nIdentityAgent none\n'
        "BatchMode yes\nConnectTimeout 20\nServerAliveInterval 5\nServerAliveCountMax 6\n"
    )
    program = directory / "ssh"
    # Ctrl-C and the end of a service signal all processes: the clean-up still needs the connection, which ends with it.
    program.write_text(
        f"#!/bin/sh\ntrap '' HUP INT QUIT TERM\nexec {shlex.quote(ssh)} -F {shlex.quote(str(config))} \"$@\"\n"
    )
    program.chmod(0o700)
    # `%` before a zone and all other special characters are encoded; libvirt removes the brackets.
    at = f"{quote(target.user, safe='')}@{in_brackets(quote(target.host, safe=':'))}:{target.port}"
    return f"qemu+ssh://{at}/system?command={quote(str(program))}&no_tty=1"


_SECONDS = 30.0
_NO_QEMU = "check which QEMU the guest runs in: virt-overhead doctor"


def ask(connection: Connection, domain: Any, command: str, **arguments: object) -> Any:
    """The answer to one QMP command. Raises GuestError if QEMU refuses it, hangs or has ended."""
    text = json.dumps({"execute": command, "arguments": arguments})
    try:
        answer = within(_SECONDS, lambda: libvirt_qemu.qemuMonitorCommand(domain, text, 0))
    except Overdue:
        raise GuestError(
            f"host {connection.host}: QEMU did not answer {command} within {format_duration(_SECONDS)}",
            hint=f"it hangs or was stopped; see on {connection.host}: journalctl -u libvirtd",
        ) from None
    except libvirt.libvirtError as error:
        raise GuestError(
            f"host {connection.host}: QEMU did not get the command {command}: {error.get_error_message()}"
        ) from error
    return answer_of(answer, command, f"host {connection.host}: QEMU")


def answer_of(text: str, command: str, who: str) -> Any:
    """What QEMU returns in its answer to `command`. Raises GuestError if it refuses or the answer is not valid."""
    source = f"{who}: its answer to {command}"
    with reading(source, GuestError, hint=_NO_QEMU):
        reply = parse_json(text, source, GuestError, hint=_NO_QEMU)
        if "return" not in reply:
            raise GuestError(f"{who} refused {command}: {str(reply.get('error', {}).get('desc', text))[:300]}")
        return reply["return"]


def find_device_entry(alias: str, entries: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The entry of `query-block` or `query-blockstats` that belongs to the device libvirt calls `alias`.

    QEMU names it by its path in the object tree. For virtio-blk, the path has one more part below the device.
    """
    return next((entry for entry in entries if f"/{alias}/" in f"/{entry.get('qdev', '')}/"), None)


def transferred(connection: Connection, domain: Any, aliases: Iterable[str]) -> dict[str, Transferred]:
    """The bytes that the guest read from and wrote to the devices with these aliases, as QEMU counts them."""
    entries = ask(connection, domain, "query-blockstats")
    counted = {}
    for alias in aliases:
        with reading(f"host {connection.host}: QEMU's counts for the guest's disk {alias}", GuestError, hint=_NO_QEMU):
            entry = find_device_entry(alias, entries)
            if entry is None:
                raise GuestError(f"host {connection.host}: QEMU counts nothing for the guest's disk {alias}")
            stats = entry["stats"]
            # QEMU 4.0 and later also count trims.
            trimmed = count(stats.get("unmap_bytes", 0))
            counted[alias] = Transferred(count(stats["rd_bytes"]), count(stats["wr_bytes"]), trimmed)
    return counted
