"""The one place that cleans output. What hosts, guests and files say must not control a terminal or a CI system.

Everything that a command or the plugin prints goes through `CleanStream` or `CleanConsole` (harness/console.py). Pages
and tables use `visible` and `one_line` for the values in them. Passwords in URLs and command lines are hidden.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast
from urllib.parse import unquote, urlsplit

# Control characters except tab and line feed; characters that reorder, hide or end lines; halves of surrogate pairs,
# which cannot be encoded (file names that are not UTF-8 have them).
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
# GitHub ignores blanks before a command, and finds `##[` anywhere in a line, as other systems do with their marks.
# GitLab folds lines between marks that begin with `section_start:` and `section_end:`.
_COMMANDS = (
    # A line may end in `::` because its rest is written later.
    (re.compile(r"^([^\S\n]*):(?=:(?:[A-Za-z\\]|\Z))", re.MULTILINE), r"\1: "),
    (re.compile(r"#(?=#(?:\[|vso\[|teamcity\[))", re.IGNORECASE), "# "),
    (re.compile(r"(section_(?:start|end))(?=:\d)"), r"\1 "),
)
_LONGEST_LINE = 4096
"""Characters of an unfinished line that are remembered to find a command in it."""


def visible(text: str) -> str:
    r"""The text with control characters as escapes, for example `\x1b`. Tabs and line feeds stay."""
    return text if text.isprintable() else _CONTROL.sub(_escape, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """The text as one line without control characters, for a cell of a table or the name of something."""
    return text if text.isprintable() else visible(re.sub(r"[\r\n\t]+", " ", text))


def quoted(text: str, longest: int = 80) -> str:
    """The text of a file, an option or a program within a message: `"TEXT"`, on one line, of limited length."""
    return f'"{one_line(text[:longest])}{" ..." if len(text) > longest else ""}"'


def clean(text: str) -> str:
    """Lines for a terminal or a log: without control characters, and without commands for CI systems."""
    shown = visible(text)
    if ":" in shown or "#" in shown:
        for pattern, replacement in _COMMANDS:
            shown = pattern.sub(replacement, shown)
    return shown


def clean_json(document: str) -> str:
    r"""The same for a JSON document, which stays the same value: such characters are in its strings only."""
    escaped = _CONTROL.sub(lambda match: _escape_json(match[0]), document)
    escaped = re.sub(r"##(?=\[|vso\[|teamcity\[)", r"#\\u0023", escaped, flags=re.IGNORECASE)
    return re.sub(r"(section_(?:start|end)):(?=\d)", r"\1\\u003a", escaped)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escape_json(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


class CleanStream:
    """A text stream that cleans what is written to it. It has everything else of the stream below.

    With `styles`, the sequences for colours pass. With `rewrites`, a carriage return at the beginning of a text passes,
    with which a line is written again.
    """

    def __init__(self, stream: TextIO, *, styles: bool = False, rewrites: bool = False) -> None:
        self.unfiltered = stream
        self.rich_proxied_file = stream  # the name that rich looks for: CleanConsole cleans, and then adds colours
        self._styles = styles
        self._rewrites = rewrites
        self._line = ""

    def write(self, text: str) -> int:
        self.unfiltered.write(self._cleaned(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)

    def _cleaned(self, text: str) -> str:
        start = "\r" if self._rewrites and text.startswith("\r") else ""
        if start:
            self._line = ""
        parts = _STYLE.split(text[len(start) :]) if self._styles else [text[len(start) :]]
        styles = [*_STYLE.findall(text), ""] if self._styles else [""]
        return start + "".join(self._continued(part) + style for part, style in zip(parts, styles, strict=True))

    def _continued(self, text: str) -> str:
        """The cleaned text. A command may begin in what was written before on the same line."""
        before = self._line
        whole = clean(before + text)
        added = whole[len(before) :] if whole.startswith(before) else f" {clean(text)}"
        self._line = (before + added).rpartition("\n")[2][-_LONGEST_LINE:]
        return added


@contextmanager
def cleaned_output() -> Iterator[None]:
    """Standard output and standard error clean what is written to them, in this block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", CleanStream(unfiltered(stream))) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def unfiltered(stream: TextIO) -> TextIO:
    """The stream below a CleanStream: for commands to CI systems, and for sequences that move the cursor."""
    return cast("TextIO", getattr(stream, "unfiltered", stream))


def write_error(text: str) -> None:
    """Write a line to standard error."""
    unfiltered(sys.stderr).write(f"{clean(text)}\n")


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
