"""The key that a host must show: pinned by its owner, or stored at the first contact."""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path

from filelock import FileLock

from harness.errors import ConfigError, HostError
from harness.files import write_atomically


def split_key(text: str, *, origin: str) -> tuple[str, str]:
    """Type and base64 body of a public key line ("ssh-ed25519 AAAA... comment"); ConfigError naming `origin`."""
    kind, _, rest = text.strip().partition(" ")
    body = rest.split()[0] if rest.split() else ""
    try:
        base64.b64decode(body, validate=True)
    except binascii.Error:
        body = ""
    if not body:
        raise ConfigError(
            f"{origin}: {text.strip()[:60]!r} is not a public key",
            hint="write the type and the key, for example `ssh-ed25519 AAAA...` from `ssh-keyscan -t ed25519 HOST`",
        )
    return kind, body


def fingerprint(body: str) -> str:
    """The fingerprint in the form of ssh-keygen -l: SHA256 over the key's blob, base64 without padding."""
    digest = hashlib.sha256(base64.b64decode(body)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def recall(known_hosts: Path, label: str) -> str | None:
    """The key stored under `label` as "type body", or None before the first contact."""
    try:
        lines = known_hosts.read_text().splitlines()
    except FileNotFoundError:
        return None
    for line in lines:
        known, _, key = line.strip().partition(" ")
        # Earlier versions stored an IPv6 address without brackets.
        if known in (label, label.replace("[", "").replace("]", "")):
            return key
    return None


def remember(known_hosts: Path, label: str, key: str) -> None:
    """Store the key of a first contact. The write is atomic, because an incomplete line would be another key."""
    known_hosts.parent.mkdir(parents=True, exist_ok=True)
    # Several runs may have a first contact at the same time.
    with FileLock(f"{known_hosts}.lock"):
        known = known_hosts.read_text() if known_hosts.exists() else ""
        write_atomically(known_hosts, f"{known}{label} {key}\n")


class WrongHostKey(HostError):
    """A machine does not show the expected host key, so it is another machine."""


def changed_key(name: str, address: str, *, expected: str, shown: str, remedy: str) -> WrongHostKey:
    """The error for a host that shows another key; `expected` and `shown` are key bodies."""
    return WrongHostKey(
        f"{name}: the host key of {address} is not the expected one: "
        f"expected {fingerprint(expected)}, shown {fingerprint(shown)}",
        hint=remedy,
    )
