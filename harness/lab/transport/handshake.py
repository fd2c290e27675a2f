"""Opens an authenticated SSH connection to an address. Every step has a deadline.

The key that the host must show is pinned by its owner, or stored at the first contact.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from paramiko import (
    AuthenticationException,
    Channel,
    ChannelException,
    PasswordRequiredException,
    PKey,
    SSHException,
    Transport,
)
from paramiko.ssh_exception import IncompatiblePeer

from harness.errors import ConfigError, HostError
from harness.files import read_regular, write_atomically
from harness.lab.transport.base import Overdue, split_key, within
from harness.signals import Deadline
from harness.terminal import quoted
from harness.units import format_duration

# paramiko logs the traceback of every connection that ends. The runner's errors report the same once, as text.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)

# Larger than the data of one poll. Then a full standard error does not block standard output.
WINDOW_BYTES = 16 << 20

TCP_SECONDS = 5.0
# A server that has sent its banner is up, but may be slow: a key exchange under emulation takes seconds.
NEGOTIATION_SECONDS = 30.0
KEEPALIVE_SECONDS = 5
# After this time without an answer, the kernel closes the connection. By default that takes 15 minutes.
SILENCE_MS = 30_000

# The fastest algorithms that paramiko, OpenSSH and dropbear share, for a remote machine under emulation.
_CIPHERS = ("aes128-ctr", "aes256-ctr", "aes128-gcm@openssh.com")
_MACS = ("hmac-sha2-256", "hmac-sha2-256-etm@openssh.com", "hmac-sha1")
_KEX = ("curve25519-sha256@libssh.org", "ecdh-sha2-nistp256", "diffie-hellman-group14-sha256")
_HOST_KEYS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256")

_PROHIBITED = 1


class NotUpYet(HostError):
    """No SSH server answers. The machine may still be booting."""


def in_brackets(host: str) -> str:
    """The host for a place before `:PORT`: an IPv6 address has brackets."""
    return f"[{host}]" if ":" in host else host


@dataclass(frozen=True, slots=True)
class SshTarget:
    """The address, the user and the key file for a login. No agent and no file of ~/.ssh is used.

    `host_key` ("ssh-ed25519 AAAA...") pins the host's public key. Without it, the key of the first contact is stored in
    `known_hosts`. Without both, any key is accepted. This is only for a guest that creates a new key at each boot, and
    whose connection goes through a pinned jump or stays on this machine.
    """

    host: str
    port: int
    user: str
    key: Path
    host_key: str | None = None
    known_hosts: Path | None = None

    @property
    def address(self) -> str:
        """HOST:PORT, with brackets around an IPv6 address."""
        return f"{in_brackets(self.host)}:{self.port}"


@dataclass(frozen=True, slots=True)
class Jump:
    """A connection that carries another one. `label` distinguishes its targets from the targets of other jumps."""

    name: str
    label: str
    transport: Transport


def open_transport(
    target: SshTarget, *, name: str, via: Jump | None, deadline: float, banner_seconds: float
) -> Transport:
    """An authenticated connection. Raises NotUpYet, or HostError if another try would not help."""
    end = Deadline.after(deadline)
    user_key = _load_key(name, target)
    label = f"{target.address}@{via.label}" if via else target.address
    expected = _choose_key(target, label)
    transport = _negotiating(target, name=name, via=via, expected=expected, deadline=deadline)
    try:
        remaining = end.left
        _negotiate(transport, f"{name}: {target.address}", min(remaining, banner_seconds), remaining)
        _check_host_key(transport, target, name=name, label=label, expected=expected)
        _log_in(transport, target, name, user_key, end.left)
    except BaseException:
        abandon(transport)
        raise
    transport.set_keepalive(KEEPALIVE_SECONDS)
    return transport


def abandon(transport: Transport) -> None:
    """Close a connection that may hang. This never blocks for long and never raises."""
    with contextlib.suppress(Overdue, OSError, EOFError, SSHException):
        within(2.0, transport.close)
    # Otherwise paramiko's timer of an unfinished handshake delays the exit of the interpreter.
    transport.packetizer.complete_handshake()
    with contextlib.suppress(RuntimeError):
        transport.join(1.0)


def _load_key(name: str, target: SshTarget) -> PKey:
    try:
        read_regular(target.key)  # paramiko reads also a pipe, and a device without end
        return PKey.from_path(target.key)
    except OSError as error:
        failure = HostError(
            f"{name}: cannot read the SSH key {target.key}: {error.strerror or error}",
            hint="name an existing private key file that this user may read",
        )
    except (PasswordRequiredException, TypeError):
        failure = HostError(
            f"{name}: the SSH key {target.key} is locked by a passphrase",
            hint="create a key without a passphrase, only for the lab: ssh-keygen -t ed25519 -N '' -f FILE",
        )
    except Exception:
        failure = HostError(
            f"{name}: {target.key} is not an SSH private key in OpenSSH's format",
            hint="name the private key, without .pub, or create one: ssh-keygen -t ed25519 -N '' -f FILE",
        )
    # Raised outside of the handlers, because the frames of the original exception have the key in their variables.
    raise failure


def _choose_key(target: SshTarget, label: str) -> tuple[str, str] | None:
    if target.host_key is not None:
        return split_key(target.host_key, origin=f"host key of {target.address}")
    if target.known_hosts is None:
        return None
    known = recall(target.known_hosts, label)
    return None if known is None else split_key(known, origin=f"{target.known_hosts}, {label}")


def _negotiating(
    target: SshTarget, *, name: str, via: Jump | None, expected: tuple[str, str] | None, deadline: float
) -> Transport:
    seconds = min(deadline, TCP_SECONDS)
    stream = _connect_directly(target, name, seconds) if via is None else _connect_through(via, target, name, seconds)
    transport = Transport(stream, default_window_size=WINDOW_BYTES)
    options = transport.get_security_options()
    options.ciphers = _CIPHERS
    options.digests = _MACS
    options.kex = _KEX
    options.key_types = _HOST_KEYS
    if expected is not None:
        # A host with several keys shows the first requested one.
        kinds = ("rsa-sha2-512", "rsa-sha2-256") if expected[0] == "ssh-rsa" else (expected[0],)
        try:
            options.key_types = kinds
        except ValueError:
            stream.close()
            raise ConfigError(
                f"{name}: host keys of type {quoted(expected[0])} are not supported",
                hint="pin the ed25519 key: `ssh-keyscan -t ed25519 HOST`",
            ) from None
    return transport


def _connect_directly(target: SshTarget, name: str, seconds: float) -> socket.socket:
    try:
        stream = socket.create_connection((target.host, target.port), timeout=seconds)
    except socket.gaierror as error:
        raise HostError(
            f"{name}: the name {target.host} has no address: {error.strerror or error}",
            hint="check the name in the lab file",
        ) from error
    except OSError as error:
        raise NotUpYet(
            f"{name}: {target.address} does not answer: {error.strerror or error}",
            hint="check that the machine is up and that its SSH server listens there",
        ) from error
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS)
    return stream


def _connect_through(via: Jump, target: SshTarget, name: str, seconds: float) -> Channel:
    try:
        return within(
            seconds + 1.0,
            lambda: via.transport.open_channel(
                "direct-tcpip", (target.host, target.port), ("127.0.0.1", 0), timeout=seconds
            ),
        )
    except ChannelException as error:
        if error.code == _PROHIBITED:
            raise HostError(
                f"{name}: {via.name} does not forward to {target.address}: {error.text}",
                hint=f"allow it in the sshd_config of {via.name}: AllowTcpForwarding yes",
            ) from error
        raise NotUpYet(f"{name}: {target.address} does not answer {via.name}: {error.text}") from error
    except (SSHException, EOFError, OSError, Overdue) as cause:
        if not via.transport.is_active():
            raise HostError(f"{name}: the connection through {via.name} was lost: {cause}") from cause
        raise NotUpYet(f"{name}: {target.address} does not answer {via.name} within {seconds:.0f} s") from cause


def _negotiate(transport: Transport, where: str, banner_seconds: float, remaining: float) -> None:
    transport.banner_timeout = banner_seconds
    transport.handshake_timeout = NEGOTIATION_SECONDS
    done = threading.Event()
    transport.start_client(event=done)
    seconds = min(banner_seconds + NEGOTIATION_SECONDS, remaining)
    finished = done.wait(seconds)
    if finished and transport.is_active():
        return
    error = transport.get_exception()
    if isinstance(error, IncompatiblePeer):
        raise HostError(
            f"{where} supports no common algorithm: {error}",
            hint="allow curve25519, aes128-ctr, hmac-sha2-256 and an ed25519 host key there",
        )
    if transport.remote_version:
        cause = str(error) if error else f"did not finish the key exchange within {format_duration(seconds)}"
    elif error is not None and isinstance(error.__context__, EOFError | ConnectionError):
        cause = "accepts the connection and closes it immediately"
    else:
        cause = f"accepts the connection, but sent no SSH banner within {format_duration(banner_seconds)}"
    raise NotUpYet(f"{where} {cause}")


def _check_host_key(
    transport: Transport, target: SshTarget, *, name: str, label: str, expected: tuple[str, str] | None
) -> None:
    shown = transport.get_remote_server_key()
    body = shown.get_base64()
    if expected is not None and expected[1] != body:
        new = f"{shown.get_name()} {body}"
        if target.host_key is not None:
            remedy = f"if the machine was reinstalled, write its new key into the lab file: {new}"
        else:
            remedy = f"if the machine was reinstalled, remove the line `{label} ...` from {target.known_hosts}"
        raise changed_key(name, target.address, expected=expected[1], shown=body, remedy=remedy)
    if expected is None and target.known_hosts is not None:
        remember(target.known_hosts, label, f"{shown.get_name()} {body}")


def _log_in(transport: Transport, target: SshTarget, name: str, key: PKey, remaining: float) -> None:
    done = threading.Event()
    start: Callable[[], object] = lambda: transport.auth_publickey(target.user, key, done)  # noqa: E731
    try:
        within(remaining, start)
    except (Overdue, SSHException, EOFError, OSError) as error:
        raise NotUpYet(f"{name}: {target.address} ended the connection before the login") from error
    answered = done.wait(min(remaining, NEGOTIATION_SECONDS))
    if transport.is_authenticated():
        return
    failure = transport.get_exception()
    if answered and (transport.is_active() or isinstance(failure, AuthenticationException)):
        raise HostError(
            f"{name}: {target.address} refused the key {target.key} for user {target.user}",
            hint=f"add {target.key}.pub to ~{target.user}/.ssh/authorized_keys there; its sshd must allow this login",
        )
    cause = "ended the connection" if answered else f"did not answer within {format_duration(NEGOTIATION_SECONDS)}"
    raise NotUpYet(f"{name}: {target.address} {cause} during the login")


def fingerprint(body: str) -> str:
    """The fingerprint in the form of ssh-keygen -l: SHA256 over the key's blob, base64 without padding."""
    digest = hashlib.sha256(base64.b64decode(body)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def recall(known_hosts: Path, label: str) -> str | None:
    """The key stored under `label` as "type body", or None before the first contact. Raises HostError."""
    entries = (line.strip().partition(" ") for line in _read_keys(known_hosts).splitlines())
    return next((key for known, _, key in entries if known == label), None)


def remember(known_hosts: Path, label: str, key: str) -> None:
    """Store the key of a first contact. The write is atomic, because an incomplete line would be another key."""
    known_hosts.parent.mkdir(parents=True, exist_ok=True)
    # Several runs may have a first contact at the same time.
    with FileLock(f"{known_hosts}.lock"):
        write_atomically(known_hosts, f"{_read_keys(known_hosts)}{label} {key}\n")


def _read_keys(known_hosts: Path) -> str:
    try:
        return read_regular(known_hosts).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise HostError(
            f"{known_hosts}, which has the SSH keys of known hosts, cannot be read: {error.strerror}",
            hint="move it away; the key of each host is then taken from its next contact",
        ) from error


class WrongHostKey(HostError):
    """A machine does not show the expected host key, so it is another machine."""


def changed_key(name: str, address: str, *, expected: str, shown: str, remedy: str) -> WrongHostKey:
    """The error for a host that shows another key; `expected` and `shown` are key bodies."""
    return WrongHostKey(
        f"{name}: the host key of {address} is not the expected one: "
        f"expected {fingerprint(expected)}, shown {fingerprint(shown)}",
        hint=remedy,
    )
