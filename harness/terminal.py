"""The one place that cleans output. What hosts, guests and files say must not control a terminal or a CI system.

Everything that a command or the plugin prints goes through `CleanStream` or `CleanConsole` (harness/console.py). Pages
and tables use `visible` and `one_line` for the values in them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

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
