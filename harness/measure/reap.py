"""Removes what killed runs have left on a host: what the creation log lists and still is what was created."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from harness.errors import HarnessError, HostError
from harness.guest.pci import PassedThrough
from harness.guest.protocol import Remover
from harness.guest.proxmox.things import KINDS as PROXMOX_THINGS
from harness.lab.created import REMEDY, Entry, HostThing, Removal, forget
from harness.lab.processes import Processes
from harness.lab.transport.base import Runner
from harness.layout.device import BackingFile, LoopDevice
from harness.layout.filesystem import FilesystemMount
from harness.layout.lvm import VolumeGroup
from harness.layout.md import Array
from harness.layout.memory_disk import MemoryDisk
from harness.layout.partition_table import PartitionTable
from harness.layout.zfs import Pool

HOST_THINGS: tuple[type[HostThing], ...] = (
    Array,
    BackingFile,
    FilesystemMount,
    LoopDevice,
    MemoryDisk,
    PartitionTable,
    PassedThrough,
    Pool,
    Processes,
    VolumeGroup,
)
"""Everything that runs create on a host by commands. A hypervisor removes what it has created itself."""
_PROCESSES = Processes.model_fields["kind"].default


def divided(entries: Sequence[Entry], disks: Collection[str]) -> tuple[list[Entry], list[Entry]]:
    """The entries that are on one of these disks, by serial number, and the others. Pure.

    What is on no disk goes with the run that created it: if that run has used one of the disks. Processes of killed
    runs always go, because they would be measured along. A record that cannot be read stays, so that it does not keep
    every later run from starting.
    """
    runs = {entry.run_id for entry in entries if entry.disks & set(disks)}

    def is_mine(entry: Entry) -> bool:
        if entry.disks or not entry.kind:
            return bool(entry.disks & set(disks))
        return entry.run_id in runs or entry.kind == _PROCESSES

    return [entry for entry in entries if is_mine(entry)], [entry for entry in entries if not is_mine(entry)]


def described(entry: Entry) -> str:
    """What an entry of the log is, for a list."""
    thing = entry.parsed((*HOST_THINGS, *PROXMOX_THINGS))
    what = thing.words if thing else str(entry.record.get("name") or entry.kind or "a record that cannot be read")
    return f"{what}, of run {entry.run_id}"


def reap(runner: Runner, hypervisor: Remover, entries: Sequence[Entry]) -> list[str]:
    """Remove these things, the latest first, and say in words what was done with each.

    Where something cannot be removed, or is not what was created any more, everything that the same run has created
    below it stays as well: a file that has somebody's data in it by now, say. Call this only while holding the host's
    lease: else it ends a live run. Raises HostError where something stays, after everything else was tried.
    """
    done: list[str] = []
    left: dict[str, Entry] = {}
    for number, entry in reversed(list(enumerate(entries))):
        what = _name(entry)
        if any(above.run_id == entry.run_id and above.disks & entry.disks for above in left.values()):
            left[f"{what}: kept, because something on it is left"] = entry
            continue
        try:
            removal = _removal(runner, hypervisor, entry)
        except HarnessError as error:
            left[f"{what}: {error.message}"] = entry
            continue
        if removal.outcome == "foreign":
            said = f"{what}: left alone, because it is not what was created: {removal.why}"
            if any(below.run_id == entry.run_id and below.disks & entry.disks for below in entries[:number]):
                left[said] = entry
                continue
            done.append(said)
        elif removal.outcome == "removed":
            done.append(f"removed what a killed run left: {what}")
        forget(runner, entry)
    if left:
        files = ", ".join(f"{entry.directory}/{entry.run_id}/{entry.file}" for entry in left.values())
        raise HostError(
            f"{runner.name}: not everything that killed runs have left can be removed:\n  "
            + "\n  ".join([*left, *done]),
            hint=f"{REMEDY}; what you want to keep, or remove by hand, leaves the log with its file: {files}",
        )
    return done


def _name(entry: Entry) -> str:
    try:
        return described(entry)
    except HarnessError:
        return f"{entry.run_id}/{entry.file}"


def _removal(runner: Runner, hypervisor: Remover, entry: Entry) -> Removal:
    thing = _parsed(entry)
    if thing is not None:
        return thing.remove(runner)
    removal = hypervisor.remove(entry)
    if removal is None:
        raise HostError(
            f"the creation log has an entry {entry.run_id}/{entry.file} of the kind {entry.kind or 'unknown'!r}, which "
            "this version of virt-overhead, or this kind of host, does not know"
        )
    return removal


def _parsed(entry: Entry) -> HostThing | None:
    return entry.parsed(HOST_THINGS)
