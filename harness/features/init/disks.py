"""What a host offers, and its disks: free ones, and those in use with the reason. The guard decides; it only reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from harness.config.names import LONGEST_NAME
from harness.errors import HarnessError
from harness.files import read_script
from harness.lab.facts import read_disks
from harness.lab.guard import DiskEvidence, inspect, refusals
from harness.lab.inventory import DiskById, StorageKey, storage_kinds
from harness.lab.lab_schema import DiskLink, Word
from harness.lab.transport.base import Runner
from harness.model.disk import DiskClass, DiskFacts
from harness.units import format_size


@dataclass(frozen=True, slots=True)
class StorageOffer:
    """A storage in use on which a run can create volumes. `usable_bytes` of the free ones may be filled by a run."""

    name: str
    key: StorageKey
    at: str
    layouts: tuple[str, ...]
    free_bytes: int
    usable_bytes: int
    notes: tuple[str, ...] = ()
    for_vms: bool = True
    """Whether it is meant for virtual machines. Otherwise, only its owner knows whether a run may use it."""

    @property
    def words(self) -> str:
        """For example `thin pool pve/data`."""
        return f"{storage_kinds()[self.key].words} {self.at}"


@dataclass(frozen=True, slots=True)
class DiskOffer:
    """A disk that nothing on its host uses. `device` is the kernel's path of it now."""

    name: str
    id: str
    serial: str
    device: str
    model: str | None = None
    size_bytes: int | None = None
    disk_class: DiskClass | None = None


@dataclass(frozen=True, slots=True)
class NotOffered:
    """A storage or a disk that is not offered: what it is, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Offers:
    """What a host has to measure. `notes` are for the reader of the lab file, one sentence each."""

    storages: tuple[StorageOffer, ...] = ()
    disks: tuple[DiskOffer, ...] = ()
    other_storages: tuple[NotOffered, ...] = ()
    other_disks: tuple[NotOffered, ...] = ()
    notes: tuple[str, ...] = ()
    needs_key: bool = False
    """Whether a run needs an SSH key that is still missing: no command can run on the node."""

    @property
    def ready(self) -> tuple[StorageOffer, ...]:
        """The storages that are measured without a change of the lab file."""
        return tuple(storage for storage in self.storages if storage.for_vms)

    @property
    def suggested(self) -> tuple[StorageOffer, ...]:
        """The other storages, which are comments in the lab file."""
        return tuple(storage for storage in self.storages if not storage.for_vms)


@dataclass(slots=True)
class Names:
    """Makes names for a lab file from the names that their owner uses. Each name is given once.

    `taken` are names that mean something else, as those of scenarios, which would measure the storage themselves.
    """

    taken: set[str] = field(default_factory=set)

    @classmethod
    def besides(cls, taken: Iterable[str]) -> Names:
        return cls({name.lower() for name in taken})

    def name(self, text: str, otherwise: str) -> str:
        """A valid name close to `text`, or to `otherwise` if `text` has no letter or digit."""
        plain = _plain(text) or otherwise
        name, number = plain, 1
        while name.lower() in self.taken:
            number += 1
            name = f"{plain[: LONGEST_NAME - 1 - len(str(number))]}-{number}"
        self.taken.add(name.lower())
        return name


def _plain(text: str) -> str:
    """The text with hyphens instead of other characters. Dots are replaced, too: TOML would split a key there.

    An underscore is replaced as well, because a scenario's name has it instead of a dot.
    """
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:LONGEST_NAME].strip("-")


def show(text: str, longest: int = 240) -> str:
    """Text of a host on one line of a comment or a terminal: without control characters, and not longer than this."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


_LIST = read_script("harness.features.init", "list_disks.sh")
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
    listed = list(_parse_listing(runner.run(["sh", "-s"], stdin=_LIST, deadline=60).stdout))[:_MOST_DISKS]
    facts = _read_facts(runner, [disk.name for disk in listed])
    sees_all = is_root(runner)
    free: list[DiskOffer] = []
    used: list[NotOffered] = []
    for disk in listed:
        known = facts.get(disk.name)
        verdict: DiskOffer | str
        try:
            verdict = _judge(runner, disk, known, names, more if sees_all else _report_unknown_uses)
        except HarnessError as error:
            verdict = error.message
        if isinstance(verdict, DiskOffer):
            free.append(verdict)
        else:
            used.append(NotOffered(_describe_disk(disk, known), verdict))
    return free, used


def is_root(runner: Runner) -> bool:
    """Whether commands run as root. Others do not see the files that processes of root have open."""
    return runner.run(["id", "-u"], deadline=30).stdout.strip() == "0"


def _report_unknown_uses(_disk: DiskById) -> Sequence[str]:
    return ["only root can see everything that uses it"]


def _parse_listing(printed: str) -> Iterator[_Listed]:
    listed: list[tuple[str, dict[str, list[str]]]] = []
    for line in printed.splitlines():
        key, _, value = line.partition("\t")
        if key == "disk" and _KERNEL_NAME.fullmatch(value):
            listed.append((value, {"serial": [], "link": []}))
        elif listed and key in listed[-1][1]:
            listed[-1][1][key].append(value)
    for name, of_disk in listed:
        yield _Listed(name, tuple(of_disk["serial"]), tuple(of_disk["link"]))


def _judge(runner: Runner, disk: _Listed, facts: DiskFacts | None, names: Names, more: MoreUses) -> DiskOffer | str:
    """The disk, or the reasons against writing to it, in words."""
    evidence = inspect(runner, disk.device)
    serial = _choose_serial(disk, evidence)
    link = _choose_link(disk, serial)
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
        names.name(_read_model(facts) or disk.name, "disk"),
        link,
        serial,
        disk.device,
        _read_model(facts),
        facts.size_bytes if facts else None,
        facts.disk_class if facts else None,
    )


def _choose_serial(disk: _Listed, evidence: DiskEvidence | None) -> str | None:
    """A serial number that the guard finds as well; preferably the one that docs/lab.md names."""
    known = evidence.serials if evidence else ()
    preferred = [serial for serial in disk.serials if serial in known]
    valid = [serial_ for serial_ in (*preferred, *sorted(known, key=len)) if _is_valid(_SERIAL, serial_)]
    return next(iter(valid), None)


def _choose_link(disk: _Listed, serial: str | None) -> str | None:
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


def _read_facts(runner: Runner, disks: Sequence[str]) -> dict[str, DiskFacts]:
    """What the kernel knows of the disks; nothing if the host has no perl, which only describes them here."""
    try:
        return read_disks(runner, disks)
    except HarnessError:
        return {}


def _read_model(facts: DiskFacts | None) -> str | None:
    return facts.name if facts else None


def _describe_disk(disk: _Listed, facts: DiskFacts | None) -> str:
    size = format_size(facts.size_bytes) if facts and facts.size_bytes else ""
    about = ", ".join(part for part in (_read_model(facts) or "", size) if part)
    return f"{disk.device} ({about})" if about else disk.device
