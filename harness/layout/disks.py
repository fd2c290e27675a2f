"""The disks under test: each checked by the guard, and partitioned into the regions that layouts need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from harness.errors import SafetyError
from harness.lab.created import CreationLog
from harness.lab.guard import Writable, require_writable
from harness.lab.inventory import DiskByFile, DiskSpec
from harness.layout.device import block_device
from harness.layout.free_space import places_for
from harness.layout.regions import Need, PartitionedDisk, disk_partitioned, span_for, together


@contextmanager
def partitioned_disks(
    log: CreationLog, disks: Sequence[DiskSpec], needs: Sequence[Mapping[str, Need]], *, span: int
) -> Iterator[tuple[list[PartitionedDisk], int]]:
    """Each disk partitioned into the regions that it needs, and the span in bytes that fits on all of them.

    The guard checks all disks before the first write, so no disk is overwritten if another one is refused. If there are
    several disks, it checks each again immediately before the write. Raises SafetyError, Unsupported or HostError.
    """
    runner = log.runner
    files = {str(disk.file): disk.size for disk in disks if isinstance(disk, DiskByFile) and disk.destroy}
    refused = f"{runner.name}: the files of these disks will not be created: "
    with ExitStack() as stack:
        stack.enter_context(places_for(log, files, refused))
        devices = [stack.enter_context(block_device(log, disk)) for disk in disks]
        writable = [require_writable(runner, disk, device) for disk, device in zip(disks, devices, strict=True)]
        _require_distinct(disks, writable)
        span = min(_span(permission.size_bytes, need, span) for permission, need in zip(writable, needs, strict=True))
        made = []
        for disk, device, permission, need in zip(disks, devices, writable, needs, strict=True):
            if len(disks) > 1:
                permission = require_writable(runner, disk, device)  # noqa: PLW2901 - the later permission counts
            sizes = [(what, region.bytes(span)) for what, region in need.items()]
            made.append(stack.enter_context(disk_partitioned(log, disk, permission, sizes)))
        yield made, span


def _span(disk_bytes: int, needs: Mapping[str, Need], wanted: int) -> int:
    need = together(needs.values())
    return span_for(disk_bytes, fixed=need.fixed, shares=need.shares, wanted=wanted)


def _require_distinct(disks: Sequence[DiskSpec], writable: Sequence[Writable]) -> None:
    names: dict[str, str] = {}
    for disk, permission in zip(disks, writable, strict=True):
        if (other := names.setdefault(permission.path, disk.name)) != disk.name:
            raise SafetyError(
                f"{permission.runner.name}: disks {other} and {disk.name} are the same disk, {permission.path}",
                hint="correct their ids in the lab file: an array needs separate disks",
            )
