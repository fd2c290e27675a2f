"""Removes passwords from what is stored and shown: from URLs, and from the words of a command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

HIDDEN = "***"

_SECRET = (
    r"(?:[\w-]*(?:passw(?:or)?d|passphrase|secret|token|credential|signature|(?:api|access|account)[_-]?key)"
    r"|pass|pwd|pw|sig|auth|authorization|bearer|jwt)"
)
# The beginning of SCHEME://USER:PASSWORD@HOST. A password that is not encoded may contain any character.
_LOGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30})://(?P<user>[^\s/:@?#]*)(?P<end>[:@])")
_WORD = re.compile(r"\S+")
_ALL = re.compile(r".+", re.DOTALL)
_PARAMETER = re.compile(rf"(?i)(?P<name>[?&;#](?:{_SECRET}|key)=)[^&;#\s'\"]+")
_OPTION = re.compile(rf"(?i)--?{_SECRET}")
_ASSIGNED = re.compile(rf"(?i)^(?P<name>(?:--?)?{_SECRET}=).+", re.DOTALL)


def hide_passwords(text: str, *, is_url: bool = False) -> str:
    """The text, in which the passwords of URLs are hidden: before the host, and in parameters such as `token=`.

    `is_url` says that it is one URL or one word of a command line. Then a password may contain blanks.
    """
    shown = (_ALL if is_url else _WORD).sub(_hide_login, text) if "://" in text else text
    return _PARAMETER.sub(lambda match: match["name"] + HIDDEN, shown)


def _hide_login(word: re.Match[str]) -> str:
    # A text of somebody else may be long, so each part of it is looked at once.
    text, shown, start = word[0], "", 0
    last = text.rfind("@")
    for match in _LOGIN.finditer(text):
        if match["end"] == ":" and match.end() <= last:
            return f"{shown}{text[start : match.end()]}{HIDDEN}{text[last:]}"
        # Web servers take a token without a password as the user.
        if match["end"] == "@" and match["scheme"].lower().startswith("http"):
            shown += f"{text[start : match.start('user')]}{HIDDEN}"
            start = match.end("user")
    return shown + text[start:]


def format_command(words: Iterable[str]) -> str:
    """The words as a command line without passwords: of URLs, and of options such as `--password`."""
    shown: list[str] = []
    is_secret = False
    for word in words:
        hidden = _ASSIGNED.sub(lambda match: match["name"] + HIDDEN, word)
        shown.append(HIDDEN if is_secret else hide_passwords(hidden, is_url=True))
        is_secret = not is_secret and _OPTION.fullmatch(word) is not None
    return shlex.join(shown)


def hide_password_of(url: str, text: str) -> str:
    """The text, for example of a library's error, without the password of this URL and of other URLs."""
    try:
        password = urlsplit(url).password
    except ValueError:
        password = None
    for secret in (password, unquote(password) if password else None):
        if secret and len(secret) > 1:
            text = text.replace(secret, HIDDEN)
    return hide_passwords(text)
