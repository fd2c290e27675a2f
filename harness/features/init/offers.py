"""What a host offers: storages with room for volumes, and disks, free or in use. It only reads; the guard decides."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from pydantic import TypeAdapter, ValidationError

from harness.config.names import LONGEST_NAME
from harness.errors import HarnessError, HostError, Unsupported
from harness.feature import FeatureStorage, list_brought
from harness.files import read_script
from harness.lab.facts import read_disks
from harness.lab.guard import DiskEvidence, inspect, refusals
from harness.lab.guard.room import free_bytes
from harness.lab.inventory import DiskById, StorageKey, storage_kinds
from harness.lab.lab_schema import DiskLink, Word, storage_keys
from harness.lab.pin import TAG
from harness.lab.storages import FILESYSTEMS, Place, look_at, reserve_bytes
from harness.lab.transport.base import Completed, Runner
from harness.model.disk import DiskClass, DiskFacts
from harness.model.workloads import PROFILES
from harness.units import format_size
from harness.untrusted import first_problem, parse_json, reading


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


LEAST_BYTES = 2 * min(profile.span for profile in PROFILES)
"""The least that a run fills: the volumes of the baseline and of one mode, in the smallest profile."""
OF_A_RUN = "a run of virt-overhead created it; `virt-overhead reap` removes it"
MOST_CANDIDATES = 200
"""Of each kind. Each is looked at with commands of its own."""

IMAGES = "/var/lib/libvirt/images"
"""libvirt's directory for images. A new installation has it without a pool."""
_SYSTEM = re.compile(r"/((boot(/efi)?|efi|etc|home|opt|root|tmp|usr(/local)?|var(/(cache|lib|log|tmp))?))?")
"""Mount points of the system itself, whose file systems are not meant for virtual machines."""
_OF_OTHERS = re.compile(r"/(dev|proc|run|snap|sys|var/snap|var/lib/(containers|docker|kubelet))/.*")
"""Below these directories, programs mount file systems for themselves."""

# Prints the first file that looks like an image of a virtual machine, not far below a directory.
_WITHIN = ("timeout", "20")
_LOOKS_LIKE_IMAGE = (
    "-maxdepth",
    "3",
    "-xdev",
    "-type",
    "f",
    "-regex",
    r".*\.\(qcow2\|raw\|img\|vmdk\)",
    "-print",
    "-quit",
)

# $1...: a command. The status is 127 if it is not installed.
_IF_INSTALLED = 'PATH="$PATH:/usr/sbin:/sbin"; command -v "$1" >/dev/null || exit 127; exec "$@"'
_NOT_INSTALLED = 127


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A place that may be a storage, and from where it is known."""

    place: Place
    at: str
    note: str = ""
    called: str = ""
    """The name that its owner gave it, if it is not where it is."""
    for_vms: bool = True
    """Whether it is meant for virtual machines. A mounted file system may be for anything else, such as backups."""

    @property
    def words(self) -> str:
        return f"{storage_kinds()[self.place].words} {self.at}"


def find_storages(runner: Runner, names: Names, path: str | None = None) -> tuple[list[StorageOffer], list[NotOffered]]:
    """The storages that can be measured without loss, and those that cannot with the reason. Raises HostError.

    `path` is a directory that its owner named, besides those that are found.
    """
    refused: list[NotOffered] = []
    candidates = [*_find_lvm(runner, refused), *_find_zfs(runner, refused)]
    candidates += _find_pools(runner, refused)
    candidates += _find_of_features(runner, refused)
    candidates += _find_directories(runner, candidates, refused)
    candidates += [_Candidate("directory", path)] if path is not None else []
    offers: list[StorageOffer] = []
    merged: dict[tuple[str, str], _Candidate] = {}
    for candidate in candidates:
        first = merged.setdefault((candidate.place, candidate.at), candidate)
        if candidate.note and not first.note:
            merged[candidate.place, candidate.at] = replace(first, note=candidate.note, called=candidate.called)
    for candidate in merged.values():
        offer = _offer(runner, candidate, names)
        (refused if isinstance(offer, NotOffered) else offers).append(offer)  # type: ignore[arg-type] # its own list
    return offers, refused


def _offer(runner: Runner, candidate: _Candidate, names: Names) -> StorageOffer | NotOffered:
    place, at = candidate.place, candidate.at
    try:
        storage_keys().model_validate({place: at})
        if at.startswith(f"{TAG}-"):
            return NotOffered(candidate.words, OF_A_RUN)
        place_facts = look_at(runner, place, at)
        free, total = free_bytes(runner, place_facts)
    except ValidationError as error:
        return NotOffered(candidate.words, f"a lab file cannot name it: {first_problem(error)}")
    except HarnessError as error:
        return NotOffered(candidate.words, error.message.removeprefix(f"{runner.name}: "))
    usable = max(free - reserve_bytes(total), 0)
    if usable < LEAST_BYTES:
        return NotOffered(candidate.words, explain_too_little(free, total))
    notes = [note for note in (place_facts.filesystem, candidate.note) if note]
    name = names.name(candidate.called or at, "storage")
    return StorageOffer(name, place, at, place_facts.layouts, free, usable, tuple(notes), candidate.for_vms)


def explain_too_little(free: int, total: int) -> str:
    """Why a storage with so many free bytes is not offered."""
    reserve = format_size(reserve_bytes(total))
    return f"{format_size(free)} are free, and {reserve} of them must stay free for others"


def _run(runner: Runner, *argv: str) -> Completed:
    return runner.run(["sh", "-c", _IF_INSTALLED, "sh", *argv], deadline=60, check=False)


def _list_output(runner: Runner, refused: list[NotOffered], what: str, *argv: str) -> list[str]:
    """What the command prints, in lines. If it fails, `refused` says so, because then nothing is known of `what`."""
    done = _run(runner, *argv)
    if done.status == 0:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        return _take_first(lines, what, refused)
    if done.status != _NOT_INSTALLED:
        refused.append(NotOffered(what, f"{argv[0]} could not tell: {_explain_failure(done)}"))
    return []


def _take_first(names: list[str], what: str, refused: list[NotOffered]) -> list[str]:
    if len(names) > MOST_CANDIDATES:
        refused.append(
            NotOffered(what, f"the host has {len(names)}, and only the first {MOST_CANDIDATES} were looked at")
        )
    return names[:MOST_CANDIDATES]


def _explain_failure(done: Completed) -> str:
    """The end of what a command reported: programs print the cause last, and warnings before it."""
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return "; ".join(said[-2:]) or f"status {done.status}"


def _find_lvm(runner: Runner, refused: list[NotOffered]) -> Iterator[_Candidate]:
    listing = ("--noheadings", "--separator", "/", "-o")
    for name in _list_output(runner, refused, "volume groups", "vgs", *listing, "vg_name"):
        yield _Candidate("volume_group", name)
    pools = ("vg_name,lv_name", "--select", "segtype=thin-pool")
    for name in _list_output(runner, refused, "thin pools", "lvs", *listing, *pools):
        yield _Candidate("thin_pool", name)


def _find_zfs(runner: Runner, refused: list[NotOffered]) -> Iterator[_Candidate]:
    """The datasets that have volumes in them, as those of virtual machines; of a pool without volumes, the pool."""
    listed = _list_output(
        runner, refused, "ZFS datasets", "zfs", "list", "-H", "-t", "filesystem,volume", "-o", "name,type"
    )
    rows = [line.partition("\t")[::2] for line in listed]
    parents = [name.rpartition("/")[0] for name, kind in rows if kind == "volume"]
    pools = [name for name, kind in rows if kind == "filesystem" and "/" not in name]
    empty = [pool for pool in pools if not any(parent.partition("/")[0] == pool for parent in parents)]
    for name in dict.fromkeys([*parents, *empty]):
        yield _Candidate("dataset", name, "has volumes already" if name in parents else "")


def _find_pools(runner: Runner, refused: list[NotOffered]) -> Iterator[_Candidate]:
    """The places of libvirt's active pools. The read-only connection needs no root."""
    from harness.guest.libvirt.backend import parse_pool  # noqa: PLC0415 - nodes of Proxmox VE need no libvirt

    virsh = ("virsh", "--connect", "qemu:///system", "--readonly")
    for name in _list_output(runner, refused, "libvirt pools", *virsh, "pool-list", "--name"):
        what = f"libvirt pool {name}"
        done = _run(runner, *virsh, "pool-dumpxml", "--pool", name)
        if done.status != 0:
            refused.append(NotOffered(what, f"libvirt does not describe it: {_explain_failure(done)}"))
            continue
        try:
            with reading(what):
                place, at = parse_pool(done.stdout, what)
        except Unsupported as error:
            refused.append(NotOffered(what, f"{error.message}; {error.hint or 'see virsh pool-dumpxml'}"))
        except HarnessError as error:
            refused.append(NotOffered(what, error.message))
        else:
            yield _Candidate(place, at, what, name)


def _find_of_features(runner: Runner, refused: list[NotOffered]) -> Iterator[_Candidate]:
    for storage in list_brought(FeatureStorage):
        try:
            places = [str(at) for at in storage.find(runner)]
        except HostError as error:
            refused.append(NotOffered(f"storages of the kind {storage.kind.words}", error.message))
        else:
            for at in _take_first(places, f"storages of the kind {storage.kind.words}", refused):
                yield _Candidate(storage.key, at)


def _find_directories(runner: Runner, known: Sequence[_Candidate], refused: list[NotOffered]) -> Iterator[_Candidate]:
    """libvirt's directory for images, and mounted file systems that are not the system's. Each file system once."""
    mounts = _read_mounts(runner, refused)
    directories = [candidate.at for candidate in known if candidate.place == "directory"]
    if IMAGES not in directories and runner.run(["test", "-d", IMAGES], deadline=60, check=False).status == 0:
        directories.append(IMAGES)
        yield _Candidate("directory", IMAGES)
    sources = {mounts[at] for directory in directories if (at := _find_mount(directory, mounts)) is not None}
    candidates = [mount for mount in mounts if not _SYSTEM.fullmatch(mount) and not _OF_OTHERS.fullmatch(mount)]
    for target in _take_first(candidates, "mounted file systems", refused):
        if (source := mounts[target]) not in sources:
            sources.add(source)
            for_vms = _run(runner, *_WITHIN, "find", target, *_LOOKS_LIKE_IMAGE).stdout.strip() != ""
            yield _Candidate("directory", target, f"mounted from {source}", for_vms=for_vms)


def _read_mounts(runner: Runner, refused: list[NotOffered]) -> dict[str, str]:
    """What is mounted where, of the file systems for files of virtual machines."""
    what = "mounted file systems"
    # ZFS has its datasets. A btrfs subvolume or a bind mount has its path in brackets behind the source.
    kinds = [filesystem for filesystem in FILESYSTEMS if filesystem != "zfs"]
    done = _run(runner, "findmnt", "--json", "--list", "--real", "--output", "TARGET,SOURCE,FSTYPE")
    try:
        with reading(f"{runner.name}: its mounts"):
            mounts = parse_json(done.stdout, f"{runner.name}: its mounts")["filesystems"]
            rows = [(str(mount["target"]), str(mount["source"]), str(mount["fstype"])) for mount in mounts]
    except HarnessError as error:
        refused.append(NotOffered(what, _explain_failure(done) if done.status else error.message))
        return {}
    return {target: source.partition("[")[0] for target, source, kind in rows if kind in kinds}


def _find_mount(directory: str, mounts: dict[str, str]) -> str | None:
    parents = [mount for mount in mounts if PurePosixPath(directory).is_relative_to(mount)]
    return max(parents, key=len, default=None)
