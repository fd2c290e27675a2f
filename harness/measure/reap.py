"""Removes what killed runs have left on a host: what the creation log lists and still is what was created."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from harness.errors import HarnessError, HostError
from harness.guest.pci import PassedThrough
from harness.guest.protocol import Hypervisor
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


def divided(entries: Sequence[Entry], disks: Collection[str]) -> tuple[list[Entry], list[Entry]]:
    """The entries that are on one of these disks, by serial number, and the others. Pure.

    What is on no disk (processes, say) goes with the run that created it: if that run has used one of the disks.
    """
    runs = {entry.run_id for entry in entries if entry.disks & set(disks)}
    mine = [entry for entry in entries if entry.disks & set(disks) or (not entry.disks and entry.run_id in runs)]
    return mine, [entry for entry in entries if entry not in mine]


def described(entry: Entry) -> str:
    """What an entry of the log is, for a list."""
    thing = _parsed(entry)
    what = thing.words if thing else str(entry.record.get("name") or entry.kind or "a record that cannot be read")
    return f"{what}, of run {entry.run_id}"


def reap(runner: Runner, hypervisor: Hypervisor, entries: Sequence[Entry]) -> list[str]:
    """Remove these things, the latest first, and say in words what was done with each.

    Call it only while holding the host's lease: else it ends a live run. Raises HostError where something cannot be
    removed, after everything else was tried: it would disturb what is measured next.
    """
    done, failed = [], []
    for entry in reversed(entries):
        try:
            removal = _removal(runner, hypervisor, entry)
            what = described(entry)
        except HarnessError as error:
            failed.append(f"{entry.run_id}/{entry.file}: {error.message}")
            continue
        forget(runner, entry)
        if removal.outcome == "removed":
            done.append(f"removed what a killed run left: {what}")
        elif removal.outcome == "foreign":
            done.append(f"left alone: {what}: {removal.why}")
    if failed:
        raise HostError(
            f"{runner.name}: what a killed run left cannot be removed: "
            + "; ".join(failed)
            + (f" (done: {'; '.join(done)})" if done else ""),
            hint=REMEDY,
        )
    return done


def _removal(runner: Runner, hypervisor: Hypervisor, entry: Entry) -> Removal:
    thing = _parsed(entry)
    if thing is not None:
        return thing.remove(runner)
    removal = hypervisor.remove(entry)
    if removal is None:
        raise HostError(
            f"{runner.name}: the creation log has an entry of the kind {entry.kind or 'unknown'!r}, which this version "
            "of virt-overhead, or this kind of host, does not know"
        )
    return removal


def _parsed(entry: Entry) -> HostThing | None:
    return entry.parsed(HOST_THINGS)
