"""The manifest of a built image. The build writes it last. Later it identifies the image and its files are checked."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from harness.config.names import path_name, spelt_otherwise
from harness.files import read_regular, replacing, sync, why_not_own
from harness.untrusted import read_stored

NAME = "manifest.json"
_CHECKED = ".checked.json"
_CHUNK = 1 << 20
_Count = Annotated[int, Field(ge=0, lt=1 << 62)]


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of the image as it was when the build ended."""

    size_bytes: _Count
    sha256: str
    mtime_ns: _Count


def _require_names_apart(files: Mapping[str, FileRecord]) -> Mapping[str, FileRecord]:
    """Files that lie in one directory, also on a file system that ignores case. Raises ValueError."""
    for name in files:
        if path_name(name) == NAME or spelt_otherwise(name, (*files, NAME)):
            raise ValueError(f"two files have the name {name}")
    return files


@dataclass(frozen=True, slots=True)
class Manifest:
    """`packages` maps names to versions; `inputs` maps files taken from other images to their sha256.

    `kernel` and `host_key` ("ssh-ed25519 AAAA...", the public key) are empty if the image has none.
    """

    version: Literal[1]
    name: Annotated[str, AfterValidator(path_name)]
    recipe_digest: str
    suite: str
    built_at: str
    build_s: float
    fio_version: str
    kernel: str
    host_key: str
    packages: Mapping[str, str]
    inputs: Mapping[str, str]
    files: Annotated[Mapping[str, FileRecord], AfterValidator(_require_names_apart)]

    @property
    def digest(self) -> str:
        """sha256 over the files. It identifies exactly this build; `recipe_digest` identifies the recipe."""
        lines = "".join(f"{record.sha256}  {name}\n" for name, record in sorted(self.files.items()))
        return hashlib.sha256(lines.encode()).hexdigest()


_ADAPTER = TypeAdapter(Manifest)


class DamagedError(Exception):
    """The image cannot be used; the text gives the reason in a few words."""


def write(manifest: Manifest, directory: Path) -> None:
    """Add the manifest to the image's directory, and sync all files."""
    (directory / NAME).write_bytes(_ADAPTER.dump_json(manifest, indent=2) + b"\n")
    for path in (*directory.iterdir(), directory):
        sync(path)


def read(directory: Path) -> Manifest:
    """The manifest of the image in `directory`. Raises DamagedError."""
    try:
        return parse(read_regular(directory / NAME))
    except OSError as error:
        raise DamagedError(f"its {NAME} cannot be read: {error.strerror}") from error


def parse(content: bytes) -> Manifest:
    """The manifest with this content. Raises DamagedError."""
    try:
        return _ADAPTER.validate_json(content)
    except ValidationError as error:
        raise DamagedError(f"its {NAME} is not valid: {error.errors()[0]['msg']}") from error


def check(directory: Path, manifest: Manifest, *, thorough: bool = False) -> None:
    """Compare the contents of the files with their digests. Raises DamagedError.

    A file is read again only if it was changed since it was read last, or with `thorough`. The inode and the time of
    its last change show that. Unlike the time of the last write, no program can set this time.
    """
    known = {} if thorough else _read_checked(directory)
    now: dict[str, str] = {}
    for name, record in manifest.files.items():
        path = directory / name
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                raise DamagedError(f"{name} is not a regular file")
            if why := why_not_own(status, only_read=True):
                raise DamagedError(f"{name} {why}")
            if status.st_size != record.size_bytes:
                raise DamagedError(f"{name} has {status.st_size} bytes instead of {record.size_bytes}")
            with suppress(OSError):  # in a copied cache, restore the time
                if status.st_mtime_ns != record.mtime_ns:
                    os.utime(path, ns=(record.mtime_ns, record.mtime_ns))
                    status = path.lstat()
            now[name] = f"{status.st_ino} {status.st_ctime_ns} {record.sha256}"
            if known.get(name) != now[name] and sha256_of(path) != record.sha256:
                raise DamagedError(f"the content of {name} has changed")
        except OSError as error:
            raise DamagedError(f"{name} cannot be read: {error.strerror}") from error
    if now != known:
        # In a cache that cannot be written, files are read each time.
        with suppress(OSError), replacing(directory / _CHECKED, mode=0o600) as file:
            file.write(json.dumps(now).encode())


def _read_checked(directory: Path) -> dict[str, str]:
    """What `check` has read before, by file. The directory belongs to this user, so nobody else has written this."""
    return read_stored(directory / _CHECKED, dict[str, str]) or {}


def record_file(path: Path) -> FileRecord:
    """The record of the file's current state."""
    status = path.stat()
    return FileRecord(status.st_size, sha256_of(path), status.st_mtime_ns)


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
