"""The space that a run was promised on a host. What it has not written yet is free, but no longer for anything else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from harness.lab.transport.base import Runner
from harness.untrusted import reading

# Paths. For each, the bytes that its file system has allocated to the file or to the files of the directory.
_ALLOCATED = r"""
for path; do
    if [ -e "$path" ]; then du --summarize --block-size=1 "$path" | cut -f 1 || exit; else echo 0; fi
done
"""


@dataclass(frozen=True, slots=True)
class Promise:
    """`size_bytes` on the storage `name`, with its type and place as for `read_space`.

    `path` is the file or directory that takes the space. It is empty if nothing shows how much of it is taken.
    """

    name: str
    type: str
    at: str
    size_bytes: int
    path: str = ""

    @property
    def words(self) -> tuple[str, str, str]:
        return self.name, self.type, self.at


@contextmanager
def promising(promises: list[Promise], further: Sequence[Promise]) -> Iterator[None]:
    """`further` are among the promises of a run until the end of the block."""
    promises.extend(further)
    try:
        yield
    finally:
        for promise in further:
            promises.remove(promise)


def outstanding(runner: Runner, promises: Sequence[Promise]) -> list[Promise]:
    """What is still to be taken of the promises, without those that are taken completely. Raises HostError."""
    files = [promise for promise in promises if promise.path]
    if not files:
        return list(promises)
    printed = runner.run(["sh", "-c", _ALLOCATED, "sh", *(promise.path for promise in files)], deadline=60).stdout
    with reading(f"{runner.name}: what its file systems have allocated"):
        taken = {promise.path: int(line) for promise, line in zip(files, printed.split(), strict=True)}
    left = [replace(promise, size_bytes=promise.size_bytes - taken.get(promise.path, 0)) for promise in promises]
    return [promise for promise in left if promise.size_bytes > 0]
