"""Cuts a disk or an array into regions by a partition table of ours, so that all layouts live side by side on it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil

from harness.errors import HostError, Unsupported
from harness.lab.paths import TAG
from harness.lab.transport.base import Runner
from harness.layout.undo import Undo
from harness.units import format_size

MIB = 1024**2
ALIGNMENT = MIB
STEP = 4 * MIB
"""Regions are a multiple of LVM's extent, so that a volume and a file can be equally large."""
SMALLEST_SPAN = 16 * MIB
TABLE_BYTES = 2 * MIB
"""GPT at both ends."""

_BLANK_SECONDS = 300.0

# $1: the device. wipefs fails where it is in use; not every disk can discard.
_BLANK = r"""
export PATH="$PATH:/usr/sbin:/sbin"
wipefs --all --quiet "$1" || exit
blkdiscard -f "$1" 2>/dev/null
! command -v udevadm >/dev/null || udevadm settle --timeout=20
"""
_PARTITIONS = r"""
! command -v udevadm >/dev/null || udevadm settle --timeout=20
lsblk -J -b -o NAME,PATH,TYPE,START "$1"
"""


@dataclass(frozen=True, slots=True)
class Need:
    """Room for `shares` spans, and `fixed` bytes beside them whatever the span.

    `shares` is the number of spans, with what a layer needs in proportion (1.05 for a file with its file system).
    """

    fixed: int
    shares: float

    def bytes(self, span: int) -> int:
        """Whole MiB."""
        return _up(self.fixed + ceil(self.shares * span), ALIGNMENT)


@dataclass(frozen=True, slots=True)
class Region:
    """A partition of ours on the host. Offsets in bytes from the start of its base."""

    what: str
    device: str
    offset: int
    size: int


def together(needs: Iterable[Need], *, alignment: int = ALIGNMENT) -> Need:
    """What all regions with these needs take up side by side, each begun at a multiple of `alignment` bytes."""
    needs = tuple(needs)
    return Need(sum(need.fixed + alignment for need in needs), sum(need.shares for need in needs))


def span_for(disk_bytes: int, *, fixed: int, shares: float, wanted: int) -> int:
    """Bytes of each region: `wanted`, or what fits. `fixed` bytes are the layers' own; `shares` spans must fit.

    Raises Unsupported where not even the smallest span fits.
    """
    room = int((disk_bytes - TABLE_BYTES - fixed) / shares)
    span = min(wanted, room) // STEP * STEP
    if span < SMALLEST_SPAN:
        raise Unsupported(
            f"a disk of {format_size(disk_bytes)} has no room for {shares:g} regions of {format_size(SMALLEST_SPAN)}",
            hint="select fewer modes with -k, or use a larger disk",
        )
    return span


@contextmanager
def partitioned(
    runner: Runner,
    device: str,
    run_id: str,
    sizes: Sequence[tuple[str, int]],
    *,
    alignment: int = ALIGNMENT,
    passing: bool = False,
) -> Iterator[dict[str, Region]]:
    """Our partition table on `device` with one partition per (what, bytes); it is blank before and after.

    An SSD so starts from the same state in every run (SNIA calls it purged). A `passing` device, which is gone right
    after this, is not made blank. Each region begins at a multiple of `alignment` bytes, which is one of MiB. The
    caller has asked the guard. Names of partitions carry the run, so that `reap` knows them.
    """
    lines = ["label: gpt"]
    offset = alignment
    plan = []
    for what, size in sizes:
        whole = _up(size, ALIGNMENT)
        lines.append(f'start={offset // MIB}MiB, size={whole // MIB}MiB, name="{TAG}:{run_id}:{what}"')
        plan.append((what, offset, whole))
        offset = _up(offset + whole, alignment)
    with Undo(runner) as undo:
        if not passing:
            undo.by(f"partitions on {device}", ["sh", "-s", "--", device], stdin=_BLANK, deadline=_BLANK_SECONDS)
            blank(runner, device)
        # What was in a region before must not come to life when the region appears: an array, a volume group.
        table = ["sfdisk", "--quiet", "--wipe", "always", "--wipe-partitions", "always", device]
        runner.run(table, stdin="\n".join(lines) + "\n", deadline=60)
        devices = _partition_devices(runner, device)
        if len(devices) != len(plan):
            # A kernel built without GPT takes the partitions from partx.
            runner.run(["partx", "--update", device], deadline=60, check=False)
            devices = _partition_devices(runner, device)
        if len(devices) != len(plan):
            raise HostError(
                f"{runner.name}: the kernel shows {len(devices)} of {len(plan)} partitions of {device}",
                hint="see dmesg there; a loop device needs partition scanning (losetup -P)",
            )
        yield {what: Region(what, path, at, size) for (what, at, size), path in zip(plan, devices, strict=True)}


def blank(runner: Runner, device: str) -> None:
    """Remove our partition table, and give the blocks back where the disk can (discard).

    Raises HostError where the disk is in use.
    """
    runner.run(["sh", "-s", "--", device], stdin=_BLANK, deadline=_BLANK_SECONDS)


def _partition_devices(runner: Runner, device: str) -> list[str]:
    said = runner.run(["sh", "-s", "--", device], stdin=_PARTITIONS, deadline=60).stdout
    parts = [each for each in json.loads(said)["blockdevices"][0].get("children", ()) if each["type"] == "part"]
    return [each["path"] for each in sorted(parts, key=lambda each: int(each["start"]))]


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
