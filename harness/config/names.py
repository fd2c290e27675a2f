"""How a message lists what is allowed, with the nearest name where a word looks misspelt."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def choices(word: str, allowed: Iterable[str]) -> str:
    """For example `allowed: host, lvm, raw (did you mean "lvm"?)`."""
    names = list(allowed)
    near = difflib.get_close_matches(word.lower(), names, n=1)
    return f"allowed: {', '.join(names)}" + (f' (did you mean "{near[0]}"?)' if near else "")
