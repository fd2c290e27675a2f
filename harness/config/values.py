"""Values that several files have: lines of text, and paths of this machine. ValueError for anything else."""

from __future__ import annotations

from pathlib import Path


def one_line(text: str) -> str:
    """Text for people: something to read, on one line, without characters that steer a terminal."""
    if not text.strip():
        raise ValueError("must not be empty")
    if not text.isprintable():
        raise ValueError("allowed: one line of printable characters")
    return text


def word(text: str) -> str:
    """Text without any space in it."""
    if one_line(text).split() != [text]:
        raise ValueError("allowed: text without spaces")
    return text


def absolute_path(value: object) -> Path:
    """An absolute path, or one below a home directory: `~/.ssh/id_ed25519`.

    A relative one would mean another file in each directory that a command is started in.
    """
    if not isinstance(value, str):
        raise ValueError("must be a path in quotes")
    try:
        path = Path(one_line(value)).expanduser()
    except RuntimeError:
        raise ValueError("there is no such user, so no home directory; allowed: an absolute path") from None
    if not path.is_absolute():
        raise ValueError("allowed: an absolute path, or one that begins with ~/")
    return path
