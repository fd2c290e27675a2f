"""Passwords and token values: read when they are needed, and shown nowhere."""

from __future__ import annotations

import importlib
import os
import stat
from pathlib import Path

from harness.errors import ConfigError
from harness.lab.proxmox import SecretSource


class Secret:
    """Text that no representation shows: not in a log, a message, a traceback with its values, or a pickle."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text, for the one who sends it. Do not keep it."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __format__(self, _spec: str) -> str:
        return repr(self)

    def __reduce__(self) -> str:
        raise TypeError("a secret is not stored")


def read_secret(source: SecretSource, *, user: str, where: str) -> Secret:
    """The secret of `user`. ConfigError, which begins with `where` (`host.NAME.api.secret`), where it cannot be had."""
    text = {"env": _from_environment, "file": _from_file, "keyring": _from_keyring}[source.kind](
        source.name, user, where
    )
    if not text:
        raise ConfigError(f"{where}: {source.kind} {source.name} is empty")
    return Secret(text)


def _from_environment(name: str, _user: str, where: str) -> str:
    if name not in os.environ:
        raise ConfigError(f"{where}: the environment has no variable {name}", hint=f"read -rs {name}; export {name}")
    return os.environ[name]


def _from_file(name: str, _user: str, where: str) -> str:
    path = Path(name).expanduser()
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(f"{where}: others may read {path} (mode {mode:04o})", hint=f"chmod 600 {path}")
            return file.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: {path} cannot be read: {getattr(error, 'strerror', error)}") from None


def _from_keyring(service: str, user: str, where: str) -> str:
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        raise ConfigError(
            f"{where}: the keyring needs Python's keyring package, which is not installed",
            hint="pip install keyring (virt-overhead's extra of that name), or use env or file",
        ) from None
    try:
        found = keyring.get_password(service, user)
    except keyring.errors.KeyringError as error:
        raise ConfigError(f"{where}: the keyring does not answer: {error}") from None
    if found is None:
        raise ConfigError(
            f"{where}: the keyring has no entry of service {service} and user {user}",
            hint=f"keyring set {service} {user}",
        )
    return str(found)
