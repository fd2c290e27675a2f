"""The permission to create volumes on a storage in use, and files on a host: enough must stay free for their owners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from harness.errors import HostError, SafetyError, Unsupported
from harness.files import read_script
from harness.lab.created import CreationLog
from harness.lab.pin import Fenced, require_safe, require_unchanged
from harness.lab.storages import (
    Allocation,
    FoundStorage,
    Promise,
    StorageSpace,
    identity_script,
    outstanding,
    promising,
    read_space,
    shortages,
)
from harness.lab.transport.base import Completed, Runner, failed
from harness.untrusted import reading

_ON = read_script("harness.lab.guard", "run_on_storage.sh")
_ISSUER = object()
_TYPE = "file"


class Room:
    """The permission to create new volumes on one storage. It never allows a change of what is already there.

    Only `require_room` creates it: other code gets a TypeError.
    """

    __slots__ = ("found", "runner")

    def __init__(self, runner: Runner, storage: FoundStorage, *, issuer: object) -> None:
        if issuer is not _ISSUER:
            raise TypeError("only the guard issues a permission to create volumes")
        self.runner = runner
        self.found = storage

    def run(self, argv: Sequence[str], *, deadline: float, check: bool = True) -> Completed:
        """Run a command that creates a volume, if the storage is still the same. Raises SafetyError, HostError."""
        fence = self.runner.fence if isinstance(self.runner, Fenced) else "true"
        words = [fence, self.found.place, self.found.at, self.found.identity, *argv]
        done = self.runner.run(
            ["sh", "-c", identity_script(self.found.place) + _ON, "sh", *words], deadline=deadline, check=False
        )
        require_unchanged(self.runner, done)
        done = replace(done, argv=tuple(argv))
        if check and done.status != 0:
            raise failed(self.runner.name, done)
        return done

    def require(self, size_bytes: int) -> None:
        """Raise SafetyError if `size_bytes` more would leave too little free now, or if the free space is unknown.

        A run calls this before each part of what it fills, because others fill the storage at the same time.
        """
        self._require(Allocation(self.found.words, size_bytes))

    def require_for(self, path: str, size_bytes: int, part_bytes: int) -> None:
        """The same before `part_bytes` of the volume at `path` are written, which has `size_bytes`.

        What the volume has already been allocated is not needed again. Raises SafetyError, HostError.
        """
        missing = self._count_unallocated(path, size_bytes)
        self._require(part_of(self.found.words, part_bytes, missing=missing, size_bytes=size_bytes))

    def _require(self, wanted: Allocation) -> None:
        if why := _find_shortage(self.runner, self.found, [wanted]):
            raise filling_up(f"{self.runner.name}: nothing more is written to {self.found.words}", why)

    def _count_unallocated(self, path: str, size_bytes: int) -> int:
        storage = self.found
        if storage.kind.allocates == "at once":
            return 0
        if storage.kind.allocates == "when written" or storage.copies > 1:
            return size_bytes
        return unallocated_bytes(self.runner, path, size_bytes)


def filling_up(what: str, why: str) -> SafetyError:
    """The error of a run that ends because others have used the space since it began."""
    return SafetyError(
        f"{what}, which is filling up: {why}",
        hint="somebody else has used the space since the run began: free space there, then start again",
    )


def part_of(storage: str, part_bytes: int, *, missing: int, size_bytes: int) -> Allocation:
    """What is allocated when `part_bytes` of a volume of `size_bytes` are written, of which `missing` are unallocated.

    A file system tells nothing about what is below it. There, every part may be new.
    """
    return Allocation(storage, min(part_bytes, missing), min(part_bytes, size_bytes))


def unallocated_bytes(runner: Runner, path: str, size_bytes: int) -> int:
    """The bytes of a file of `size_bytes` for which its file system has allocated no blocks yet. Raises HostError."""
    printed = runner.run(["stat", "-c", "%b %B", path], deadline=30).stdout
    with reading(f"{runner.name}: the allocation of {path}"):
        blocks, unit = map(int, printed.split())
    return max(size_bytes - blocks * unit, 0)


def require_room(runner: Runner, storage: FoundStorage, size_bytes: int, promises: Sequence[Promise] = ()) -> Room:
    """The permission to create volumes of `size_bytes` together, beside what the run was promised before.

    Raises Unsupported if too little space would stay free for others, SafetyError if the free space is unknown.
    """
    if why := _find_shortage(runner, storage, [Allocation(storage.words, size_bytes)], outstanding(runner, promises)):
        raise Unsupported(
            f"{runner.name}: {why}",
            hint="free space there, measure a smaller span (a lighter profile), select fewer modes with -k, or name "
            "another storage",
        )
    return Room(runner, storage, issuer=_ISSUER)


def promise_of(storage: FoundStorage, size_bytes: int) -> Promise:
    """The promise of space on this storage, for volumes that take it only when they are written."""
    return Promise(storage.words, storage.kind.space, storage.at, size_bytes)


def free_bytes(runner: Runner, storage: FoundStorage) -> tuple[int, int]:
    """The free and all bytes of the storage; of several places that it takes space from, those with the least free.

    Raises SafetyError if they are unknown.
    """
    return min((place.available_bytes, place.total_bytes) for place in _read_places(runner, storage))


def _find_shortage(
    runner: Runner, storage: FoundStorage, wanted: Sequence[Allocation], promises: Sequence[Promise] = ()
) -> str | None:
    """Why there is too little space, as text; None if there is enough. SafetyError if it is unknown."""
    every = [*wanted, *(Allocation(promise.name, promise.size_bytes) for promise in promises)]
    return "; ".join(shortages(_read_places(runner, storage, promises), every)) or None


def _read_places(runner: Runner, storage: FoundStorage, promises: Sequence[Promise] = ()) -> list[StorageSpace]:
    """The places from which the storage takes space, at least one, and those of the promises.

    SafetyError if they are unknown.
    """
    nothing_more = Promise(storage.words, storage.kind.space, storage.at, 0)
    words = dict.fromkeys(promise.words for promise in (nothing_more, *promises))
    try:
        places = read_space(runner, [word for promise in words for word in promise])
    except HostError as error:
        raise SafetyError(
            f"{runner.name}: the free space on {storage.words} is unknown: {error.message}",
            hint="see vgs, lvs, zfs list and df on the host",
        ) from error
    if not places:
        raise SafetyError(f"{runner.name}: the host does not report the free space on {storage.words}")
    return places


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
