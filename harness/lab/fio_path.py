"""The path of a disk or file in the form of fio's job file, or the reason why it cannot be used there."""

from __future__ import annotations

import re

# fio 3.42: `strip_blank_end` ends each line of a job file at the first ; or #, at any position, and drops blanks at the
# end. `fio_keyword_replace` and environment variables replace words. None of these can be escaped.
_COMMENT = re.compile("[;#]")
_REPLACED = re.compile(r"\$(?:pagesize|mb_memory|ncpus)|\$\{")


def fio_path(path: str) -> str:
    """The value of fio's `filename` for this path. ValueError with the reason if fio cannot use the path.

    fio treats a colon as the end of a path, unless a backslash is before it. Other characters have no special meaning.
    """
    if found := _COMMENT.search(path):
        raise ValueError(f"fio treats the text after {found[0]} as a comment")
    if found := _REPLACED.search(path):
        raise ValueError(f"fio replaces {found[0]} by another value")
    if not path.isprintable():
        raise ValueError("a path in fio's job file cannot contain line breaks or control characters")
    if not path.startswith("/") or path != path.rstrip():
        raise ValueError("fio needs an absolute path without blanks at its end")
    return path.replace(":", "\\:")
