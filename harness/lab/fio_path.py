"""The path of a disk or file as fio's job file has it, or why it cannot be there."""

from __future__ import annotations

import re

# fio 3.42: `strip_blank_end` ends each line of a job file at the first ; or #, wherever it is, and drops blanks at the
# end; `fio_keyword_replace` and the variables of the environment replace words. None of them can be escaped.
_COMMENT = re.compile("[;#]")
_REPLACED = re.compile(r"\$(?:pagesize|mb_memory|ncpus)|\$\{")


def fio_path(path: str) -> str:
    """The value of fio's `filename` for this path. ValueError with the reason where there is none.

    fio takes a colon for the end of a path, unless a backslash is before it. All else stands for itself.
    """
    if found := _COMMENT.search(path):
        raise ValueError(f"fio reads what follows {found[0]} as a comment")
    if found := _REPLACED.search(path):
        raise ValueError(f"fio replaces {found[0]} by a value of its own")
    if not path.isprintable():
        raise ValueError("fio's job file has no line breaks and control characters in paths")
    if not path.startswith("/") or path != path.rstrip():
        raise ValueError("fio needs an absolute path without blanks at its end")
    return path.replace(":", "\\:")
