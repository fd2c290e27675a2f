"""The directory of a run by its descriptor: who puts a link in its place, or into it, does not choose what is written.

The owner of a directory can exchange everything in it at any time. So each file is opened relative to the descriptor of
the directory that was created or opened first, and never through a link.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import ResultsError
from harness.files import replacing, why_not_own

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_MODE = 0o666


class RunDirectory:
    """The directory at `path`, which stays the same one. Methods raise OSError unless they say otherwise."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: tuple[int, int] | None = None
        self._claim: weakref.finalize[[int], RunDirectory] | None = None

    def create(self) -> None:
        """Make the directory. FileExistsError if something has this name."""
        self.path.mkdir()
        with self._opened() as directory:
            if os.fstat(directory).st_uid != os.geteuid():
                raise OSError(errno.EPERM, "another user has put a directory in its place")
            os.mkdir("raw", dir_fd=directory)
            os.fsync(directory)

    def replace(self, name: str, content: str | bytes) -> None:
        """Write a file whole or not at all. What had this name is replaced, also a link."""
        with self._opened() as directory, replacing(Path(name), directory=directory) as file:
            file.write(content.encode() if isinstance(content, str) else content)

    def add(self, below: str, name: str, content: bytes) -> None:
        """Write a new file in the directory `below`. FileExistsError if something has this name."""
        with self._opened() as directory, _below(directory, below) as inside:
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE, dir_fd=inside)
            _write(file, content)
            os.fsync(inside)

    def append(self, name: str, line: bytes) -> None:
        """Add a line to a file. After a crash, its last line may be truncated. The new line does not continue it."""
        with self._opened() as directory:
            file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, _MODE, dir_fd=directory)
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                os.close(file)
                raise OSError(errno.EPERM, "it is not a regular file with one name")
            if status.st_size and os.pread(file, 1, status.st_size - 1) != b"\n":
                line = b"\n" + line
            _write(file, line)
            if status.st_size == 0:
                os.fsync(directory)

    def claim(self) -> bool:
        """Lock the directory until `release` or the end of this process. False if this object has locked it already.

        Raises BlockingIOError if another process has locked it.
        """
        if self._claim is not None and self._claim.alive:
            return False
        with self._opened() as directory:
            kept = os.dup(directory)
        try:
            fcntl.flock(kept, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(kept)
            raise
        except OSError:
            pass  # a file server without locks
        self._claim = weakref.finalize(self, os.close, kept)
        return True

    def release(self) -> None:
        if self._claim is not None:
            self._claim()

    def require_own(self) -> None:
        """Raise ResultsError if another user could change what is written to the directory, or has put links there."""
        with self._opened() as directory:
            for name in (".", "raw", "journal.jsonl", "results.json"):
                try:
                    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                why = why_not_own(status, Path(f"/proc/self/fd/{directory}", name))
                if not why and not (stat.S_ISDIR if name in (".", "raw") else stat.S_ISREG)(status.st_mode):
                    why = "is a pipe, a device or something else that no run has written"
                if why:
                    raise ResultsError(
                        f"{self.path} is not resumed: {self.path / name} {why}",
                        hint="only its owner may resume a run, in a directory that only he can change: "
                        "copy it (cp -rL), look through the copy, and resume that",
                    )

    @contextmanager
    def _opened(self) -> Iterator[int]:
        directory = os.open(self.path, _DIRECTORY)
        try:
            status = os.fstat(directory)
            identity = status.st_dev, status.st_ino
            if self._identity not in (None, identity):
                raise OSError(errno.ESTALE, "another directory is in its place")
            self._identity = identity
            yield directory
        finally:
            os.close(directory)


@contextmanager
def _below(directory: int, name: str) -> Iterator[int]:
    inside = os.open(name, _DIRECTORY, dir_fd=directory)
    try:
        yield inside
    finally:
        os.close(inside)


def _write(file: int, content: bytes) -> None:
    """Write the content, and close the file when it is on the disk."""
    with os.fdopen(file, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(file)
