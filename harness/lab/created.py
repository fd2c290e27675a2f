"""The creation log: a run records each thing on the host before it creates it, and removes only what is recorded.

The log is a directory on the host, with a directory per run and a file per thing. A file is written and synced before
its thing is created, and removed after its thing is gone. The record has a unique identity (a UUID, a birth time). The
removal checks this identity in the same command. A name is never evidence.

A record is sent with its digest and contains it, so it is whole or it cannot be read. A command that creates a thing
runs fenced: it holds a lock while it runs, and does not start once the clean-up of its thing has begun. So a command
that the host finishes late, after its deadline or after its run was killed, creates nothing that no record names.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from harness.config.names import RunId
from harness.errors import HostError, SafetyError
from harness.files import read_script
from harness.lab.pin import CREATED_DIRECTORY, UNSAFE
from harness.lab.storages import Promise
from harness.lab.transport.base import WRAPPED, Runner, failed
from harness.signals import Cleanup, cleaning_up
from harness.terminal import quoted
from harness.untrusted import first_problem, parse_json, reading

T = TypeVar("T", bound="Thing")

REMEDY = "find out what uses it there (lsof, fuser, lsblk), end that, and run: virt-overhead reap"

_CHECK = "check"
"""The key of a record that has the digest of the others."""
_MOST_BYTES = 1 << 20
_LOCK_SECONDS = 30
_ALL_SECONDS = 180.0
"""For all records of a run or a host: thousands of them are no reason to leave them."""
_OVER = ".over.json"
"""The end of the name of a record whose thing may only be removed, no longer created."""

_WRITTEN_BY_OTHERS = 3
"""The exit status of read_records.sh in this case."""

_WRITE = read_script("harness.lab", "write_record.sh")
_FENCED = read_script("harness.lab", "run_fenced.sh")
_CLOSE = read_script("harness.lab", "close_records.sh")
_FORGET = read_script("harness.lab", "forget_record.sh")
_READ = UNSAFE + read_script("harness.lab", "read_records.sh")


@dataclass(frozen=True, slots=True)
class Removal:
    """The result of a removal, and why.

    `absent`: it was gone already. `replaced`: it is gone, and something else has its place. `foreign`: something that
    the run did not create is on it or in it, so it stays.
    """

    outcome: Literal["removed", "absent", "replaced", "foreign"]
    why: str = ""


def _require_uuid(text: str) -> str:
    if not re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", text):
        raise ValueError(f"{text} does not end with a UUID")
    return text


RandomName = Annotated[str, AfterValidator(_require_uuid)]
"""A path or a variable that ends with a UUID, which is the identity of a thing that has no other."""


class Thing(BaseModel):
    """Something that a run is going to create. A subclass per kind adds the identity and the data for the removal.

    `disks` holds the serial numbers of the disks under test that it is on; it is empty if it is on none. A text that is
    required is not empty: an empty identity would be that of things of others.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    kind: str
    disks: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _require_texts(self) -> Self:
        for name, field in type(self).model_fields.items():
            if field.is_required() and getattr(self, name) == "":
                raise ValueError(f"{name} is empty")
        return self

    @property
    def words(self) -> str:
        """Its description in messages."""
        raise NotImplementedError


class HostThing(Thing):
    """A thing that commands on its host remove.

    `removal` is a shell script that gets `arguments`. It checks the identity, removes the thing, and prints one of
    `removed`, `absent`, `replaced: WHY` or `foreign: WHY` as its last line. If it cannot remove the thing or cannot
    check the identity, it ends with a status other than 0, and the thing stays in the log. It is `absent` only if its
    place is there: a file system that is not mounted has the thing still.
    """

    removal: ClassVar[str]
    seconds: ClassVar[float] = 120.0

    def arguments(self) -> Sequence[str]:
        """The values of its own fields, in their order, unless the script needs others."""
        return [str(value) for name, value in self if name not in Thing.model_fields]

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
            case "removed" | "absent" | "replaced" | "foreign":
                return Removal(outcome, why)
        raise HostError(f"{runner.name}: the removal of {self.words} reported no result: {quoted(done.stdout.strip())}")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the log in `directory`: `record` is the thing as JSON, and empty if the file cannot be read.

    `hinted` are the disks that a damaged file names. They are no evidence: what is on them is only left alone.
    """

    directory: str
    run_id: str
    file: str
    record: dict[str, Any]
    hinted: frozenset[str] = frozenset()

    @property
    def path(self) -> str:
        return f"{self.directory}/{self.run_id}/{self.file}"

    @property
    def closed_file(self) -> str:
        """The file's name when nothing may be created any more."""
        return self.file.partition(".")[0] + _OVER

    @property
    def kind(self) -> str:
        return str(self.record.get("kind", ""))

    @property
    def disks(self) -> frozenset[str]:
        """The serial numbers of the disks under test that the thing is on."""
        disks = self.record.get("disks") if self.record else None
        return frozenset(str(disk) for disk in disks) if isinstance(disks, list) else self.hinted

    def parsed(self, kinds: Sequence[type[T]]) -> T | None:
        """The thing if it has one of these kinds, else None. Raises HostError if its record is not valid."""
        for kind in kinds:
            if kind.model_fields["kind"].default == self.kind:
                try:
                    return kind.model_validate_json(json.dumps(self.record))
                except ValidationError as error:
                    raise HostError(
                        f"{self.run_id}/{self.file} of the creation log is not valid: {first_problem(error)}",
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

        If it cannot be removed, or something else is on it, it stays in the log with everything below it on its disks.
        It is added to the error that ended the block. If the block ended well, a HostError names it.
        """
        with Cleanup(self.runner.name, REMEDY) as cleanup:
            entry = self.record(thing)
            settled: list[bool] = []
            cleanup.by(thing.words, lambda: self._finish(entry, remove, settled=bool(settled)))
            yield entry
            # An error may have left the command that creates it running.
            settled.append(True)

    @contextmanager
    def making_here(self, thing: HostThing) -> Iterator[Entry]:
        """The same for a thing that commands on the host remove."""
        with self.making(thing, lambda: thing.remove(self.runner)) as entry:
            yield entry

    def record(self, thing: Thing) -> Entry:
        """Write the thing to the log, synced. Raises HostError.

        After an error or a signal, the log is without it again, unless the host does not answer any more.
        """
        # Files are named by time. Then the files of a later part of the same run come after the earlier ones.
        self._last = max(time.time_ns(), self._last + 1)
        entry = Entry(
            self._directory, self.run_id, f"{self._last:020d}-{thing.kind}.json", json.loads(thing.model_dump_json())
        )
        command, content = self._writing(entry)
        try:
            self.runner.run(command, stdin=content, deadline=60)
        except BaseException:
            # The command may have written it before it was ended. Nothing of it is created yet.
            with cleaning_up(), suppress(HostError):
                forget(self.runner, entry)
            raise
        return entry

    def amend(self, entry: Entry, thing: Thing) -> None:
        """Replace the record when more is known about the thing, for example its UUID. Raises HostError."""
        amended = Entry(entry.directory, entry.run_id, entry.file, json.loads(thing.model_dump_json()))
        command, content = self._writing(amended)
        self.runner.run(fenced(entry, command), stdin=content, deadline=60)

    def _writing(self, entry: Entry) -> tuple[list[str], str]:
        """The command that writes the record, and its standard input."""
        content = json.dumps({**entry.record, _CHECK: _hash_record(entry.record)}) + "\n"
        digest = hashlib.sha256(content.encode()).hexdigest()
        return ["sh", "-c", _WRITE, "sh", self._directory, entry.run_id, entry.file, digest], content

    def _finish(self, entry: Entry, remove: Callable[[], Removal], *, settled: bool) -> None:
        if self._kept & entry.disks:
            raise HostError("not removed, because something on it is left")
        try:
            if not settled:
                close(self.runner, [entry])
            removal = remove()
            if removal.outcome == "foreign":
                raise HostError(f"not removed, because it is not what was created: {removal.why}")
            forget(self.runner, entry)
        except BaseException:
            self._kept |= entry.disks
            raise
        if removal.outcome == "replaced":
            raise HostError(f"it is gone, and what is in its place stays: {removal.why}")


def fenced(entry: Entry, argv: Sequence[str]) -> list[str]:
    """The command that creates the thing of `entry`. It does not start once the clean-up of the thing has begun."""
    return ["sh", "-c", _FENCED, "sh", entry.directory, entry.run_id, entry.file, WRAPPED, *argv]


def close(runner: Runner, entries: Sequence[Entry]) -> list[Entry]:
    """End the creation of these things of one run: no fenced command for them runs or starts after that.

    Returns the entries with the names that their files have then. Raises HostError if such a command does not end. It
    may be on a file system that is frozen or does not answer.
    """
    if not entries:
        return []
    directory, run_id = entries[0].directory, entries[0].run_id
    words = [directory, run_id, str(_LOCK_SECONDS), _OVER, *(entry.file for entry in entries)]
    done = runner.run(["sh", "-c", _CLOSE, "sh", *words], deadline=_LOCK_SECONDS + _ALL_SECONDS, check=False)
    if done.status != 0:
        why = done.stderr.strip() or "no reason given"
        raise HostError(f"{runner.name}: the clean-up of run {run_id} cannot begin: {why}", hint=REMEDY)
    return [replace(entry, file=entry.closed_file) for entry in entries]


def read_log(runner: Runner, directory: str = CREATED_DIRECTORY) -> list[Entry]:
    """The things that runs created on the host and did not remove, in the order of creation. Raises HostError.

    Raises SafetyError if another user may have written records. A file that is damaged, or that no run wrote, becomes
    an entry with an empty record.
    """
    source = f"{runner.name}: the creation log {directory}"
    done = runner.run(["sh", "-c", _READ, "sh", directory, str(_MOST_BYTES)], deadline=_ALL_SECONDS, check=False)
    if done.status == _WRITTEN_BY_OTHERS:
        raise SafetyError(
            f"{source} is not used, because another user may have written records to it: {done.stderr.strip()}",
            hint=f"look through {directory}/*/*, remove what no run wrote, and then: chown -R root {directory}; "
            f"chmod go-w {directory} (and the directories above it)",
        )
    if done.status != 0:
        raise failed(runner.name, done)
    with reading(source):
        entries = [_read_entry(directory, line) for line in done.stdout.splitlines()]
    return sorted(entries, key=lambda entry: entry.file)


def forget(runner: Runner, entry: Entry) -> None:
    """Remove the record of a thing that is gone. Raises HostError."""
    words = [entry.directory, entry.run_id, entry.file, entry.closed_file]
    runner.run(["sh", "-c", _FORGET, "sh", *words], deadline=60)


def _read_entry(directory: str, line: str) -> Entry:
    """An entry from its line. Raises ValueError for a line of another form."""
    name, _, encoded = line.partition(" ")
    if name.startswith("="):
        name = b64decode(name[1:]).decode(errors="replace").encode("unicode_escape").decode()
    run_id, _, file = name.partition("/")
    content = b64decode(encoded).decode(errors="replace")
    record: object = None
    if len(encoded) < _MOST_BYTES:
        with suppress(HostError):
            record = parse_json(content, f"{directory}/{name}")
    if isinstance(record, dict) and record.get(_CHECK) == _hash_record(record):
        return Entry(directory, run_id, file, {key: value for key, value in record.items() if key != _CHECK})
    return Entry(directory, run_id, file, {}, frozenset(_find_hinted_disks(content)))


def _hash_record(record: dict[str, Any]) -> str:
    kept = json.dumps({key: value for key, value in record.items() if key != _CHECK}, sort_keys=True)
    return hashlib.sha256(kept.encode()).hexdigest()


def _find_hinted_disks(content: str) -> list[str]:
    listed = re.search(r'"disks": ?\[([^\]]*)\]', content)
    return re.findall(r'"([^"]*)"', listed[1]) if listed else []


class Processes(HostThing):
    """All processes with `mark` in their environment, a variable whose value no other run has.

    Programs such as fio and perf continue if the run that started them is killed.
    """

    kind: Literal["processes"] = "processes"
    mark: RandomName

    removal: ClassVar[str] = read_script("harness.lab", "end_marked_processes.sh")

    @property
    def words(self) -> str:
        return "processes that measure"
