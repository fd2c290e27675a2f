"""Finds by their tag, and removes, the things of ours that a killed run left on a host. Touches nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from harness.guest.protocol import Hypervisor
from harness.lab.guard import inspect, refusals
from harness.lab.inventory import DiskByFile, DiskSpec
from harness.lab.paths import CONSOLE_DIRECTORY, MOUNT_DIRECTORY, TAG
from harness.lab.transport.base import Runner
from harness.layout.device import loop_devices
from harness.layout.memory_disk import NULL_BLK
from harness.layout.regions import blank

# Prints a line per thing removed. Mounts before the volumes under them, volumes before the disks under those.
# Disks in memory are of null_blk: without power they give their memory back, and can be removed.
_SWEEP = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
for point in "$1"/*; do
    [ -d "$point" ] || continue
    if mountpoint -q "$point"; then umount "$point" && echo "mount $point"; fi
    rmdir "$point" 2>/dev/null
done
if command -v vgs >/dev/null; then
    for group in $(vgs --noheadings -o vg_name 2>/dev/null | tr -d ' ' | grep "^$2-"); do
        vgremove --yes --force --quiet "$group" >/dev/null 2>&1 && echo "volume group $group"
    done
fi
for disk in "$4"/"$2"-*; do
    [ -d "$disk" ] || continue
    echo 0 >"$disk/power" && rmdir "$disk" && echo "disk in memory ${disk##*/}"
done
rm -f "$3"/"$2"-*.log
"""


def reap(runner: Runner, hypervisor: Hypervisor, disks: Iterable[DiskSpec]) -> list[str]:
    """What was found and removed, in words. Call it only while holding the host's lease: else it ends a live run."""
    removed = hypervisor.reap()
    places = [MOUNT_DIRECTORY, TAG, CONSOLE_DIRECTORY, NULL_BLK]
    swept = runner.run(["sh", "-s", "--", *places], stdin=_SWEEP, deadline=180)
    removed += swept.stdout.splitlines()
    for disk in disks:
        removed += _disk(runner, disk)
    return removed


def _disk(runner: Runner, disk: DiskSpec) -> list[str]:
    if not isinstance(disk, DiskByFile):
        return _partitions(runner, disk, disk.id)
    removed = []
    for device in loop_devices(runner, str(disk.file)):
        removed += _partitions(runner, disk, device)
        seen = inspect(runner, device)
        # A killed run may not have got as far as its partitions; whatever else uses the file shows as a reason.
        if seen is not None and not refusals(disk, seen):
            runner.run(["losetup", "-d", device], deadline=30)
            removed.append(f"loop device {device}")
    return removed


def _partitions(runner: Runner, disk: DiskSpec, device: str) -> list[str]:
    seen = inspect(runner, device)
    if seen is None or not seen.is_ours or not disk.destroy:
        return []
    blank(runner, device)
    return [f"partitions {', '.join(seen.partitions)} of {disk.name}"]
