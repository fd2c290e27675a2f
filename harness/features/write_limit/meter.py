"""Counts the bytes that a run writes to each disk, by the disk's own counter on its host, across resumed parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import HostError
from harness.lab.inventory import AnyDisk, DiskByFile, DiskById
from harness.lab.transport.base import Runner
from harness.results import RunStore
from harness.results.journal import WritesEvent
from harness.shipped import read_script
from harness.untrusted import reading

_SECTOR = 512  # the unit of /sys/block/*/stat
_DEADLINE = 30.0
_GONE = "-"

_READ = read_script("harness.features.write_limit", "read_written_sectors.sh")


@dataclass(frozen=True, slots=True)
class Reading:
    """The counter of a block device. `device` is its identity, `written` its bytes written since it appeared."""

    device: str
    written: int


@dataclass(slots=True)
class _Count:
    """What is known of one disk. The current step writes at most `may_write` bytes."""

    written: int = 0
    last: Reading | None = None
    may_write: int = 0

    def read(self, now: Reading) -> None:
        """Count what was written since the last reading, whoever wrote it.

        If there is no last reading of the same device, nothing shows what the step wrote, so its maximum counts.
        """
        last, self.last = self.last, now
        same = last is not None and last.device == now.device and now.written >= last.written
        self.written += now.written - last.written if same and last is not None else self.may_write
        self.may_write = 0


class Meter:
    """The bytes written to these disks of a run, by name in the lab. Continues the count of an earlier part of the run.

    Every step is noted in the journal before it begins. So the count also holds for a run that was killed: by the
    counter if the host still runs, else with the most that the step may have written.
    """

    def __init__(self, store: RunStore, disks: Mapping[str, AnyDisk]) -> None:
        self._store = store
        self._disks = disks
        self._names: dict[str, str] = {}
        self._counts = {name: _Count() for name in disks}
        for write in store.read_journal().writes if disks else ():
            if write.disk in self._counts:
                self._counts[write.disk] = _count_of(write)

    @property
    def written(self) -> dict[str, int]:
        """The bytes written so far, by the last reading."""
        return {name: count.written for name, count in self._counts.items()}

    def read(self, runner: Runner) -> None:
        """Read the counters. A disk that the host does not have at the moment keeps its count. Raises HostError."""
        if not self._disks:
            return
        paths = [self._path(name, disk) for name, disk in self._disks.items()]
        printed = runner.run(["sh", "-s", "--", *paths], stdin=_READ, deadline=_DEADLINE).stdout
        for (name, count), line in zip(self._counts.items(), _lines(printed, len(paths), runner.name), strict=True):
            if line != _GONE:
                with reading(f"{runner.name}: the counter of bytes written of disk {name}"):
                    device, sectors = line.split()
                    count.read(Reading(device, int(sectors) * _SECTOR))

    def found(self, names: Mapping[str, str]) -> None:
        """Note the kernel names of disks that no link names, by name in the lab: those below a storage."""
        self._names |= names

    def add(self, disk: str, written: int) -> None:
        """Count bytes that the host's counter does not show, because a guest had the disk for itself."""
        if disk in self._counts:
            self._counts[disk].written += written
            self._counts[disk].may_write = 0

    def may_write(self, step: str, at_most: Mapping[str, float]) -> None:
        """Note in the journal what the next step writes to each disk at most, in bytes."""
        for name, count in self._counts.items():
            count.may_write = round(at_most.get(name, 0.0))
            self._note(name, count, step, count.last)

    def end(self) -> None:
        """Note that the run has ended. What is written to the disks from now on does not count."""
        for name, count in self._counts.items():
            count.may_write = 0
            self._note(name, count, "the end of the run", None)

    def _note(self, name: str, count: _Count, step: str, last: Reading | None) -> None:
        self._store.append(
            WritesEvent(
                "writes",
                name,
                step,
                count.written,
                count.may_write,
                last.device if last else None,
                last.written if last else None,
            )
        )

    def _path(self, name: str, disk: AnyDisk) -> str:
        if isinstance(disk, DiskById):
            return disk.id
        if isinstance(disk, DiskByFile):
            return f"file:{disk.file}"
        return f"/dev/{self._names[name]}" if name in self._names else _GONE


def _count_of(event: WritesEvent) -> _Count:
    device, counter = event.device, event.counter
    last = Reading(device, counter) if device is not None and counter is not None else None
    return _Count(event.written, last, event.may_write)


def _lines(printed: str, expected: int, host: str) -> list[str]:
    lines = [line.strip() for line in printed.splitlines()]
    if len(lines) != expected:
        raise HostError(
            f"{host}: the counters of bytes written cannot be read: {len(lines)} of {expected} disks answered",
            hint="without them, a limit of bytes written cannot be kept; run it without --max-writes",
        )
    return lines
