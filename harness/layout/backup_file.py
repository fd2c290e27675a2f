"""The file on the host that a backup of a guest's disk is written to. It is allocated first: no disk becomes full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.lab.created import CreationLog
from harness.lab.guard import created
from harness.lab.inventory import HostSpec
from harness.lab.pin import BACKUP_DIRECTORY, TAG, why_unsafe
from harness.lab.transport.base import Runner
from harness.layout.device import own_file
from harness.layout.free_space import no_space
from harness.layout.source import BlockSource
from harness.untrusted import count, reading

# $1: a device or a file. Its size in bytes.
_SIZE = 'if [ -b "$1" ]; then PATH="$PATH:/usr/sbin:/sbin" blockdev --getsize64 "$1"; else stat -L -c %s "$1"; fi'
_ALLOCATE_SECONDS = 120.0


def choose_directory(spec: HostSpec) -> str:
    """Where the backups of the host's guests are written to."""
    return str(spec.backup_directory or BACKUP_DIRECTORY)


def refuse_backup(runner: Runner, spec: HostSpec, size_bytes: int) -> str | None:
    """Why a backup of so many bytes cannot be written there, with the remedy; None if it can. Raises HostError."""
    directory = choose_directory(spec)
    if spec.backup_directory and runner.run(["test", "-d", directory], deadline=20, check=False).status != 0:
        return f"there is no directory {directory}: create it, or correct backup_directory in the lab file"
    if why := why_unsafe(runner, directory):
        return (
            f"another user could exchange what is written to {directory}: {why}. Name a directory that only root can "
            "change as backup_directory of the host in the lab file"
        )
    if why := no_space(runner, directory, size_bytes):
        return (
            f"a backup does not fit into {directory}: {why}. Name a directory with more space as backup_directory of "
            "the host in the lab file"
        )
    return None


@contextmanager
def backup_file(log: CreationLog, spec: HostSpec, name: str, source: BlockSource) -> Iterator[str]:
    """The path of a new file with the size of what `source` is on. It is removed at the end.

    Raises SafetyError if less than the reserve would stay free, or if another user could exchange the file, HostError.
    """
    runner, directory = log.runner, choose_directory(spec)
    size = source.size
    if source.format == "raw":
        printed = runner.run(["sh", "-c", _SIZE, "sh", source.path], deadline=30).stdout
        with reading(f"{runner.name}: the size of {source.path}"):
            size = count(int(printed))
    if not spec.backup_directory:
        runner.run(["mkdir", "-p", directory], deadline=20)
    path = f"{directory}/{TAG}-{log.run_id}-{name}.raw"
    refused = f"{runner.name}: the backup of {name} will not be made: "
    with own_file(log, path, size, (), refused) as (_, entry):
        (writable,) = created(runner, entry, [path])
        writable.run(["fallocate", "-l", str(size), path], deadline=_ALLOCATE_SECONDS)
        yield path
