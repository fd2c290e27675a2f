"""May we write to this disk? Asked on the host, immediately before the first write."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from harness.errors import SafetyError
from harness.lab.inventory import DiskByFile, DiskById, DiskSpec
from harness.lab.paths import TAG
from harness.lab.transport.base import Runner

# $1: the disk's link or device. Prints one JSON value or text per line, so that a failing tool cannot shift the rest.
_INSPECT = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
line() { printf '%s\t%s\n' "$1" "$(printf '%s' "$2" | tr '\n\t' '  ')"; }
dev=$(readlink -f "$1") && [ -b "$dev" ] || { line missing "$1"; exit 0; }
command -v udevadm >/dev/null && udevadm settle --timeout=10
name=${dev##*/}
line device "$dev"
line block "$(lsblk -J -b -o NAME,PATH,KNAME,TYPE,SIZE,RO,MOUNTPOINTS,PARTTYPENAME "$dev")"
line serials "$( {
    udevadm info --query=property --name="$dev" |
        sed -n 's/^\(ID_SERIAL\|ID_SERIAL_SHORT\|ID_SCSI_SERIAL\|MD_UUID\)=//p'
    cat "/sys/block/$name/serial" "/sys/block/$name/device/serial" "/sys/block/$name/dm/uuid"
    tail -c +5 "/sys/block/$name/device/vpd_pg80" | tr -d '\0'
    echo
    [ ! -d "/sys/block/$name/md" ] || mdadm --detail --export "$dev" | sed -n 's/^MD_UUID=//p'
    } 2>/dev/null | tr '\n' ' ')"
line backing "$(cat "/sys/block/$name/loop/backing_file" 2>/dev/null)"
line table "$(sfdisk -J "$dev" 2>/dev/null)"
line swaps "$(tail -n +2 /proc/swaps | cut -d' ' -f1 | xargs -r readlink -f)"
line root "$(lsblk -nso KNAME "$(findmnt -nvo SOURCE /)" 2>/dev/null)"
line holders "$(cd /sys/class/block && ls -d "$name"/holders/* "$name"/"$name"*/holders/* 2>/dev/null)"
line signatures "$(lsblk -nlpo PATH,TYPE "$dev" | sed -n 's/ *\(disk\|part\|loop\|raid[0-9]*\)$//p' |
    xargs -r wipefs -J -O DEVICE,TYPE,LABEL 2>/dev/null)"
"""


@dataclass(frozen=True, slots=True)
class DiskSeen:
    """A disk as its host shows it: the evidence that the guard judges."""

    device: str
    serials: tuple[str, ...]
    backing_file: str
    size_bytes: int
    read_only: bool
    is_whole_disk: bool
    mounts: tuple[str, ...]
    holders: tuple[str, ...]
    swaps: tuple[str, ...]
    is_root: bool
    partitions: tuple[str, ...]
    """Names of the partitions in the table; ours begin with our tag."""
    signatures: tuple[str, ...]
    """`DEVICE: TYPE` of every signature on the disk and its partitions."""

    @property
    def is_ours(self) -> bool:
        """Whether a run of ours partitioned the disk, so that all that is on it is ours."""
        return bool(self.partitions) and all(name.startswith(f"{TAG}:") for name in self.partitions)


def inspect(runner: Runner, device: str) -> DiskSeen | None:
    """What the host says of `device` now; None where there is no such block device."""
    printed = runner.run(["sh", "-s", "--", device], stdin=_INSPECT, deadline=60).stdout
    said = dict(line.split("\t", 1) for line in printed.splitlines() if "\t" in line)
    if "device" not in said:
        return None
    node: dict[str, Any] = json.loads(said["block"])["blockdevices"][0]
    parts = [child for child in node.get("children", ()) if child["type"] == "part"]
    nodes = [node, *_descendants(node)]
    kernel_names = {each["kname"] for each in (node, *parts)}
    table = json.loads(said["table"] or "{}").get("partitiontable", {})
    signatures = json.loads(said["signatures"] or "{}").get("signatures", ())
    return DiskSeen(
        device=said["device"],
        serials=tuple(dict.fromkeys(said["serials"].split())),
        backing_file=said["backing"],
        size_bytes=int(node["size"]),
        read_only=bool(node["ro"]),
        # On device-mapper (a volume, a multipath) the kernel makes no partitions.
        is_whole_disk=node["type"] in ("disk", "loop") or node["type"].startswith("raid"),
        mounts=tuple(f"{each['path']} on {at}" for each in nodes for at in each["mountpoints"] if at),
        holders=tuple(holder.replace("/holders/", " by ") for holder in said["holders"].split()),
        swaps=tuple(set(said["swaps"].split()) & {each["path"] for each in nodes}),
        is_root=bool(set(said["root"].split()) & kernel_names),
        partitions=tuple(part.get("name", "") for part in table.get("partitions", ())),
        signatures=tuple(f"{each['device']}: {each['type']}" for each in signatures),
    )


def refusals(spec: DiskSpec, seen: DiskSeen | None) -> list[str]:
    """Why this disk must not be written to; empty where it may. Pure."""
    if seen is None:
        return ["there is no such block device on the host"]
    reasons = []
    if not spec.destroy:
        reasons.append("its owner did not write `destroy = true` in the lab file")
    if isinstance(spec, DiskById) and spec.serial not in seen.serials:
        reasons.append(f"its serial is {' or '.join(seen.serials) or 'unknown'}, not {spec.serial}")
    if isinstance(spec, DiskByFile) and seen.backing_file != str(spec.file):
        reasons.append(f"its backing file is {seen.backing_file or 'none'}, not {spec.file}")
    if not seen.is_whole_disk:
        reasons.append("it is not a whole disk")
    if seen.read_only:
        reasons.append("it is read-only")
    if seen.is_root:
        reasons.append("the host's root file system is on it")
    reasons += [f"{mount} is mounted" for mount in seen.mounts]
    reasons += [f"{swap} is used as swap" for swap in seen.swaps]
    reasons += [f"{holder} is in use (LVM, md, multipath or the like)" for holder in seen.holders]
    if not seen.is_ours:
        reasons += [f"{signature} is there and not of our making" for signature in seen.signatures]
        if seen.partitions and not seen.signatures:
            reasons.append("it has partitions that are not of our making")
    return reasons


def require_writable(runner: Runner, spec: DiskSpec, device: str) -> DiskSeen:
    """What the disk is, if it may be written to; else a SafetyError with every reason against it."""
    seen = inspect(runner, device)
    reasons = refusals(spec, seen)
    if reasons or seen is None:
        raise SafetyError(
            f"{runner.name}: disk {spec.name}, {spec.identity}, will not be written to: " + "; ".join(reasons),
            hint=_remedy(seen, reasons),
        )
    return seen


def _remedy(seen: DiskSeen | None, reasons: list[str]) -> str:
    if seen is None:
        return "look for the disk with: ls -l /dev/disk/by-id/, and correct its id in the lab file"
    if seen.is_ours:
        return "if a killed run left it so: virt-overhead reap"
    if any("serial" in reason for reason in reasons):
        return "the link points at another disk than the lab file means: correct id and serial there"
    return f"make sure that nothing on {seen.device} is needed, free it (umount, wipefs -a), or name another disk"


def _descendants(node: dict[str, Any]) -> list[dict[str, Any]]:
    children: list[dict[str, Any]] = node.get("children", [])
    return [each for child in children for each in (child, *_descendants(child))]
