"""What a host counts of a block device and of its CPUs, whoever uses them."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import HostError
from harness.lab.transport.base import Runner

_SECTOR = 512  # of /sys/block/*/stat, whatever the device's own sectors are

# The shell reads both itself: on an emulated host, each program that is started costs more than the reading.
_READ = 'read -r line <"/sys/class/block/$1/stat" && echo "$line" && read -r line </proc/stat && echo "$line"'


@dataclass(frozen=True, slots=True)
class Transferred:
    """Bytes that went to and from a block device since some start; the difference of two is what went in between."""

    read: int
    written: int

    def __sub__(self, earlier: Transferred) -> Transferred:
        return Transferred(self.read - earlier.read, self.written - earlier.written)


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Ticks of all CPUs of a machine together since its start."""

    busy: int
    total: int

    def busy_since(self, earlier: CpuTime) -> float:
        """The share of the time in between that the CPUs were busy, 0 to 1."""
        return (self.busy - earlier.busy) / max(self.total - earlier.total, 1)


@dataclass(frozen=True, slots=True)
class HostCounters:
    """What the host had counted at one moment."""

    disk: Transferred
    cpu: CpuTime


def read_counters(runner: Runner, name: str) -> HostCounters:
    """The counters of the block device with this kernel name (`nvme0n1`, `dm-3`), and of the CPUs.

    Source: the kernel's Documentation/block/stat.rst and Documentation/filesystems/proc.rst.
    """
    printed = runner.run(["sh", "-c", _READ, "sh", name], deadline=30).stdout.splitlines()
    try:
        stat = [int(field) for field in printed[0].split()]
        return HostCounters(Transferred(stat[2] * _SECTOR, stat[6] * _SECTOR), cpu_time(printed[1]))
    except (IndexError, ValueError) as error:
        raise HostError(f"{runner.name}: /sys/class/block/{name}/stat reads {printed[:2]}: {error}") from error


def cpu_time(line: str) -> CpuTime:
    """The first line of /proc/stat, `cpu  user nice system idle iowait irq softirq steal guest guest_nice`."""
    # The guests' time is counted in user and nice already.
    ticks = [int(field) for field in line.split()[1:9]]
    idle = ticks[3] + ticks[4]
    return CpuTime(sum(ticks) - idle, sum(ticks))
