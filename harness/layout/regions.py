"""Cuts a disk into equal regions by a partition table of ours, so that all layouts live side by side on it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from harness.errors import HostError, Unsupported
from harness.lab.paths import TAG
from harness.lab.transport.base import Runner
from harness.units import format_size

MIB = 1024**2
ALIGNMENT = MIB
STEP = 4 * MIB
"""Regions are a multiple of LVM's extent, so that a volume and a file can be equally large."""
SMALLEST_SPAN = 16 * MIB
_TABLE_BYTES = 2 * MIB  # GPT at both ends


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of ours on the host. Offsets in bytes from the start of the disk."""

    what: str
    device: str
    offset: int
    size: int


def span_for(disk_bytes: int, *, fixed: int, shares: float, wanted: int) -> int:
    """Bytes of each region: `wanted`, or what fits. `fixed` bytes are the layouts' own; `shares` spans must fit.

    `shares` is the number of regions, with what a layout needs in proportion (1.05 for a file with its file system).
    Raises Unsupported where not even the smallest span fits.
    """
    room = int((disk_bytes - _TABLE_BYTES - fixed) / shares)
    span = min(wanted, room) // STEP * STEP
    if span < SMALLEST_SPAN:
        raise Unsupported(
            f"a disk of {format_size(disk_bytes)} has no room for {shares:g} regions of {format_size(SMALLEST_SPAN)}",
            hint="select fewer modes with -k, or use a larger disk",
        )
    return span


@contextmanager
def partitioned(
    runner: Runner, device: str, run_id: str, sizes: Sequence[tuple[str, int]]
) -> Iterator[dict[str, Partition]]:
    """Our partition table on `device` with one partition per (what, bytes); the disk is blank before and after.

    An SSD so starts from the same state in every run (SNIA calls it purged). The caller has asked the guard. Names of
    partitions carry the run, so that `reap` knows them.
    """
    lines = ["label: gpt"]
    offset = ALIGNMENT
    plan = []
    for what, size in sizes:
        whole = -(-size // ALIGNMENT) * ALIGNMENT
        lines.append(f'start={offset // MIB}MiB, size={whole // MIB}MiB, name="{TAG}:{run_id}:{what}"')
        plan.append((what, offset, whole))
        offset += whole
    blank(runner, device)
    try:
        runner.run(["sfdisk", "--quiet", "--wipe", "always", device], stdin="\n".join(lines) + "\n", deadline=60)
        _settle(runner)
        devices = _partition_devices(runner, device)
        if len(devices) != len(plan):
            # A kernel built without GPT takes the partitions from partx.
            runner.run(["partx", "--update", device], deadline=60, check=False)
            _settle(runner)
            devices = _partition_devices(runner, device)
        if len(devices) != len(plan):
            raise HostError(
                f"{runner.name}: the kernel shows {len(devices)} of {len(plan)} partitions of {device}",
                hint="see dmesg there; a loop device needs partition scanning (losetup -P)",
            )
        yield {what: Partition(what, path, at, size) for (what, at, size), path in zip(plan, devices, strict=True)}
    finally:
        with suppress(HostError):
            blank(runner, device)


def blank(runner: Runner, device: str) -> None:
    """Remove our partition table and give the blocks back where the disk can (discard).

    Raises HostError where the disk is in use.
    """
    runner.run(["wipefs", "--all", "--quiet", device], deadline=60)
    runner.run(["sh", "-c", 'blkdiscard -f "$1" 2>/dev/null || true', "sh", device], deadline=300)
    _settle(runner)


def _settle(runner: Runner) -> None:
    runner.run(["sh", "-c", "! command -v udevadm >/dev/null || udevadm settle --timeout=20"], deadline=30, check=False)


def _partition_devices(runner: Runner, device: str) -> list[str]:
    listed = json.loads(runner.run(["lsblk", "-J", "-b", "-o", "NAME,PATH,TYPE,START", device], deadline=30).stdout)
    parts = [each for each in listed["blockdevices"][0].get("children", ()) if each["type"] == "part"]
    return [each["path"] for each in sorted(parts, key=lambda each: int(each["start"]))]
