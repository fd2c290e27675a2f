"""Values that several files use: lines of text, and paths of this machine. Raises ValueError for anything else."""

from __future__ import annotations

from pathlib import Path


def one_line(text: str) -> str:
    """Text on one line. It must not be empty and must not have control characters for a terminal."""
    if not text.strip():
        raise ValueError("must not be empty")
    if not text.isprintable():
        raise ValueError("allowed: one line of printable characters")
    return text


def word(text: str) -> str:
    """Text without spaces."""
    if one_line(text).split() != [text]:
        raise ValueError("allowed: text without spaces")
    return text


def absolute_path(value: object) -> Path:
    """An absolute path, or one below a home directory: `~/.ssh/id_ed25519`.

    The meaning of a relative path would depend on the directory in which the command starts.
    """
    if not isinstance(value, str):
        raise ValueError("must be a path in quotes")
    try:
        path = Path(one_line(value)).expanduser()
    except RuntimeError:
        raise ValueError("this user does not exist; allowed: an absolute path") from None
    if not path.is_absolute():
        raise ValueError("allowed: an absolute path, or one that begins with ~/")
    return path
