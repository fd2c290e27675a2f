"""The reasons why a disk must not be written to. Pure: judges the evidence from the host."""

from __future__ import annotations

from collections.abc import Iterator

from harness.lab.guard.evidence import Evidence
from harness.lab.inventory import DiskByFile, DiskById, DiskSpec

NO_DEVICE = "the host has no such block device"
NOT_RELEASED = "its owner did not write `destroy = true` in the lab file"


def refusals(spec: DiskSpec, evidence: Evidence | None) -> list[str]:
    """All reasons against writing to this disk; empty if it may be written to."""
    if evidence is None:
        return [NO_DEVICE]
    return [
        *_find_others(spec, evidence),
        *uses(evidence),
        *_judge_contents(spec, evidence),
        *_list_unanswered(evidence),
    ]


def uses(evidence: Evidence) -> Iterator[str]:
    """Everything that uses the disk now, or will use it when it is started."""
    if evidence.is_root:
        yield "the host's root file system is on it"
    for mount in evidence.mounts:
        yield f"{mount} is mounted"
    for swap in evidence.swaps:
        yield f"{swap} is used as swap"
    for holder in evidence.holders:
        yield f"{holder} is in use"
    for user in evidence.users:
        yield f"{user} is open"
    if not any((evidence.is_root, evidence.mounts, evidence.swaps, evidence.holders, evidence.users)):
        # A user in the kernel that no list shows: a target of NVMe over fabrics or iSCSI, DRBD, a ZFS pool.
        for claim in evidence.claims:
            yield f"{claim}: the kernel does not grant exclusive access"
    for definition in evidence.definitions:
        yield f"a virtual machine or a storage is defined with it: {definition}"


def _find_others(spec: DiskSpec, evidence: Evidence) -> Iterator[str]:
    if not spec.destroy:
        yield NOT_RELEASED
    if isinstance(spec, DiskById) and spec.serial not in evidence.serials:
        yield f"its serial number is {' or '.join(evidence.serials) or 'unknown'}, not {spec.serial}"
    if isinstance(spec, DiskByFile) and evidence.backing_file != str(spec.file):
        yield f"its backing file is {evidence.backing_file or 'none'}, not {spec.file}"
    if not evidence.is_whole_disk:
        yield "it is not a whole disk"
    if evidence.read_only:
        yield "it is read-only"


def _judge_contents(spec: DiskSpec, evidence: Evidence) -> Iterator[str]:
    for signature in evidence.signatures:
        yield f"there is a signature on it: {signature}"
    if evidence.partitions and not evidence.signatures:
        yield f"it has partitions: {', '.join(evidence.partitions)}"
    if evidence.signatures or evidence.partitions or evidence.contents in ("blank", "left", "unknown"):
        return
    if not (isinstance(spec, DiskById) and spec.overwrite_data == spec.serial):
        yield (
            "it holds data of an unknown kind: encrypted volumes, raw databases and wiped disks look like this, and "
            "only its owner knows"
        )


def _list_unanswered(evidence: Evidence) -> Iterator[str]:
    for probe, why in evidence.unknown.items():
        yield f"the probe `{probe}` could not tell: {'; '.join(why.split(chr(10))).strip('; ') or 'it printed nothing'}"
