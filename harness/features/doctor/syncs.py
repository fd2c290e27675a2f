"""How long a small write takes until it is safe on the disks below a directory, and what this says about their caches.

`virt-overhead doctor --sync DIRECTORY` writes 1 MiB into a file of its own there, again and again for two seconds, each
write with an fdatasync. Flash needs up to a millisecond to store a page. A disk with power-loss protection may answer
as soon as the data are in its memory, so it is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.errors import HarnessError
from harness.features.doctor.machine import CheckedValue, HostFinding, Level, advise, make_finding
from harness.files import read_script
from harness.lab.counters import NFS
from harness.lab.pin import disks_below, why_unsafe
from harness.lab.transport.base import Runner
from harness.untrusted import parse_json, reading

SLOW_S = 500e-6
"""A sync of flash that takes longer waits for the flash itself. With power-loss protection, it takes 10 to 100 us."""
IN_MEMORY_S = 8e-6
"""No disk behind a bus stores data in less time: Optane DC P5800X takes 5 us by its data sheet, and the kernel 3 us."""
TURNING_S = 2e-3
"""A platter with 15 000 turns per minute needs this for half a turn."""
LEAST = 20
"""Fewer syncs do not give a percentile."""
DEADLINE_SECONDS = 60.0
_OF_HYPERVISORS = ("QEMU", "VIRTUAL", "VMWARE", "VBOX", "AMAZON ELASTIC", "GOOGLE", "NVME_CARD", "MSFT")
"""How the models of disks of virtual machines begin: of QEMU, Hyper-V, VMware, VirtualBox and of clouds."""

_WHY = "a guest that writes synchronously (databases, journals) waits for this on each write, and caches do not hide it"
_SCRIPT = read_script("harness.features.doctor", "time_syncs.sh")


@dataclass(frozen=True, slots=True)
class SyncedDisk:
    """A disk below the directory, as the kernel shows it. `cache` is `write back`, `write through` or empty."""

    name: str
    rotational: bool
    cache: str = ""
    fua: bool = False
    model: str = ""
    network: str = ""
    """How the host reaches a disk of another machine, for example `iSCSI`; else empty."""

    @property
    def words(self) -> str:
        fua = " with FUA" if self.fua else ""
        parts = (f"{self.name} {self.model}".strip(), f"{self.cache}{fua}" if self.cache else "", self.network)
        return ", ".join(filter(None, parts))

    @property
    def is_virtual(self) -> bool:
        """Whether a hypervisor made it: then its flushes end in a file or volume of that host."""
        return self.name.startswith(("vd", "xvd")) or self.model.upper().startswith(_OF_HYPERVISORS)


@dataclass(frozen=True, slots=True)
class TimedSyncs:
    """What was measured in one directory. Times in seconds, of a write of 4 KiB with its fdatasync."""

    disks: tuple[SyncedDisk, ...]
    number: int
    median: float
    p99: float
    ignored: tuple[str, ...] = ()
    """Settings because of which a sync does not empty the cache of a disk."""


def examine_syncs(runner: Runner, fio: str, directories: Sequence[str]) -> list[HostFinding]:
    """A finding for each directory. What cannot be measured is a finding, too."""
    return [_examine_directory(runner, fio, directory) for directory in directories]


def _examine_directory(runner: Runner, fio: str, directory: str) -> HostFinding:
    check = f"{directory}: syncs"
    try:
        if why := why_unsafe(runner, directory):
            return make_finding(
                check, _WHY, CheckedValue(f"not measured: another user could exchange it: {why}", Level.UNKNOWN)
            )
        return make_finding(check, _WHY, judge_syncs(time_syncs(runner, fio, directory)))
    except HarnessError as error:
        return HostFinding(check, f"not measured: {error.message}", Level.UNKNOWN, _WHY, error.hint or "")


def time_syncs(runner: Runner, fio: str, directory: str) -> TimedSyncs:
    """Writes and syncs a file of its own in `directory` for two seconds. Nothing remains. Raises HostError."""
    disks = [disk for disk in disks_below(runner, directory) if not disk.startswith(NFS)]
    printed = runner.run(["sh", "-s", "--", directory, fio, *disks], stdin=_SCRIPT, deadline=DEADLINE_SECONDS).stdout
    return parse_syncs(printed, f"{runner.name}: fio's syncs in {directory}")


def parse_syncs(printed: str, source: str) -> TimedSyncs:
    """The times and disks, from the output of the script. Raises HostError that begins with `source`."""
    lines = [line.split("\t") for line in printed.splitlines() if line.startswith(("disk\t", "ignored\t"))]
    document = parse_json(printed, source, after_notes=True)
    with reading(source):
        (job,) = document["jobs"]
        write, sync = job["write"], job["sync"]["lat_ns"]
        percentiles = {float(share): float(time) for share, time in sync.get("percentile", {}).items()}
        # The write itself only copies into the page cache. Its mean is enough.
        copied = float(write["lat_ns"]["mean"])
        return TimedSyncs(
            disks=tuple(
                SyncedDisk(name, rotational == "1", cache, fua == "1", model, network)
                for name, rotational, cache, fua, model, network in (line[1:] for line in lines if line[0] == "disk")
            ),
            number=int(sync["N"]) if percentiles else 0,
            median=(copied + percentiles.get(50.0, 0.0)) * 1e-9,
            p99=(copied + percentiles.get(99.0, 0.0)) * 1e-9,
            ignored=tuple(line[1] for line in lines if line[0] == "ignored"),
        )


def judge_syncs(timed: TimedSyncs) -> CheckedValue:
    """What the times say. They are evidence of a protected cache or against it, never proof: hence the words. Pure."""
    if not timed.number:
        return CheckedValue("no sync ended within two seconds", Level.UNKNOWN)
    below = "; ".join(disk.words for disk in timed.disks) or "no disk of this host is below it"
    median, p99 = (f"{seconds * 1e6:.0f} us" for seconds in (timed.median, timed.p99))
    within = f"; 99 % within {p99}" if timed.number >= LEAST else " within two seconds"
    value = f"{median} each (median of {timed.number}{within}): {below}"
    cause, advice = _explain(timed)
    value = f"{value}; {cause}" if cause else value
    return advise(value, advice) if advice else CheckedValue(value)


def _explain(timed: TimedSyncs) -> tuple[str, str]:
    """What explains the time, and the advice; empty if nothing needs to be said."""
    explanations = ((cause, advice) for holds, cause, advice in _list_explanations(timed) if holds)
    return next(explanations, ("", ""))


def _list_explanations(timed: TimedSyncs) -> Iterator[tuple[bool, str, str]]:
    """Whether an explanation holds, the cause, and the advice. The first that holds counts."""
    slow, disks = timed.median >= SLOW_S, timed.disks
    networks = ", ".join(dict.fromkeys(disk.network for disk in disks if disk.network))
    turning = any(disk.rotational and not disk.is_virtual and not disk.network for disk in disks)
    yield (
        bool(timed.ignored),
        f"syncs do not empty the cache of the disk: {'; '.join(timed.ignored)}",
        "a power failure loses what was reported as safe: undo this, then measure again",
    )
    # Nothing is known of other machines, and persistent memory is as fast as that.
    yield all(disk.name.startswith("pmem") for disk in disks), "", ""
    yield (
        timed.median < IN_MEMORY_S,
        "faster than a disk stores data: a layer below answers from memory, which a power failure may empty",
        "",
    )
    yield (
        slow and bool(networks),
        f"the network ({networks}) or the disk of the other machine is slow to store data, or busy",
        "measure on the machine that has the disk, and the round trip to it (ping)",
    )
    yield (
        slow and any(disk.is_virtual for disk in disks),
        "a virtual disk: the storage of its own host is slow to store data, or busy",
        "measure on that host: virt-overhead doctor --sync DIRECTORY",
    )
    yield turning and timed.median >= TURNING_S, "a hard disk waits for its platter", ""
    yield (
        turning,
        (
            "faster than a platter turns: a controller with a battery or a cache device answers first; if it is the "
            "disk's own cache, a power failure empties it"
        ),
        "",
    )
    flash = "syncs wait for the flash: probably no power-loss protection, or its protected cache is switched off"
    if any(disk.cache == "write through" for disk in disks):
        flash = "syncs wait for the flash, and the disk reports no volatile cache: it may be switched off"
    yield slow, flash, "use SSDs with power-loss protection for databases and other guests that write synchronously"
