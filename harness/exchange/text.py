"""From the bytes of a file to the text that fio printed: encodings, and what mail, forums and terminals add. Pure."""

from __future__ import annotations

import codecs
import re

from harness.errors import MeasurementError

# UTF-32 first: its little-endian mark begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, None),
    (codecs.BOM_UTF32_BE, None),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SAMPLE = 2000
_QUOTE = re.compile(r"^[ \t]{0,3}(?:>[ \t]?)+", re.MULTILINE)
"""The mark of quoted lines in mail and forums. No line of fio's output begins with `>`."""
_FENCE = re.compile(r"^[ \t]*(?:```|~~~).*$", re.MULTILINE)
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SPACES = str.maketrans({"\u00a0": " ", "\u2007": " ", "\u202f": " ", "\u200b": None, "\ufeff": None})
"""Copied web pages have no-break spaces; appended files have a byte order mark in the middle."""


def printed_text(data: bytes, source: str) -> str:
    """What fio printed, with "\\n" at the end of lines, without quote marks. Raises MeasurementError."""
    text = _decoded(data, source).translate(_SPACES)
    for pattern in (_COLOURS, _QUOTE, _FENCE):
        text = pattern.sub("", text)
    # Progress lines end with a carriage return alone.
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _decoded(data: bytes, source: str) -> str:
    mark, encoding = next((mark for mark in _MARKS if data.startswith(mark[0])), (b"", _without_mark(data)))
    if encoding is not None:
        try:
            return data[len(mark) :].decode(encoding)
        except UnicodeDecodeError:
            pass
    raise MeasurementError(
        f"{source} is not text in UTF-8 or UTF-16",
        hint="save it as UTF-8, or measure again: fio --output-format=json+ --output=FILE",
    )


def _without_mark(data: bytes) -> str:
    """UTF-16 if every second byte of the beginning is 0, as in text that is mostly ASCII; else UTF-8."""
    even, odd = data[:_SAMPLE:2], data[1:_SAMPLE:2]
    if odd and odd.count(0) > len(odd) * 0.7 and even.count(0) < len(even) * 0.1:
        return "utf-16-le"
    if even and even.count(0) > len(even) * 0.7 and odd.count(0) < len(odd) * 0.1:
        return "utf-16-be"
    return "utf-8"
