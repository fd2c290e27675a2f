"""Names in files: which are valid, and how a message lists the allowed ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

LONGEST_NAME = 40
"""Characters. Ids, file names, and the names of volumes on hosts are composed of several such names."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def choices(word: str, allowed: Iterable[str]) -> str:
    """For example `allowed: host, lvm, raw (did you mean "lvm"?)`."""
    names = list(allowed)
    return f"allowed: {', '.join(names)}{near(word, names)}"


def near(word: str, names: Iterable[str]) -> str:
    """For example ` (did you mean "lvm"?)`. Empty if no name is like the word."""
    found = difflib.get_close_matches(word.lower(), list(names), n=1)
    return f' (did you mean "{found[0]}"?)' if found else ""


def plain_name(name: str) -> str:
    """A valid name of a host or a disk. Raises ValueError for any other."""
    if not _PLAIN.fullmatch(name):
        raise ValueError("not a valid name; allowed: letters, digits and `_`, `.`, `-`, with a letter or digit first")
    return short_name(name)


def short_name(name: str) -> str:
    """A name of allowed length. Raises ValueError for a longer one."""
    if len(name) > LONGEST_NAME:
        raise ValueError(f"the name has {len(name)} characters; allowed: at most {LONGEST_NAME}")
    return name
