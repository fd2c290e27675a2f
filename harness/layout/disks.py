"""The disks under test, asked for one by one and cut into the regions that layouts and arrays need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from harness.errors import SafetyError
from harness.lab.guard import DiskSeen, require_writable
from harness.lab.inventory import DiskSpec
from harness.lab.transport.base import Runner
from harness.layout.device import block_device
from harness.layout.regions import Need, Region, partitioned, span_for, together


@dataclass(frozen=True, slots=True)
class CutDisk:
    """A disk with our partition table: the path that names it, the kernel's name (`nvme0n1`), its regions."""

    device: str
    kernel_name: str
    regions: Mapping[str, Region]


@contextmanager
def cut_disks(
    runner: Runner, disks: Sequence[DiskSpec], needs: Sequence[Mapping[str, Need]], *, span: int, run_id: str
) -> Iterator[tuple[list[CutDisk], int]]:
    """Each disk cut into the regions that it needs, and the span, in bytes, for which there is room on all of them.

    The guard is asked of all disks before the first is written to, so that none is touched in vain, and again of each
    immediately before. Raises SafetyError, Unsupported or HostError.
    """
    with ExitStack() as stack:
        devices = [stack.enter_context(block_device(runner, disk)) for disk in disks]
        seen = [require_writable(runner, disk, device) for disk, device in zip(disks, devices, strict=True)]
        _require_distinct(runner, disks, seen)
        span = min(_span(each.size_bytes, need, span) for each, need in zip(seen, needs, strict=True))
        cut = []
        for number, device in enumerate(devices):
            if number:
                require_writable(runner, disks[number], device)
            sizes = [(what, need.bytes(span)) for what, need in needs[number].items()]
            regions = stack.enter_context(partitioned(runner, device, run_id, sizes))
            cut.append(CutDisk(device, seen[number].device.rpartition("/")[2], regions))
        yield cut, span


def _span(disk_bytes: int, needs: Mapping[str, Need], wanted: int) -> int:
    need = together(needs.values())
    return span_for(disk_bytes, fixed=need.fixed, shares=need.shares, wanted=wanted)


def _require_distinct(runner: Runner, disks: Sequence[DiskSpec], seen: Sequence[DiskSeen]) -> None:
    names: dict[str, str] = {}
    for disk, each in zip(disks, seen, strict=True):
        if (other := names.setdefault(each.device, disk.name)) != disk.name:
            raise SafetyError(
                f"{runner.name}: disks {other} and {disk.name} are the same one, {each.device}",
                hint="correct their ids in the lab file: an array needs disks of its own",
            )
