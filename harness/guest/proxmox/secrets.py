"""Passwords and token values: read when they are needed, and never shown.

pytest can print the variables of every frame of an exception (`--showlocals`). So no function here has the text of a
secret in a variable when it raises, and all other code has only a `Secret`.
"""

from __future__ import annotations

import importlib
import os
import re
import stat
import unicodedata
from pathlib import Path
from typing import IO
from urllib.parse import quote, quote_plus

from harness.errors import ConfigError
from harness.lab.inventory import SecretSource, withdraw_variable

MASK = "***"
_SHORT = 8
"""Characters. Proxmox VE requires this number in a new password; a token's value is longer."""
_BREAKS = ("Cc", "Zl", "Zp")
"""Unicode's categories of control characters and line breaks."""


class Secret:
    """Text that no representation shows: no log, message, traceback with values, or pickle.

    Blanks around it are removed, because a file or a variable often ends with a newline.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text.strip()

    def reveal(self) -> str:
        """The text, for sending it. Do not store it, not even in a variable of a function that may raise."""
        return self._text

    def hidden_in(self, text: str) -> str:
        """`text` without the secret in any form: plain, encoded for a URL or a form, or as Python prints it.

        A short secret is masked only if it is a separate word. Otherwise, "x" would be masked in "exists".
        """
        written = (quote(self._text, safe="", errors="replace"), quote_plus(self._text, errors="replace"))
        for form in sorted({self._text, repr(self._text)[1:-1], *written} - {""}, key=len, reverse=True):
            pattern = re.escape(form)
            if len(form) < _SHORT:
                pattern = rf"(?<![^\W_]){pattern}(?![^\W_])"
            text = re.sub(pattern, MASK, text)
        return text

    @property
    def is_empty(self) -> bool:
        return not self._text

    def unfit(self, *, for_header: bool) -> str | None:
        """Why it cannot be sent, as text; None if it can. A password is sent in a form, a token in a header."""
        if any(unicodedata.category(character) in _BREAKS for character in self._text):
            return "contains a line break or another control character"
        try:
            self._text.encode("ascii" if for_header else "utf-8")
        except UnicodeEncodeError:
            return f"contains a character that is not {'ASCII' if for_header else 'UTF-8'}"
        return None

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    __str__ = __repr__

    def __format__(self, _spec: str) -> str:
        return repr(self)

    def __reduce__(self) -> str:
        raise TypeError("a secret cannot be pickled")


def read_secret(source: SecretSource, *, user: str, where: str, for_header: bool = False) -> Secret:
    """The secret of `user`. Raises ConfigError, which begins with `where` (`host.NAME.api.secret`), if it is unusable.

    `for_header`: it is a token's value, which is sent in an HTTP header.
    """
    secret = {"env": _from_environment, "file": _from_file, "keyring": _from_keyring}[source.kind](
        source.name, user, where
    )
    if secret.is_empty:
        raise ConfigError(f"{where}: {source.kind} {source.name} is empty")
    if why := secret.unfit(for_header=for_header):
        what = "token's value" if for_header else "password"
        raise ConfigError(
            f"{where}: the {what} in {source.kind} {source.name} {why}", hint=f"store only the {what}, on one line"
        )
    return secret


def _from_environment(name: str, _user: str, where: str) -> Secret:
    secret = _found(withdraw_variable(name))
    if secret is None:
        raise ConfigError(f"{where}: the environment has no variable {name}", hint=f"read -rs {name}; export {name}")
    return secret


def _from_file(name: str, _user: str, where: str) -> Secret:
    try:
        path = Path(name).expanduser()
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(f"{where}: others may read {path} (mode {mode:04o})", hint=f"chmod 600 {path}")
            secret = _first_line(file)
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"{where}: {name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if secret is None:
        raise ConfigError(f"{where}: the first line of {path} is not text in UTF-8")
    return secret


def _first_line(file: IO[bytes]) -> Secret | None:
    """None if it is not text. There is no variable for the bytes: see the top of this module."""
    try:
        return Secret(file.readline().decode("utf-8-sig"))
    except UnicodeDecodeError:
        return None


def _from_keyring(service: str, user: str, where: str) -> Secret:
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        raise ConfigError(
            f"{where}: the keyring needs Python's keyring package, which is not installed",
            hint="pip install keyring (virt-overhead's extra with this name), or use env or file",
        ) from None
    try:
        secret = _found(keyring.get_password(service, user))
    except Exception as error:
        # Backends raise the errors of their own libraries, D-Bus for example.
        raise ConfigError(f"{where}: the keyring does not answer: {error}") from None
    if secret is None:
        raise ConfigError(
            f"{where}: the keyring has no entry for service {service} and user {user}",
            hint=f"keyring set {service} {user}",
        )
    return secret


def _found(text: str | None) -> Secret | None:
    return None if text is None else Secret(str(text))
