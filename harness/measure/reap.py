"""Finds by their tag, and removes, the things of ours that a killed run left on a host. Touches nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from harness.errors import HostError
from harness.guest.protocol import Hypervisor
from harness.lab.guard import inspect, refusals
from harness.lab.inventory import DiskByFile, DiskSpec
from harness.lab.paths import CONSOLE_DIRECTORY, MARK, MOUNT_DIRECTORY, TAG
from harness.lab.transport.base import Runner
from harness.layout.device import loop_devices
from harness.layout.lvm import TRACELESS
from harness.layout.memory_disk import NULL_BLK
from harness.layout.regions import blank

# Prints a line per thing removed, and on standard error what could not be. Processes before what they use, mounts
# before the volumes under them, these before the arrays, a stripe over arrays before its legs. An array is known by
# what its members say, which also serves where udev put only a part of it together when the host booted.
# Disks in memory are of null_blk: without power they give their memory back, and can be removed.
_SWEEP = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
status=0
told() { # what, then the command that removes it
    what=$1; shift
    if said=$("$@" 2>&1); then echo "$what"; else echo "$what: $said" >&2; status=1; fi
}
ours() { grep -qzxF "$mark" "/proc/$1/environ" 2>/dev/null; }
end() {
    kill -KILL "$1" && for _ in $(seq 100); do ours "$1" || return 0; sleep 0.1; done
    echo "it waits for a device"; return 1
}
ask_lvm() { command=$1; shift; "$command" --config "$traceless" "$@"; }
no_group() {
    volumes=$(ask_lvm vgs --noheadings -o pv_name "$1") &&
        ask_lvm vgremove --yes --force --quiet "$1" && ask_lvm pvremove --yes --force --quiet $volumes
}
unmount() { umount "$1" && rmdir "$1"; }
no_disk() { echo 0 >"$1/power" && rmdir "$1"; }
members() { for member in "/sys/block/$1/md"/dev-*; do echo "/dev/${member##*/dev-}"; done; }
name_of() { mdadm --examine --export "$1" 2>/dev/null | sed -n 's/^MD_NAME=//p' | sed 's/.*://'; }
stop() { # udev may hold it for a moment
    for _ in $(seq 25); do mdadm --quiet --stop "$1" 2>/dev/null && return; sleep 0.2; done
    mdadm --quiet --stop "$1"
}
dismantle() { # array, members
    stop "/dev/$1" && shift && mdadm --quiet --zero-superblock "$@"
}
mark=$5 traceless=$6
for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    if ours "$pid"; then told "process $(cat "$process/comm") ($pid)" end "$pid"; fi
done
if command -v zpool >/dev/null; then
    for pool in $(zpool list -H -o name 2>/dev/null | grep "^$2-"); do
        told "pool $pool" zpool destroy "$pool"
    done
fi
for point in "$1"/*; do
    [ -d "$point" ] || continue
    if mountpoint -q "$point"; then told "mount $point" unmount "$point"; else rmdir "$point" 2>/dev/null; fi
done
if command -v vgs >/dev/null; then
    for group in $(ask_lvm vgs --noheadings -o vg_name 2>/dev/null | tr -d ' ' | grep "^$2-"); do
        told "volume group $group" no_group "$group"
    done
fi
for level in stripe legs; do
    for array in /sys/block/md*; do
        [ -d "$array/md" ] && array=${array##*/} && found=$(members "$array") || continue
        [ $level = legs ] || case $found in /dev/md*) ;; *) continue;; esac
        name=$(for member in $found; do name_of "$member"; done | head -n 1)
        case $name in "$2"-*) told "array $name" dismantle "$array" $found;; esac
    done
done
for disk in "$4"/"$2"-*; do
    [ -d "$disk" ] || continue
    told "disk in memory ${disk##*/}" no_disk "$disk"
done
rm -f "$3"/"$2"-*.log
exit $status
"""


def reap(runner: Runner, hypervisor: Hypervisor, disks: Iterable[DiskSpec]) -> list[str]:
    """What was found and removed, in words. Call it only while holding the host's lease: else it ends a live run.

    Raises HostError where something of ours cannot be removed, for it would be measured along.
    """
    removed = hypervisor.reap() + sweep(runner)
    for disk in disks:
        removed += _disk(runner, disk)
    return removed


def sweep(runner: Runner) -> list[str]:
    """End and remove what is no guest and no partition: fio, mounts, volume groups, pools, arrays, disks in memory."""
    arguments = [MOUNT_DIRECTORY, TAG, CONSOLE_DIRECTORY, NULL_BLK, MARK, TRACELESS]
    swept = runner.run(["sh", "-s", "--", *arguments], stdin=_SWEEP, deadline=180, check=False)
    if swept.status != 0:
        raise HostError(
            f"{runner.name}: what a killed run left cannot be removed: {'; '.join(swept.stderr.splitlines())}",
            hint="find out what uses it there (lsof, fuser), end that, and: virt-overhead reap",
        )
    return swept.stdout.splitlines()


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
