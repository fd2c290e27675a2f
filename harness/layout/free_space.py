"""Checks the places of the files that a run is about to create on the host: enough free space, and no other user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from harness.errors import SafetyError
from harness.lab.created import CreationLog
from harness.lab.guard.room import filling_up
from harness.lab.pin import require_safe
from harness.lab.space import Allocation, Promise, outstanding, promising, read_space, shortages
from harness.lab.transport.base import Runner

_TYPE = "file"


@contextmanager
def reserve_places(log: CreationLog, sizes: Mapping[str, int], refused: str) -> Iterator[None]:
    """Until the end of the block, the space of files with these sizes in bytes, by path, counts as needed by the run.

    Files of one file system count together, and with everything else that the run was promised and has not written yet.
    A sparse file counts with its full size, because a run fills it. Raises SafetyError, which begins with `refused`, if
    less than the reserve would stay free, or if another user could exchange the files. Raises HostError if that is
    unknown.
    """
    for directory in dict.fromkeys(path.rpartition("/")[0] or "/" for path in sizes):
        require_safe(log.runner, directory, refused)
    known = {promise.path for promise in log.promises}
    promises = [Promise(path, _TYPE, path, size, path) for path, size in sizes.items() if path not in known]
    if promises:
        _require(log.runner, [*outstanding(log.runner, log.promises), *promises], refused)
    with promising(log.promises, promises):
        yield


@dataclass(frozen=True, slots=True)
class FileReserve:
    """Keeps the reserve free on the file systems of the files that disks are made of, with their sizes in bytes.

    A `Reserve`. Which part of a disk is in which file is unknown, so a part counts for each of them.
    """

    runner: Runner
    files: tuple[tuple[str, int], ...]

    def require(self, size_bytes: int) -> None:
        """Raise SafetyError if `size_bytes` more of each file would leave too little free now."""
        whole = [Promise(path, _TYPE, path, size, path) for path, size in self.files]
        wanted = [
            replace(promise, size_bytes=min(promise.size_bytes, size_bytes))
            for promise in outstanding(self.runner, whole)
        ]
        if wanted and (why := _explain_shortage(self.runner, wanted)):
            raise filling_up(f"{self.runner.name}: nothing more is written to {', '.join(self._paths)}", why)

    def require_for(self, path: str, size_bytes: int, part_bytes: int) -> None:  # noqa: ARG002 - of the volume
        """The same before `part_bytes` of the volume at `path` are written, which is on these files."""
        self.require(part_bytes)

    @property
    def _paths(self) -> list[str]:
        return [path for path, _ in self.files]


def no_space(runner: Runner, path: str, size_bytes: int) -> str | None:
    """Why `size_bytes` more at `path` would leave less than the reserve free, as text; None if they would not.

    Raises HostError if the free space is unknown.
    """
    return _explain_shortage(runner, [Promise(path, _TYPE, path, size_bytes, path)])


def _require(runner: Runner, promises: list[Promise], refused: str) -> None:
    if why := _explain_shortage(runner, promises):
        raise SafetyError(
            f"{refused}too little space: {why}",
            hint="free space there, or name a smaller size or a path on another file system",
        )


def _explain_shortage(runner: Runner, promises: list[Promise]) -> str | None:
    places = read_space(runner, [word for promise in promises for word in promise.words])
    return "; ".join(shortages(places, [Allocation(promise.name, promise.size_bytes) for promise in promises])) or None
