"""The lab's simulated disks: null_blk devices that answer after a fixed time, with an identity like a real disk's."""

from __future__ import annotations

from dataclasses import dataclass

from harness.lab.inventory import DiskById

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class SimulatedDisk:
    """What null_blk is told: its answer time per request, its bandwidth, and how many requests it takes at once.

    `size_bytes` is nominal: the disk lives in the lab host's memory and takes up what was written to it.
    """

    name: str
    size_bytes: int
    completion_ns: int
    queue_depth: int
    bandwidth_mib_s: int | None = None

    @property
    def device(self) -> str:
        return f"sim_{self.name}"

    @property
    def spec(self) -> DiskById:
        """The disk as an inventory names it; the lab's udev rules give the link and the serial."""
        return DiskById(self.name, f"/dev/disk/by-id/lab-{self.device}", self.device, destroy=True)


DISKS = (
    SimulatedDisk("optane", 1024 * MIB, completion_ns=10_000, queue_depth=256),
    SimulatedDisk("sata_ssd", 1024 * MIB, completion_ns=100_000, queue_depth=32, bandwidth_mib_s=500),
    # One request at a time, 4 ms each: like a head that has to be somewhere first, IOPS hardly grow with iodepth.
    SimulatedDisk("hdd", 1024 * MIB, completion_ns=4_000_000, queue_depth=1),
)


def creation_script() -> str:
    """Shell commands that make all disks on the lab host and wait for their links; a second run changes nothing."""
    lines = ["set -eu", "modprobe null_blk nr_devices=0", "cd /sys/kernel/config/nullb"]
    for disk in DISKS:
        settings = {
            "size": disk.size_bytes // MIB,
            "memory_backed": 1,
            # null_blk holds back a request larger than its bandwidth allows in one tick: a discard of it all, for ever.
            "discard": int(disk.bandwidth_mib_s is None),
            "blocksize": 512,
            "queue_mode": 2,  # blk-mq
            "irqmode": 2,  # completed by a timer
            "completion_nsec": disk.completion_ns,
            "hw_queue_depth": disk.queue_depth,
            "submit_queues": 1 if disk.queue_depth == 1 else 2,
            "mbps": disk.bandwidth_mib_s or 0,
            "power": 1,
        }
        writes = "; ".join(f"echo {value} >{disk.device}/{key}" for key, value in settings.items())
        lines.append(f"[ -d {disk.device} ] || {{ mkdir {disk.device}; {writes}; }}")
    lines.append("udevadm settle --timeout=20")
    lines += [f"test -b {disk.spec.id}" for disk in DISKS]
    return "\n".join(lines)
