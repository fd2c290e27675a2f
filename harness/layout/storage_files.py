"""Files in an existing directory of the host, in a directory that the run creates in it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import ClassVar, Literal

from harness.lab.created import CreationLog, HostThing, fenced
from harness.lab.guard import Room, Writable, created_directory
from harness.lab.guard.room import promise_of
from harness.lab.paths import FILE_IDENTITY, TAG
from harness.lab.space import promising
from harness.lab.storage_look import IDENTITY, FoundStorage
from harness.layout.files import RAW_NEED, compute_qcow2_need, create_qcow2, create_raw, data_file, image_names
from harness.layout.source import Sources
from harness.model.layout import Layout, Qcow2, RawFile
from harness.shipped import read_script
from harness.untrusted import reading

_MARK = ".voh"

_MAKE = FILE_IDENTITY + read_script("harness.layout", "create_storage_directory.sh")
_REMOVE = IDENTITY + read_script("harness.layout", "remove_storage_directory.sh")


class StoredDirectory(HostThing):
    """A directory in an existing one, with the `files` of a run and a file that holds the random `token`.

    `storage` identifies the directory that it is in. `inode`, with its birth time, is known once it exists, and `made`,
    those of its files.
    """

    kind: Literal["stored-directory"] = "stored-directory"
    path: str
    storage: str
    token: str
    files: tuple[str, ...]
    inode: str = ""
    made: tuple[str, ...] = ()

    removal: ClassVar[str] = _REMOVE
    # A file server may need long to remove large files.
    seconds: ClassVar[float] = 600.0

    @property
    def words(self) -> str:
        return f"the directory {self.path}"

    def arguments(self) -> Sequence[str]:
        made = f":{':'.join(self.made)}:"
        return [self.path, self.storage, self.token, _MARK, self.inode, made, *self.files]


def file_bytes(storage: FoundStorage, layout: Layout, span: int) -> int:
    """The bytes that the files of a layout take once they are full."""
    need = compute_qcow2_need(layout) if isinstance(layout, Qcow2) else RAW_NEED
    return storage.copies * need.bytes(span)


@contextmanager
def files(
    log: CreationLog, room: Room, label: str, wanted: Mapping[str, Layout], span: int
) -> Iterator[dict[str, Sources]]:
    """The files for each name in `wanted`. They are removed at the end. Raises SafetyError, HostError."""
    runner, storage = log.runner, room.found
    token = secrets.token_hex(16)
    thing = StoredDirectory(
        disks=(label,),
        path=f"{storage.at.rstrip('/')}/{TAG}-{log.run_id}-{token[:8]}",
        storage=storage.identity,
        token=token,
        files=tuple(file for name, layout in wanted.items() for file in _names(name, layout)),
    )
    known = [thing]
    size = sum(file_bytes(storage, layout, span) for layout in wanted.values())
    promise = replace(promise_of(storage, size), path=thing.path)
    with promising(log.promises, [promise]), log.making(thing, lambda: known[-1].remove(runner)) as entry:
        words = [thing.path, token, _MARK, *thing.files]
        printed = room.run(fenced(entry, ["sh", "-c", _MAKE, "sh", *words]), deadline=60).stdout
        with reading(f"{runner.name}: the new directory {thing.path}"):
            inode, preallocates, *made = printed.splitlines()
        known.append(thing.model_copy(update={"inode": inode, "made": tuple(made)}))
        log.amend(entry, known[-1])
        directory = created_directory(runner, entry, thing.path)
        sources = {
            name: made_in(directory, f"{directory.path}/{name}", layout, span, preallocates=preallocates == "yes")
            for name, layout in wanted.items()
        }
        yield sources


def made_in(directory: Writable, path: str, layout: Layout, span: int, *, preallocates: bool) -> Sources:
    """The files of a layout in a directory of the run. A file that cannot be preallocated is written in full later."""
    if isinstance(layout, Qcow2):
        return create_qcow2(directory, path, span, layout)
    wanted = layout.preallocation if isinstance(layout, RawFile) else "off"
    preallocation = "off" if wanted == "falloc" and not preallocates else wanted
    return Sources.same(create_raw(directory, f"{path}.raw", span, preallocation))


def _names(name: str, layout: Layout) -> list[str]:
    if not isinstance(layout, Qcow2):
        return [f"{name}.raw"]
    return [f"{name}.raw", *filter(None, (*image_names(name, layout), data_file(name, layout)))]


class StoredFiles:
    """A `VolumeKind`: files in a directory."""

    thing: ClassVar[type[HostThing]] = StoredDirectory
    baseline: ClassVar[Layout] = RawFile()

    def bytes_of(self, storage: FoundStorage, layout: Layout, span: int) -> int:
        return file_bytes(storage, layout, span)

    def create(
        self, log: CreationLog, room: Room, label: str, wanted: Mapping[str, Layout], span: int
    ) -> AbstractContextManager[dict[str, Sources]]:
        return files(log, room, label, wanted, span)
