"""Finds the disks of a host: free ones, and those in use with the reason. The guard decides; it only reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from harness.errors import HarnessError
from harness.init.offers import DiskOffer, Names, NotOffered
from harness.lab.disk_facts import read_disks
from harness.lab.guard import Evidence, inspect, refusals
from harness.lab.inventory import DiskById
from harness.lab.lab_schema import DiskLink, Word
from harness.lab.transport.base import Runner
from harness.model.disk import DiskFacts
from harness.shipped import read_script
from harness.units import format_size

_LIST = read_script("harness.init", "list_disks.sh")
_SERIAL: TypeAdapter[str] = TypeAdapter(Word)
_LINK: TypeAdapter[str] = TypeAdapter(DiskLink)
_KERNEL_NAME = re.compile(r"[A-Za-z0-9._-]+")
_ORDER = ("nvme-", "ata-", "scsi-", "virtio-", "usb-", "md-uuid-")
_ANONYMOUS = re.compile(r"(?:nvme-(?:eui|nvme|uuid)\.|wwn-|scsi-3|scsi-2|md-name-|dm-|lvm-)")
_MOST_DISKS = 200
_MOST_REASONS = 3

MoreUses = Callable[[DiskById], Sequence[str]]
"""Other users of a disk than those that its host shows: those that its hypervisor knows."""


@dataclass(frozen=True, slots=True)
class _Listed:
    name: str
    serials: tuple[str, ...]
    links: tuple[str, ...]

    @property
    def device(self) -> str:
        return f"/dev/{self.name}"


def find_disks(
    runner: Runner, names: Names, more: MoreUses = lambda _disk: ()
) -> tuple[list[DiskOffer], list[NotOffered]]:
    """The disks that nothing uses, and the others with the reason. A probe that fails counts as in use.

    Raises HostError if the disks cannot be listed.
    """
    listed = list(_listed(runner.run(["sh", "-s"], stdin=_LIST, deadline=60).stdout))[:_MOST_DISKS]
    facts = _facts(runner, [each.name for each in listed])
    sees_all = is_root(runner)
    free: list[DiskOffer] = []
    used: list[NotOffered] = []
    for disk in listed:
        known = facts.get(disk.name)
        found: DiskOffer | str
        try:
            found = _judged(runner, disk, known, names, more if sees_all else _unknown_uses)
        except HarnessError as error:
            found = error.message
        if isinstance(found, DiskOffer):
            free.append(found)
        else:
            used.append(NotOffered(_described(disk, known), found))
    return free, used


def is_root(runner: Runner) -> bool:
    """Whether commands run as root. Others do not see the files that processes of root have open."""
    return runner.run(["id", "-u"], deadline=30).stdout.strip() == "0"


def _unknown_uses(_disk: DiskById) -> Sequence[str]:
    return ["only root can see everything that uses it"]


def _listed(printed: str) -> Iterator[_Listed]:
    found: list[tuple[str, dict[str, list[str]]]] = []
    for line in printed.splitlines():
        key, _, value = line.partition("\t")
        if key == "disk" and _KERNEL_NAME.fullmatch(value):
            found.append((value, {"serial": [], "link": []}))
        elif found and key in found[-1][1]:
            found[-1][1][key].append(value)
    for name, of_disk in found:
        yield _Listed(name, tuple(of_disk["serial"]), tuple(of_disk["link"]))


def _judged(runner: Runner, disk: _Listed, facts: DiskFacts | None, names: Names, more: MoreUses) -> DiskOffer | str:
    """The disk, or the reasons against writing to it, in words."""
    evidence = inspect(runner, disk.device)
    serial = _serial(disk, evidence)
    link = _link(disk, serial)
    spec = DiskById(disk.name, link or disk.device, serial or "", destroy=True)
    reasons: list[str] = refusals(spec, evidence)
    if serial is None:
        reasons = [
            "it reports no serial number",
            *(reason for reason in reasons if "its serial number is" not in reason),
        ]
    if link is None:
        reasons.append("no link in /dev/disk/by-id/ leads to it")
    if not reasons:
        reasons = list(more(spec))
    if reasons or link is None or serial is None:
        left_out = len(reasons) - _MOST_REASONS
        return "; ".join(reasons[:_MOST_REASONS]) + (f"; and {left_out} more reasons" if left_out > 0 else "")
    return DiskOffer(
        names.name(_model(facts) or disk.name, "disk"),
        link,
        serial,
        disk.device,
        _model(facts),
        facts.size_bytes if facts else None,
        facts.disk_class if facts else None,
    )


def _serial(disk: _Listed, evidence: Evidence | None) -> str | None:
    """A serial number that the guard finds as well; preferably the one that docs/lab.md names."""
    known = evidence.serials if evidence else ()
    preferred = [serial for serial in disk.serials if serial in known]
    valid = [each for each in (*preferred, *sorted(known, key=len)) if _is_valid(_SERIAL, each)]
    return next(iter(valid), None)


def _link(disk: _Listed, serial: str | None) -> str | None:
    """The link that says most about the disk: with its serial number in it.

    Of an NVMe disk, the one that ends with the number of the namespace: udev gives the shorter one to any of several
    namespaces (systemd, rules.d/60-persistent-storage.rules).
    """

    def rank(link: str) -> tuple[object, ...]:
        name = link.rpartition("/")[2]
        has_serial = bool(serial) and (serial or "") in name
        numbered = bool(re.search(rf"{re.escape(serial or '')}_\d+$", name)) and name.startswith("nvme-")
        order = next((at for at, prefix in enumerate(_ORDER) if name.startswith(prefix)), len(_ORDER))
        return not has_serial, bool(_ANONYMOUS.match(name)), not numbered, order, len(name), name

    return min((link for link in disk.links if _is_valid(_LINK, link)), key=rank, default=None)


def _is_valid(kind: TypeAdapter[str], text: str) -> bool:
    try:
        kind.validate_python(text)
    except ValidationError:
        return False
    return True


def _facts(runner: Runner, disks: Sequence[str]) -> dict[str, DiskFacts]:
    """What the kernel knows of the disks; nothing if the host has no perl, which only describes them here."""
    try:
        return read_disks(runner, disks)
    except HarnessError:
        return {}


def _model(facts: DiskFacts | None) -> str | None:
    return facts.name if facts else None


def _described(disk: _Listed, facts: DiskFacts | None) -> str:
    size = format_size(facts.size_bytes) if facts and facts.size_bytes else ""
    about = ", ".join(each for each in (_model(facts) or "", size) if each)
    return f"{disk.device} ({about})" if about else disk.device
