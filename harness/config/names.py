"""Names: how a message lists those that are allowed, and what may be one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

LONGEST_NAME = 40
"""Characters. Names become parts of ids, of files and of what is built on hosts, with others beside them."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def choices(word: str, allowed: Iterable[str]) -> str:
    """For example `allowed: host, lvm, raw (did you mean "lvm"?)`."""
    names = list(allowed)
    near = difflib.get_close_matches(word.lower(), names, n=1)
    return f"allowed: {', '.join(names)}" + (f' (did you mean "{near[0]}"?)' if near else "")


def plain_name(name: str) -> str:
    """The name of a host or a disk; others are refused with a ValueError."""
    if not _PLAIN.fullmatch(name):
        raise ValueError("no name; allowed: letters, digits and `_`, `.`, `-`, with a letter or digit first")
    return short_name(name)


def short_name(name: str) -> str:
    """A name that is not too long; others are refused with a ValueError."""
    if len(name) > LONGEST_NAME:
        raise ValueError(f"{len(name)} characters are too many for a name; allowed: at most {LONGEST_NAME}")
    return name
