"""The permission to write. Every command that destroys data needs it, and only this module grants or refuses it.

It reads the evidence about a disk from its host. Each probe has one of three results: found, not found, could not tell.
The last one is evidence as well.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from harness.errors import HostError, SafetyError
from harness.files import read_script
from harness.lab.created import Entry
from harness.lab.inventory import AnyDisk, DiskByFile, DiskById, DiskByStorage, DiskSpec
from harness.lab.pin import (
    FACTS,
    LEFT_DIRECTORY,
    BlockPin,
    FilePin,
    Pin,
    directory_pin,
    read_partition,
    read_pins,
    run_pinned,
)
from harness.lab.transport.base import Completed, Runner, failed
from harness.untrusted import parse_json, reading

SAMPLE_BYTES = 65536
"""Bytes of each sample that is read."""
SAMPLES = 64
"""Samples at random positions, not at the ends. If a share p of the disk holds data, all miss it with (1 - p)^64."""
WHOLE_BYTES = 128 << 20
"""A disk of this size or less is read as a whole."""
END_BYTES = 1 << 20
"""Bytes at each end of a disk that are all read, because most formats have their signatures there."""

SAMPLED = read_script(
    "harness.lab.guard",
    "sample_disk.sh",
    SAMPLE_BYTES=SAMPLE_BYTES,
    WHOLE_BYTES=WHOLE_BYTES,
    LEFT_DIRECTORY=LEFT_DIRECTORY,
)

INSPECT = FACTS + SAMPLED + read_script("harness.lab.guard", "inspect_disk.sh")

INSPECT_SECONDS = 120.0

Contents = Literal["blank", "left", "data", "unknown"]
"""Samples of a disk: all zero; unchanged since a run, with zeros at both ends; anything else; or not readable."""


@dataclass(frozen=True, slots=True)
class DiskEvidence:
    """The evidence about a disk.

    Each tuple of texts names what was found, and is empty if the probe found nothing. `unknown` maps each probe
    without a result to the reason.
    """

    pin: BlockPin
    serials: tuple[str, ...]
    backing_file: str
    read_only: bool
    is_whole_disk: bool
    is_root: bool = False
    mounts: tuple[str, ...] = ()
    swaps: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    """Other devices with the same WWID, serial number and size: the same disk by another path."""
    users: tuple[str, ...] = ()
    """Processes that have the disk or a partition of it open, in any namespace."""
    claims: tuple[str, ...] = ()
    """Devices of the disk to which the kernel does not grant exclusive access."""
    definitions: tuple[str, ...] = ()
    """Files of libvirt and Proxmox VE that define a guest or a storage with the disk."""
    partitions: tuple[str, ...] = ()
    """Kernel names of the disk's partitions."""
    signatures: tuple[str, ...] = ()
    """`DEVICE: TYPE` of every signature on the disk and its partitions."""
    contents: Contents = "blank"
    unknown: Mapping[str, str] = field(default_factory=dict)


def inspect(runner: Runner, device: str) -> DiskEvidence | None:
    """The current evidence about `device`; None if there is no such block device. Raises HostError."""
    # Random each time: data between the samples of one inspection may be found by the next one.
    ends = range(0, END_BYTES, SAMPLE_BYTES)
    inside = (f"inside{random.SystemRandom().random()}" for _ in range(SAMPLES))
    positions = [*(f"ends{at}" for at in ends), *(f"ends{-at - SAMPLE_BYTES}" for at in ends), *inside]
    printed = runner.run(["sh", "-c", INSPECT, "sh", device, *positions], deadline=INSPECT_SECONDS).stdout
    answers = _Answers.of(printed)
    if "missing" in answers.found:
        return None
    source = f"{runner.name}: the evidence about {device}"
    with reading(source, hint="install util-linux 2.33 or newer there (lsblk, wipefs, findmnt)"):
        return _parse_evidence(answers, source)


@dataclass(frozen=True, slots=True)
class _Answers:
    """The results of probes by name, and the reasons of probes without a result."""

    found: Mapping[str, str]
    unknown: Mapping[str, str]

    @classmethod
    def of(cls, printed: str) -> _Answers:
        found: dict[str, str] = {}
        unknown: dict[str, str] = {}
        for line in printed.splitlines():
            name, _, rest = line.partition("\t")
            status, _, text = rest.partition("\t")
            (found if status == "0" else unknown)[name] = unquote(text)
        return cls(found, unknown)

    def lines(self, name: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(line for line in self.found.get(name, "").splitlines() if line))


PROBES = (
    "tools",
    "block",
    "mounts",
    "swaps",
    "holders",
    "paths",
    "roots",
    "signatures",
    "domains",
    "proxmox",
    "users",
    "claim",
    "contents",
)
"""All of them must answer. A missing answer counts as a probe without a result."""


def _parse_evidence(answers: _Answers, source: str) -> DiskEvidence:
    texts = answers.found
    number, diskseq, sectors, identity = texts["facts"].split("\t")
    pin = BlockPin(texts["device"], number, diskseq, int(sectors), identity)
    unknown = dict(answers.unknown)
    unknown |= {name: "it gave no answer" for name in PROBES if name not in texts and name not in unknown}
    node: dict[str, Any] = parse_json(texts["block"], source)["blockdevices"][0] if "block" in texts else {}
    below = _list_descendants(node)
    parts = [device for device in below if device["type"] == "part"]
    signatures = parse_json(texts.get("signatures") or "{}", source).get("signatures", ())
    kind = str(node.get("type", ""))
    return DiskEvidence(
        pin=pin,
        serials=tuple(dict.fromkeys(texts["serials"].split())),
        backing_file=texts["backing"],
        read_only=bool(node.get("ro")),
        # On device-mapper (a volume, a multipath) the kernel makes no partitions.
        is_whole_disk=kind in ("disk", "loop") or kind.startswith("raid"),
        is_root=bool({pin.name, *(device["kname"] for device in below)} & set(answers.lines("roots"))),
        mounts=answers.lines("mounts"),
        swaps=answers.lines("swaps"),
        holders=answers.lines("holders"),
        paths=answers.lines("paths"),
        users=answers.lines("users"),
        claims=answers.lines("claim"),
        definitions=answers.lines("domains") + answers.lines("proxmox"),
        partitions=tuple(part["kname"] for part in parts),
        signatures=tuple(dict.fromkeys(f"{signature['device']}: {signature['type']}" for signature in signatures)),
        contents=_parse_contents(texts.get("contents"), texts.get("left")),
        unknown=unknown,
    )


def _parse_contents(counted: str | None, left: str | None) -> Contents:
    if counted is None:
        return "unknown"
    ends, inside = (int(count) for count in counted.split())
    if ends:
        return "data"
    if not inside:
        return "blank"
    return "left" if left == "same" else "data"


def _list_descendants(node: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    children: list[dict[str, Any]] = node.get("children", [])
    return [device for child in children for device in (child, *_list_descendants(child))]


NO_DEVICE = "the host has no such block device"
NOT_RELEASED = "its owner did not write `destroy = true` in the lab file"


def refusals(spec: DiskSpec, evidence: DiskEvidence | None) -> list[str]:
    """All reasons against writing to this disk; empty if it may be written to."""
    if evidence is None:
        return [NO_DEVICE]
    return [
        *_find_others(spec, evidence),
        *uses(evidence),
        *_judge_contents(spec, evidence),
        *_list_unanswered(evidence),
    ]


_MAPPED = re.compile(r"(\S+) by \S+ \((.+)\), mpath")


def uses(evidence: DiskEvidence) -> Iterator[str]:
    """Everything that uses the disk now, or will use it when it is started."""
    if evidence.is_root:
        yield "the host's root file system is on it"
    for mount in evidence.mounts:
        yield f"{mount} is mounted"
    for swap in evidence.swaps:
        yield f"{swap} is used as swap"
    for holder in evidence.holders:
        mapped = _MAPPED.fullmatch(holder)
        yield f"{mapped[1]} is a path of the multipath map {mapped[2]}" if mapped else f"{holder} is in use"
    for path in evidence.paths:
        yield f"it is the same disk as {path}, which others may use, and multipath is not supported"
    for user in evidence.users:
        yield f"{user} is open"
    if not any((evidence.is_root, evidence.mounts, evidence.swaps, evidence.holders, evidence.users)):
        # A user in the kernel that no list shows: a target of NVMe over fabrics or iSCSI, DRBD, a ZFS pool.
        for claim in evidence.claims:
            yield f"{claim}: the kernel does not grant exclusive access"
    for definition in evidence.definitions:
        yield f"a virtual machine or a storage is defined with it: {definition}"


def _find_others(spec: DiskSpec, evidence: DiskEvidence) -> Iterator[str]:
    if not spec.destroy:
        yield NOT_RELEASED
    if isinstance(spec, DiskById) and spec.serial not in evidence.serials:
        yield f"its serial number is {' or '.join(evidence.serials) or 'unknown'}, not {spec.serial}"
    if isinstance(spec, DiskByFile) and evidence.backing_file != str(spec.file):
        yield f"its backing file is {evidence.backing_file or 'none'}, not {spec.file}"
    if any(serial.startswith("mpath-") for serial in evidence.serials):
        yield "it is a multipath map, and multipath is not supported"
    elif not evidence.is_whole_disk:
        yield "it is not a whole disk"
    if evidence.read_only:
        yield "it is read-only"


def _judge_contents(spec: DiskSpec, evidence: DiskEvidence) -> Iterator[str]:
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


def _list_unanswered(evidence: DiskEvidence) -> Iterator[str]:
    for probe, why in evidence.unknown.items():
        yield f"the probe `{probe}` could not tell: {'; '.join(why.split(chr(10))).strip('; ') or 'it printed nothing'}"


_ISSUER = object()

_NOT_ON = FACTS + read_script("harness.lab.guard", "list_foreign_devices.sh")


_OPENED = "/proc/self/fd/3"
OPEN = 'exec 3<>"$1" && shift && exec "$@"'
"""$1: a file; then a command, which has it as descriptor 3."""


class Writable:
    """A block device or a file of a host that this run may overwrite, pinned to that one device.

    `disks` holds the serial numbers of the disks under test that it is on; it is empty if it is on none. `partuuid` is
    the UUID that the run gave a partition; empty for anything else. Only the functions of `harness.lab.guard` can
    create it: other code gets a TypeError.
    """

    __slots__ = ("disks", "partuuid", "pin", "runner")

    def __init__(self, runner: Runner, pin: Pin, disks: Sequence[str], partuuid: str = "", *, issuer: object) -> None:
        if issuer is not _ISSUER:
            raise TypeError("only the guard issues a permission to write")
        self.runner = runner
        self.pin = pin
        self.disks = tuple(disks)
        self.partuuid = partuuid

    @property
    def path(self) -> str:
        """The kernel's path of the device, or the path of the file."""
        return self.pin.path

    @property
    def name(self) -> str:
        """The kernel's name of the device, or the name of the file."""
        return self.path.rpartition("/")[2]

    @property
    def size_bytes(self) -> int:
        """The size of a block device. Raises SafetyError for a file, because its size may change."""
        if not isinstance(self.pin, BlockPin):
            raise SafetyError(f"{self.runner.name}: {self.path} is a file, not a block device")
        return self.pin.size_bytes

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        """Run a command that may write to the device, if it is still the same device. Raises SafetyError, HostError."""
        return run_all([self], argv, deadline=deadline, stdin=stdin, check=check)

    def run_on_file(self, argv: Sequence[str], path: str, *, deadline: float) -> Completed:
        """The same for a command that writes to the file `path` on the device, or in the directory. It may create it.

        The command gets the file that is there when it begins: it does not write to one that somebody puts in its place
        while it goes on, perhaps after its run was killed. `argv` has the path as a word, or after `=`.
        """
        opened = [re.sub(f"(^|=){re.escape(path)}$", rf"\1{_OPENED}", word) for word in argv]
        done = run_all([self], ["sh", "-c", OPEN, "sh", path, *opened], deadline=deadline, check=False)
        done = replace(done, argv=tuple(argv), stderr=done.stderr.replace(_OPENED, path))
        if done.status != 0:
            raise failed(self.runner.name, done)
        return done

    def __repr__(self) -> str:
        return f"Writable({self.path})"


def run_all(
    devices: Sequence[Writable],
    argv: Sequence[str],
    *,
    deadline: float,
    stdin: str | bytes | None = None,
    check: bool = True,
) -> Completed:
    """Run a command that may write to several devices, if all are still the same. Raises SafetyError, HostError.

    A partition that only has a new number in the kernel is the same.
    """

    def run() -> Completed:
        pins = [device.pin for device in devices]
        return run_pinned(devices[0].runner, pins, argv, deadline=deadline, stdin=stdin, check=check)

    try:
        return run()
    except SafetyError:
        # The command was not started.
        if sum(_find_renumbered(device) for device in devices) == 0:
            raise
    return run()


def _find_renumbered(device: Writable) -> bool:
    """Whether this is a partition of a run that now has another number. Then its permission is renewed.

    Each time that the kernel reads a partition table again, it drops and adds all partitions of the disk. Those of NVMe
    disks have dynamic numbers, so each can get the number of another one. PVE writes the type of a partition (sgdisk)
    before it makes a storage on it. Disk, start, size and UUID must be the same.
    """
    before = device.pin
    if not device.partuuid or not isinstance(before, BlockPin):
        return False
    try:
        now, partuuid = read_partition(device.runner, before.path)
    except HostError:
        return False
    if not isinstance(now, BlockPin) or now == before or partuuid.lower() != device.partuuid.lower():
        return False
    if replace(now, number=before.number) != before:
        return False
    renew(device, now)
    return True


def issue(runner: Runner, pin: Pin, disks: Sequence[str], partuuid: str = "") -> Writable:
    """The permission to write to the pinned device or file. Only the guard may call this."""
    return Writable(runner, pin, disks, partuuid, issuer=_ISSUER)


def renew(device: Writable, pin: Pin) -> None:
    """Change the pin of the same device, which has a new number in the kernel. Only the guard may call this."""
    device.pin = pin


def require_leading_to(devices: Mapping[str, Writable]) -> None:
    """Raise SafetyError if one of these paths, which the guest's configuration uses, does not lead to its device."""
    for path, device in devices.items():
        leads = ["sh", "-c", '[ "$(readlink -e "$1")" = "$2" ]', "sh", path, device.path]
        if device.run(leads, deadline=30, check=False).status != 0:
            raise SafetyError(
                f"{device.runner.name}: {path} no longer leads to {device.path}, which the guard has checked",
                hint="find out which device was swapped or renamed there",
            )


def built_on(bases: Sequence[Writable], paths: Sequence[str], partuuids: Sequence[str] = ()) -> list[Writable]:
    """The permission for devices at `paths` that were built on `bases`: partitions, volumes, arrays, files.

    The host checks that each is only on `bases`. A base can also be a directory that the run has created, for the files
    in it. `partuuids` are the UUIDs of partitions. Raises SafetyError if one is elsewhere, HostError if one is missing.
    """
    runner = bases[0].runner
    disks = tuple(dict.fromkeys(disk for base in bases for disk in base.disks))
    pins = read_pins(runner, paths)
    if isinstance(directory := bases[0].pin, FilePin):
        _require_inside(runner, directory, pins)
        return [issue(runner, pin, disks) for pin in pins]
    names = [f"{_parse_major_minor(pin.device)}" if isinstance(pin, FilePin) else pin.name for pin in pins]
    words = [str(len(bases)), *(base.name for base in bases), *names]
    elsewhere = runner.run(["sh", "-c", _NOT_ON, "sh", *words], deadline=30).stdout.split()
    if elsewhere:
        wrong = ", ".join(path for path, name in zip(paths, names, strict=True) if name in elsewhere)
        raise SafetyError(
            f"{runner.name}: {wrong} will not be written to: not on {', '.join(base.path for base in bases)} only",
            hint="another device there has the same name: find it with lsblk, and remove or rename it",
        )
    uuids = partuuids or [""] * len(pins)
    return [issue(runner, pin, disks, partuuid) for pin, partuuid in zip(pins, uuids, strict=True)]


def _require_inside(runner: Runner, directory: FilePin, pins: Sequence[Pin]) -> None:
    for pin in pins:
        inside = isinstance(pin, FilePin) and pin.device == directory.device
        if not inside or pin.path.rpartition("/")[0] != directory.path:
            raise SafetyError(
                f"{runner.name}: {pin.path} will not be written to: it is not a file in {directory.path}",
                hint="somebody has put a link or a mount there since this run created the directory: find out who",
            )


def created(runner: Runner, entry: Entry, paths: Sequence[str]) -> list[Writable]:
    """The permission for volumes that this run has just created on a storage in use.

    `entry` is their record in the creation log, which was written before. Raises HostError if a path is missing.
    """
    return [issue(runner, pin, tuple(entry.disks)) for pin in read_pins(runner, paths)]


def created_directory(runner: Runner, entry: Entry, path: str) -> Writable:
    """The same for a directory: the permission for what the run puts into it."""
    return issue(runner, directory_pin(runner, path), tuple(entry.disks))


def _parse_major_minor(device: int) -> str:
    """A device number from stat (Linux, 64 bits), in the form of sysfs."""
    major = ((device >> 8) & 0xFFF) | ((device >> 32) & ~0xFFF)
    minor = (device & 0xFF) | ((device >> 12) & ~0xFF)
    return f"{major}:{minor}"


def require_writable(runner: Runner, spec: DiskSpec, device: str) -> Writable:
    """The permission to write to the disk at `device`. Raises SafetyError with all reasons against it, HostError."""
    evidence = inspect(runner, device)
    reasons = refusals(_make_kernel_number(runner, spec, evidence), evidence)
    if reasons or evidence is None:
        raise SafetyError(
            f"{runner.name}: disk {spec.name}, {spec.identity}, will not be written to: " + "; ".join(reasons),
            hint=_choose_remedy(spec, evidence, reasons),
        )
    return issue(runner, evidence.pin, [serial_of(spec)])


def _make_kernel_number(runner: Runner, spec: DiskSpec, evidence: DiskEvidence | None) -> DiskSpec:
    """The disk, with its file by the path that the kernel reports if the lab file has another path of the same file."""
    if not isinstance(spec, DiskByFile) or evidence is None or evidence.backing_file in ("", str(spec.file)):
        return spec
    same = ["sh", "-c", '[ "$1" -ef "$2" ]', "sh", str(spec.file), evidence.backing_file]
    if runner.run(same, deadline=20, check=False).status != 0:
        return spec
    return replace(spec, file=Path(evidence.backing_file))


@dataclass(frozen=True, slots=True)
class Loan:
    """A disk that is passed through to a guest by PCI. These facts identify it when the guest returns it."""

    device: Writable
    link: str
    table: str


def lend(device: Writable, link: str) -> Loan:
    """Check the disk at `link` before it is passed through to a guest. SafetyError if the host itself uses it."""
    runner = device.runner
    evidence = inspect(runner, link)
    if evidence is None or evidence.pin != device.pin:
        raise SafetyError(
            f"{runner.name}: {link} does not lead to the disk that was checked, but to {evidence and evidence.pin}"
        )
    if reasons := [*uses(evidence)]:
        raise SafetyError(
            f"{runner.name}: {link} will not be passed through to a guest: {'; '.join(reasons)}",
            hint="a disk that is passed through cannot be used by another mode at the same time",
        )
    return Loan(device, link, _read_table(runner, evidence.pin))


def take_back(loan: Loan) -> None:
    """Renew the permission for a disk that was passed through, because the kernel has given it a new number.

    It is the same disk if its size, its serial number and the UUID of the run's partition table are the same. Raises
    SafetyError, HostError.
    """
    device, before = loan.device, loan.device.pin
    (pin,) = read_pins(device.runner, [loan.link])
    if isinstance(pin, BlockPin) and isinstance(before, BlockPin):
        then = (before.sectors, before.identity, loan.table)
        now = (pin.sectors, pin.identity, _read_table(device.runner, pin))
        if now == then:
            renew(device, pin)
            return
    raise SafetyError(
        f"{device.runner.name}: {loan.link} is not the disk that the guest had: it was {before.expected}, and it is "
        f"{pin.expected} now",
        hint="see dmesg there",
    )


def _read_table(runner: Runner, pin: BlockPin) -> str:
    command = ["blkid", "-p", "-s", "PTUUID", "-o", "value", pin.path]
    return run_pinned(runner, [pin], command, deadline=30, check=False).stdout.strip()


def serial_of(spec: AnyDisk) -> str:
    """The name of the disk or storage in the creation log."""
    if isinstance(spec, DiskByStorage):
        return spec.identity
    return spec.serial if isinstance(spec, DiskById) else str(spec.file)


def _choose_remedy(spec: DiskSpec, evidence: DiskEvidence | None, reasons: list[str]) -> str:
    if evidence is None:
        return "look for the disk with: ls -l /dev/disk/by-id/, and correct its id in the lab file"
    if reasons == [NOT_RELEASED]:
        return f"add it under disk.{spec.name} if nobody needs the data on that disk"
    if any("serial number" in reason for reason in reasons):
        return "the link points to a disk with another serial number: correct id and serial in the lab file"
    if any("multipath" in reason for reason in reasons):
        return (
            "measure a disk that the host reaches by one path: log out of the other paths, flush the map (multipath -f "
            "NAME), and add its WWID to the blacklist in /etc/multipath.conf"
        )
    return _choose_remedy_for_contents(spec, evidence, reasons)


def _choose_remedy_for_contents(spec: DiskSpec, evidence: DiskEvidence, reasons: list[str]) -> str:
    if evidence.contents == "data" and not evidence.signatures and len(reasons) == 1:
        if isinstance(spec, DiskById):
            return (
                f"if nobody needs that data, zero it (blkdiscard -z {evidence.pin.path}), or write "
                f'overwrite_data = "{spec.serial}" under disk.{spec.name} in the lab file'
            )
        return f"if nobody needs that data, remove the file {spec.identity.rpartition(' ')[2]}"
    if any(signature.endswith(": gpt") for signature in evidence.signatures):
        return (
            "if a killed run left it, virt-overhead reap removes it; else make sure that nobody needs the data on "
            f"{evidence.pin.path}, and remove it (wipefs -a), or name another disk"
        )
    return (
        f"make sure that nobody needs the data on {evidence.pin.path}, then free it (umount, wipefs -a), or name "
        "another disk"
    )
