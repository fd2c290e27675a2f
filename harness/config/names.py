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
    near = difflib.get_close_matches(word.lower(), names, n=1)
    return f"allowed: {', '.join(names)}" + (f' (did you mean "{near[0]}"?)' if near else "")


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
