"""The directory of one run: journal and raw outputs during the run, results.json at its end.

The owner of a directory can exchange everything in it at any time. So each file is opened relative to the descriptor of
the directory that was created or opened first, and never through a link: who puts a link in its place, or into it, does
not choose what is written."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from harness.config.names import RunId, near
from harness.errors import ResultsError
from harness.feature import feature_records
from harness.files import move, open_regular, read_regular, replacing, why_not_own
from harness.model.values import STORED, STRICT
from harness.results.journal import Entry, Journal, Measurement, RoundEvent, WritesEvent
from harness.results.records import SCHEMA_VERSION, Run
from harness.untrusted import adapt, find_impossible_number, first_problem, parse_json

_NOT_STORED = ("of_features", "unknown")
_PLACES = {"writes": 9, "judged": 10, "disks": 12}
"""The place of a key in the document, if records of features stand before it."""


def to_stored(run: Run) -> Any:
    """The run as it is dumped: with the records of features beside the other values."""
    values = {key: getattr(run, key) for key in list_kernel_keys()}
    return _make_stored_form()(
        **values, **{added.key: run.of_features.get(added.key, ()) for added in feature_records()}
    )


def parse_run(document: Any, text: bytes) -> Run:
    """The run of this `text`, which is `document` as JSON. Keys that no feature reads are only named.

    Raises ValueError, which is pydantic's ValidationError for a wrong value.
    """
    known = {field.name for field in fields(_make_stored_form())}
    unknown = tuple(key for key in document if key not in known) if isinstance(document, dict) else ()
    if unknown:
        text = json.dumps({key: value for key, value in document.items() if key in known}).encode()
    stored = make_stored_adapter().validate_json(text, context=STORED)
    of_features = {added.key: records for added in feature_records() if (records := getattr(stored, added.key))}
    run = Run(**{key: getattr(stored, key) for key in list_kernel_keys()}, of_features=of_features, unknown=unknown)
    _require_names(run)
    return run


def _require_names(run: Run) -> None:
    """ValueError if two records have one name, or a record of a feature is of a cell that the run does not have."""
    cells = {cell.id for cell in run.cells}
    for key, records in {"cells": run.cells, "groups": run.groups, **run.of_features}.items():
        names = [record.id if hasattr(record, "id") else record.cell for record in records]
        if len(set(names)) < len(names):
            raise ValueError(f"{key}: {next(name for name in names if names.count(name) > 1)} is there twice")
        for lost in {getattr(record, of, None) for record in records for of in ("cell", "optimal")} - cells - {None}:
            raise ValueError(f"{key}: {lost} is not a cell of the run")


@cache
def make_stored_adapter() -> TypeAdapter[Any]:
    """The form of results.json, for `to_stored`."""
    return TypeAdapter(_make_stored_form())


@cache
def _make_stored_form() -> type[Any]:
    hints = get_type_hints(Run, include_extras=True)
    placed: list[tuple[int, tuple[str, Any] | tuple[str, Any, Any]]] = []
    for number, field in enumerate(field for field in fields(Run) if field.name not in _NOT_STORED):
        place = _PLACES.get(field.name, number)
        required = field.default is MISSING
        placed.append((place, (field.name, hints[field.name]) + (() if required else (field.default,))))
    placed += [(added.place, (added.key, tuple[added.record, ...], ())) for added in feature_records()]  # type: ignore[name-defined]
    in_order = [field for _, field in sorted(placed, key=lambda at: at[0])]
    return make_dataclass(Run.__name__, in_order, frozen=True, namespace={"__pydantic_config__": STRICT})


@cache
def list_kernel_keys() -> tuple[str, ...]:
    """The keys of results.json that are no records of features."""
    return tuple(field.name for field in fields(Run) if field.name not in _NOT_STORED)


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

    def append(self, name: str, lines: bytes) -> None:
        """Add lines to a file. After a crash, its last line may be truncated. The new lines do not continue it."""
        with self._opened() as directory:
            file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, _MODE, dir_fd=directory)
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                os.close(file)
                raise OSError(errno.EPERM, "it is not a regular file with one name")
            if status.st_size and os.pread(file, 1, status.st_size - 1) != b"\n":
                lines = b"\n" + lines
            _write(file, lines)
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


_DOCUMENT_BYTES = 1 << 30
"""A limit for reading files of a run; every file that a run writes is smaller."""


class RunStore:
    """`reports/RUN-ID/` with results.json, journal.jsonl, raw/ and index.html. One process writes to it.

    Every method raises ResultsError if a file cannot be read or written. The error names the file and what to do.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results_path = path / "results.json"
        self.journal_path = path / "journal.jsonl"
        self.report_path = path / "index.html"
        self._directory = RunDirectory(path)

    @classmethod
    def create(cls, reports_dir: Path, run_id: RunId, *, is_latest: bool = True) -> Self:
        """The directory of a new run. With `is_latest`, the link `latest` in `reports_dir` then points to it."""
        store = cls(reports_dir / run_id)
        with _explained(store.path, "created"):
            reports_dir.mkdir(parents=True, exist_ok=True)
            try:
                store._directory.create()
            except FileExistsError:
                raise ResultsError(
                    f"{store.path} exists already, and virt-overhead never overwrites a run",
                    hint="choose another run id, or move the directory away",
                ) from None
        if is_latest:
            store.become_latest()
        return store

    @classmethod
    def open(cls, path: Path) -> Self:
        """The run at `path`: its directory, a link to it such as `reports/latest`, or its results.json."""
        directory = path.parent if path.name == "results.json" else path
        if not directory.is_dir():
            others = [path.parent.name for path in directory.parent.glob("*/results.json")]
            what = "a link to a run that is gone" if directory.is_symlink() else "not the directory of a run"
            raise ResultsError(
                f"{directory} is {what}{near(directory.name, others)}",
                hint=f"give reports/RUN-ID, or reports/{max(others, default='latest')} for the newest run",
            )
        return cls(directory.resolve())

    @classmethod
    def named(cls, path: Path, reports_dir: Path) -> Self:
        """The run at `path`, or of this name in `reports_dir`: `latest` is the newest."""
        return cls.open(path if path.exists() or len(path.parts) > 1 else reports_dir / path)

    def become_latest(self) -> None:
        """Make the link `latest` beside the run point to it, in one atomic step."""
        link = self.path.with_name("latest")
        part = link.with_name(f"{link.name}.{os.getpid()}.part")
        with _explained(link, "updated"):
            if link.exists() and not link.is_symlink():
                raise ResultsError(f"{link} is not a link, so it cannot point to this run", hint=f"move {link} away")
            part.unlink(missing_ok=True)
            part.symlink_to(self.path.name)
            move(part, link)

    def save_raw(self, name: str, text: str, *, command: str | None = None) -> str:
        """Store an output exactly as it was printed, before it is parsed, and return its path relative to the run.

        `name` contains the suffix (`round1-guest:lvm-randread-4k-qd32.json`). Characters that some file systems and
        archives do not allow become `-`, and a name that exists already gets a number. `command` is written next to it,
        with the suffix `.command`.
        """
        plain = Path(re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".-") or "raw")
        number = 1
        while True:
            relative = Path("raw", plain.name if number == 1 else f"{plain.stem}-{number}{plain.suffix}")
            with _explained(self.path / relative, "written"), suppress(FileExistsError):
                self._directory.add("raw", relative.name, text.encode(errors="surrogateescape"))
                break
            number += 1
        beside = f"{relative.name}.command"
        if command is not None:
            with _explained(self.path / "raw" / beside, "written"):
                self._directory.add("raw", beside, f"{command}\n".encode())
        return relative.as_posix()

    def append(self, *entries: Entry) -> None:
        """Add a line for each entry to the journal; when this returns, the lines are on the disk."""
        lines = b"".join(
            _dump(adapt(Entry), entry, self.journal_path, indent=None).encode() + b"\n" for entry in entries
        )
        with _explained(self.journal_path, "written"):
            self._directory.append(self.journal_path.name, lines)

    def claim(self) -> bool:
        """Take the run for this process, so that no other one writes to it. False if this store has it already.

        What was read of it before may be old: another process may have written to it until now.
        """
        with _explained(self.path, "opened"):
            try:
                return self._directory.claim()
            except BlockingIOError:
                raise ResultsError(
                    f"{self.path} is being measured by another process",
                    hint=f"wait for its end: virt-overhead watch {self.path}",
                ) from None

    def release(self) -> None:
        """Let other processes write to the run again."""
        self._directory.release()

    def require_own(self) -> None:
        """Raise ResultsError if another user could choose what a process that resumes the run writes to."""
        with _explained(self.path, "opened"):
            self._directory.require_own()

    @property
    def journal_bytes(self) -> int:
        """The size of the journal. It only grows."""
        with _explained(self.journal_path, "read"):
            return self.journal_path.stat().st_size if self.journal_path.exists() else 0

    def read_journal(self) -> Journal:
        """The lines so far. A line that a crash truncated is left out, with a note. A missing journal has no lines."""
        return JournalTail(self).read()

    def write_results(self, run: Run) -> None:
        """Write results.json whole or not at all: the old file stays until the new one is complete."""
        self._replace(
            self.results_path, _dump(make_stored_adapter(), to_stored(run), self.results_path, indent=1) + "\n"
        )

    def write_page(self, name: str, content: str | bytes) -> Path:
        """Write a file beside results.json whole or not at all, and return its path."""
        self._replace(self.path / name, content)
        return self.path / name

    def read_results(self) -> Run:
        """The run of results.json."""
        return self.read_results_and_content()[0]

    def read_results_and_content(self) -> tuple[Run, bytes]:
        """The run of results.json, and the content of exactly this file: a run replaces it while it measures."""
        with _explained(self.results_path, "read"):
            try:
                text = read_regular(self.results_path, most_bytes=_DOCUMENT_BYTES)
            except FileNotFoundError:
                raise ResultsError(
                    f"{self.results_path} does not exist: the run ended before its first results",
                    hint=f"{self.journal_path.name} and raw/ next to it have what was measured; or measure again",
                ) from None
        try:
            document = parse_json(text, "it", ResultsError, most_bytes=_DOCUMENT_BYTES)
        except ResultsError as error:
            raise _unreadable(self.results_path, _find_infinite(text) or error.message) from None
        if problem := find_impossible_number(document):
            raise _unreadable(self.results_path, problem)
        version = document.get("schema") if isinstance(document, dict) else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise ResultsError(
                f"{self.results_path} has schema {version}; this virt-overhead reads schemas up to {SCHEMA_VERSION}",
                hint="read it with the virt-overhead that wrote it, or a newer one",
            )
        try:
            return parse_run(document, text), text
        except ValidationError as error:
            raise _unreadable(self.results_path, first_problem(error)) from None
        except ValueError as error:
            raise _unreadable(self.results_path, str(error)) from None

    def _replace(self, target: Path, text: str | bytes) -> None:
        with _explained(target, "written"):
            self._directory.replace(target.name, text)


class JournalTail:
    """Reads a journal again and again while a run writes it: each time only the lines that are new."""

    def __init__(self, store: RunStore) -> None:
        self._path = store.journal_path
        self._offset = 0
        self._lines = 0
        self._journal = Journal()

    def read(self) -> Journal:
        """All lines so far, as `RunStore.read_journal`. A last line without its end is read again the next time."""
        with _explained(self._path, "read"):
            if not self._path.exists():
                return Journal()
            with open_regular(self._path) as file:
                file.seek(self._offset)
                whole, newline, last = file.read().rpartition(b"\n")
        self._journal = _joined(self._journal, self._parsed(whole.split(b"\n") if newline else []))
        self._offset += len(whole) + len(newline)
        self._lines += (whole + newline).count(b"\n")
        return _joined(self._journal, self._parsed([last]))

    def _parsed(self, lines: list[bytes]) -> Journal:
        measurements: list[Measurement] = []
        rounds: list[RoundEvent] = []
        writes: list[WritesEvent] = []
        notes: list[str] = []
        for number, line in enumerate(lines, start=self._lines + 1):
            if not line.strip():
                continue
            try:
                document = parse_json(line, "it", ResultsError, most_bytes=_DOCUMENT_BYTES)
            except ResultsError as error:
                if line.startswith(b"{") and line.count(b"{") == line.count(b"}"):
                    why = _find_infinite(line) or error.message
                    raise _unreadable(self._path, f"line {number}: {why}") from None
                name = self._path.name
                notes.append(f"{name}: line {number} is truncated and was left out; the other lines are complete")
                continue
            if problem := find_impossible_number(document):
                raise _unreadable(self._path, f"line {number}: {problem}")
            try:
                if isinstance(document, dict) and document.get("event") == "writes":
                    writes.append(adapt(WritesEvent).validate_json(line))
                elif isinstance(document, dict) and "event" in document:
                    rounds.append(adapt(RoundEvent).validate_json(line))
                else:
                    measurements.append(adapt(Measurement).validate_json(line))
            except ValidationError as error:
                raise _unreadable(self._path, f"line {number}: {first_problem(error)}") from None
        return Journal(tuple(measurements), tuple(rounds), tuple(notes), tuple(writes))


def _find_infinite(text: bytes) -> str | None:
    with suppress(ValueError, RecursionError):
        return find_impossible_number(json.loads(text))
    return None


def _joined(first: Journal, then: Journal) -> Journal:
    return Journal(*(getattr(first, field.name) + getattr(then, field.name) for field in fields(Journal)))


def _dump(adapter: TypeAdapter[Any], value: object, path: Path, *, indent: int | None) -> str:
    try:
        document = adapter.dump_python(value, mode="json", warnings="error")
        return json.dumps(document, allow_nan=False, ensure_ascii=False, indent=indent)
    except (PydanticSerializationError, ValueError) as error:
        raise ResultsError(
            f"{path} cannot hold this {type(value).__name__}: {error}",
            hint="every value must be finite and have the type that harness/results declares",
        ) from error


@contextmanager
def _explained(path: Path, done: str) -> Iterator[None]:
    """Turn an OSError into a ResultsError that says what to do about it."""
    try:
        yield
    except OSError as error:
        space = f"free space on the file system of {path.parent}, or choose another reports directory"
        failed = f"see `dmesg`: the file system of {path.parent} is read-only or its disk failed; use another directory"
        hints = {errno.ENOSPC: space, errno.EDQUOT: space, errno.EIO: failed, errno.EROFS: failed}
        hint = hints.get(error.errno or 0, f"check that {path.parent} exists, and that this user may use it")
        raise ResultsError(f"{path} cannot be {done}: {error.strerror or error}", hint=hint) from error


def _unreadable(path: Path, why: str) -> ResultsError:
    return ResultsError(
        f"{path} is not a valid {path.name} of virt-overhead (schema {SCHEMA_VERSION}): {why}",
        hint="the file was changed or damaged; restore it from a backup, or measure again",
    )
