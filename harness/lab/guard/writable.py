"""The permission to write. Every command that destroys data needs it, and only this module grants or refuses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import HostError, SafetyError
from harness.lab.created import Entry
from harness.lab.guard.evidence import Evidence, inspect
from harness.lab.guard.refusals import NOT_RELEASED, refusals, uses
from harness.lab.inventory import AnyDisk, DiskByFile, DiskById, DiskSpec
from harness.lab.pin import FACTS, BlockPin, FilePin, Pin, directory_pin, read_partition, read_pins, run_pinned
from harness.lab.storage import DiskByStorage
from harness.lab.transport.base import Completed, Runner
from harness.shipped import read_script

_ISSUER = object()

_NOT_ON = FACTS + read_script("harness.lab.guard", "list_foreign_devices.sh")


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


def _make_kernel_number(runner: Runner, spec: DiskSpec, evidence: Evidence | None) -> DiskSpec:
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


def _choose_remedy(spec: DiskSpec, evidence: Evidence | None, reasons: list[str]) -> str:
    if evidence is None:
        return "look for the disk with: ls -l /dev/disk/by-id/, and correct its id in the lab file"
    if reasons == [NOT_RELEASED]:
        return f"add it under disk.{spec.name} if nobody needs the data on that disk"
    if any("serial number" in reason for reason in reasons):
        return "the link points to a disk with another serial number: correct id and serial in the lab file"
    return _choose_remedy_for_contents(spec, evidence, reasons)


def _choose_remedy_for_contents(spec: DiskSpec, evidence: Evidence, reasons: list[str]) -> str:
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
