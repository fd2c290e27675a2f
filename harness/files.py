"""Writes files. A crash or a power failure leaves either the old content or the new content, never a part of it."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


def read_regular(path: Path, *, most_bytes: int) -> bytes:
    """The content of a file in a directory of somebody else. Raises OSError.

    A link, a pipe or a device there could lead to another file, or never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes")
    return content


def write_atomically(target: Path, content: str | bytes) -> None:
    """Replace the content of `target` by `content`, which is on the disk when this returns. Raises OSError."""
    with replacing(target) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(target: Path, *, mode: int = 0o666, directory: int | None = None) -> Iterator[IO[bytes]]:
    """A file in the directory of `target` that replaces it at the end of the block. An error changes nothing.

    `mode` is the mode of the new file, less the umask. `directory` is a descriptor of the directory, if there is one.
    Raises OSError.
    """
    part = f".{target.name}.{secrets.token_hex(4)}.part"
    inside = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY) if directory is None else os.dup(directory)
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=inside), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target.name, src_dir_fd=inside, dst_dir_fd=inside)
        os.fsync(inside)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=inside)
        raise
    finally:
        os.close(inside)


def move(source: Path, target: Path) -> None:
    """Rename `source` to `target`, which may exist. The new name is on the disk when this returns.

    The content of `source` must be on the disk already: see `sync`.
    """
    source.replace(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Write a file or a directory from the page cache to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
