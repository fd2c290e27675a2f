"""The creation log: a run records each thing on the host before it creates it, and removes only what is recorded.

The log is a directory on the host, with a directory per run and a file per thing. A file is written and synced before
its thing is created, and removed after its thing is gone. The record has a unique identity (a UUID, an inode). The
removal checks this identity in the same command. A name is never evidence.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.cleanup import Cleanup
from harness.errors import HostError
from harness.lab.paths import CREATED_DIRECTORY
from harness.lab.promises import Promise
from harness.lab.transport.base import Runner
from harness.run_id import RunId
from harness.untrusted import parse_json

T = TypeVar("T", bound="Thing")

REMEDY = "find out what uses it there (lsof, fuser, lsblk), end that, and run: virt-overhead reap"

# $1: the log, $2: the run, $3: the file. The content is on standard input.
_WRITE = r"""
mkdir -p "${1%/*}" && umask 077 && mkdir -p "$1/$2" && cd "$1/$2" || exit
cat >".$3" && sync ".$3" && mv -f ".$3" "$3" && sync . .. "$1"
"""
# $1: the log, $2: the run, $3: the file.
_FORGET = r"""
rm -f "$1/$2/$3" && rmdir --ignore-fail-on-non-empty "$1/$2" && sync "$1"
"""
# $1: the log. Each file: its name below the log on a line, its content on the next one.
_READ = r"""
[ -d "$1" ] || exit 0
cd "$1" || exit
for file in */*; do
    [ -f "$file" ] || continue
    echo "$file"
    tr -d '\n' <"$file" || exit
    echo
done
"""


@dataclass(frozen=True, slots=True)
class Removal:
    """The result of a removal: removed, already gone, or replaced by something that the run did not create, and why."""

    outcome: Literal["removed", "absent", "foreign"]
    why: str = ""


class Thing(BaseModel):
    """Something that a run is going to create. A subclass per kind adds the identity and the data for the removal.

    `disks` holds the serial numbers of the disks under test that it is on; it is empty if it is on none.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    kind: str
    disks: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Its description in messages."""
        raise NotImplementedError


class HostThing(Thing):
    """A thing that commands on its host remove.

    `removal` is a shell script that gets `arguments`. It checks the identity, removes the thing, and prints one of
    `removed`, `absent` or `foreign: WHY` as its last line. If it cannot remove the thing or cannot check the identity,
    it ends with a status other than 0, and the thing stays in the log.
    """

    removal: ClassVar[str]
    seconds: ClassVar[float] = 120.0

    def arguments(self) -> Sequence[str]:
        raise NotImplementedError

    def remove(self, runner: Runner) -> Removal:
        """Remove it if it is still the thing that was created. Raises HostError."""
        script = f'export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"\n{self.removal}'
        done = runner.run(["sh", "-c", script, "sh", *self.arguments()], deadline=self.seconds, check=False)
        outcome, _, why = (done.stdout.splitlines() or [""])[-1].partition(": ")
        if done.status != 0:
            raise HostError(
                f"{runner.name}: {self.words} cannot be removed: {done.stderr.strip() or 'no reason given'}"
            )
        match outcome:
            case "removed" | "absent" | "foreign":
                return Removal(outcome, why)
        raise HostError(f"{runner.name}: the removal of {self.words} reported no result: {done.stdout.strip()!r}")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the log in `directory`: `record` is the thing as JSON, and empty if the file cannot be read."""

    directory: str
    run_id: str
    file: str
    record: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.record.get("kind", ""))

    @property
    def disks(self) -> frozenset[str]:
        """The serial numbers of the disks under test that the thing is on."""
        disks = self.record.get("disks", ())
        return frozenset(str(disk) for disk in disks) if isinstance(disks, list) else frozenset()

    def parsed(self, kinds: Sequence[type[T]]) -> T | None:
        """The thing if it has one of these kinds, else None. Raises HostError if its record is not valid."""
        for kind in kinds:
            if kind.model_fields["kind"].default == self.kind:
                try:
                    return kind.model_validate_json(json.dumps(self.record))
                except ValidationError as error:
                    raise HostError(
                        f"{self.run_id}/{self.file} of the creation log is not valid: {error}",
                        hint="find out what it describes, remove that by hand, and then remove the file",
                    ) from error
        return None


class CreationLog:
    """The log of one run on one host."""

    def __init__(self, runner: Runner, run_id: RunId, directory: str = CREATED_DIRECTORY) -> None:
        self.runner = runner
        self.run_id = run_id
        self._directory = directory
        self._last = 0
        self._kept: set[str] = set()
        self.promises: list[Promise] = []
        """The space that the run was promised on the host."""

    @contextmanager
    def making(self, thing: Thing, remove: Callable[[], Removal]) -> Iterator[Entry]:
        """Record the thing. The block then creates it and works with it, and `remove` removes it at the end.

        If it cannot be removed, or something else is in its place, it stays in the log with everything below it on its
        disks. It is added to the error that ended the block. If the block ended well, a HostError names it.
        """
        with Cleanup(self.runner.name, REMEDY) as cleanup:
            entry = self.record(thing)
            cleanup.by(thing.words, lambda: self._finish(entry, remove))
            yield entry

    @contextmanager
    def making_here(self, thing: HostThing) -> Iterator[Entry]:
        """The same for a thing that commands on the host remove."""
        with self.making(thing, lambda: thing.remove(self.runner)) as entry:
            yield entry

    def record(self, thing: Thing) -> Entry:
        """Write the thing to the log, synced. Raises HostError."""
        # Files are named by time. Then the files of a later part of the same run come after the earlier ones.
        self._last = max(time.time_ns(), self._last + 1)
        entry = Entry(
            self._directory, self.run_id, f"{self._last:020d}-{thing.kind}.json", json.loads(thing.model_dump_json())
        )
        self._write(entry)
        return entry

    def amend(self, entry: Entry, thing: Thing) -> None:
        """Replace the record when more is known about the thing, for example its UUID. Raises HostError."""
        self._write(Entry(entry.directory, entry.run_id, entry.file, json.loads(thing.model_dump_json())))

    def _write(self, entry: Entry) -> None:
        arguments = [self._directory, entry.run_id, entry.file]
        content = json.dumps(entry.record) + "\n"
        self.runner.run(["sh", "-c", _WRITE, "sh", *arguments], stdin=content, deadline=60)

    def _finish(self, entry: Entry, remove: Callable[[], Removal]) -> None:
        if self._kept & entry.disks:
            raise HostError("not removed, because something on it is left")
        try:
            removal = remove()
            if removal.outcome == "foreign":
                raise HostError(f"not removed, because it is not what was created: {removal.why}")
            forget(self.runner, entry)
        except BaseException:
            self._kept |= entry.disks
            raise


def read_log(runner: Runner, directory: str = CREATED_DIRECTORY) -> list[Entry]:
    """The things that runs created on the host and did not remove, in the order of creation. Raises HostError."""
    lines = runner.run(["sh", "-c", _READ, "sh", directory], deadline=60).stdout.splitlines()
    entries = []
    for name, content in zip(lines[::2], lines[1::2], strict=True):
        run_id, _, file = name.partition("/")
        try:
            record = parse_json(content, f"{directory}/{name}")
        except HostError:
            record = None
        entries.append(Entry(directory, run_id, file, record if isinstance(record, dict) else {}))
    return sorted(entries, key=lambda entry: entry.file)


def forget(runner: Runner, entry: Entry) -> None:
    """Remove the record of a thing that is gone. Raises HostError."""
    runner.run(["sh", "-c", _FORGET, "sh", entry.directory, entry.run_id, entry.file], deadline=60)
