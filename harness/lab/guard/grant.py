"""Grants or refuses the permission to write to disks, after an inspection on their host."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import SafetyError
from harness.lab.guard.evidence import Evidence, inspect
from harness.lab.guard.refusals import NOT_RELEASED, refusals, uses
from harness.lab.guard.writable import Writable, issue, renew
from harness.lab.inventory import AnyDisk, DiskByFile, DiskById, DiskSpec
from harness.lab.pin import BlockPin, read_pins, run_pinned
from harness.lab.storage import DiskByStorage
from harness.lab.transport.base import Runner


def require_writable(runner: Runner, spec: DiskSpec, device: str) -> Writable:
    """The permission to write to the disk at `device`. Raises SafetyError with all reasons against it, HostError."""
    evidence = inspect(runner, device)
    reasons = refusals(_as_of_kernel(runner, spec, evidence), evidence)
    if reasons or evidence is None:
        raise SafetyError(
            f"{runner.name}: disk {spec.name}, {spec.identity}, will not be written to: " + "; ".join(reasons),
            hint=_remedy(spec, evidence, reasons),
        )
    return issue(runner, evidence.pin, [serial_of(spec)])


def _as_of_kernel(runner: Runner, spec: DiskSpec, evidence: Evidence | None) -> DiskSpec:
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
    return Loan(device, link, _table(runner, evidence.pin))


def take_back(loan: Loan) -> None:
    """Renew the permission for a disk that was passed through, because the kernel has given it a new number.

    It is the same disk if its size, its serial number and the UUID of the run's partition table are the same. Raises
    SafetyError, HostError.
    """
    device, before = loan.device, loan.device.pin
    (pin,) = read_pins(device.runner, [loan.link])
    if isinstance(pin, BlockPin) and isinstance(before, BlockPin):
        then = (before.sectors, before.identity, loan.table)
        now = (pin.sectors, pin.identity, _table(device.runner, pin))
        if now == then:
            renew(device, pin)
            return
    raise SafetyError(
        f"{device.runner.name}: {loan.link} is not the disk that the guest had: it was {before.expected}, and it is "
        f"{pin.expected} now",
        hint="see dmesg there",
    )


def _table(runner: Runner, pin: BlockPin) -> str:
    command = ["blkid", "-p", "-s", "PTUUID", "-o", "value", pin.path]
    return run_pinned(runner, [pin], command, deadline=30, check=False).stdout.strip()


def serial_of(spec: AnyDisk) -> str:
    """The name of the disk or storage in the creation log."""
    if isinstance(spec, DiskByStorage):
        return spec.identity
    return spec.serial if isinstance(spec, DiskById) else str(spec.file)


def _remedy(spec: DiskSpec, evidence: Evidence | None, reasons: list[str]) -> str:
    if evidence is None:
        return "look for the disk with: ls -l /dev/disk/by-id/, and correct its id in the lab file"
    if reasons == [NOT_RELEASED]:
        return f"add it under disk.{spec.name} if nobody needs the data on that disk"
    if any("serial number" in reason for reason in reasons):
        return "the link points to a disk with another serial number: correct id and serial in the lab file"
    return _remedy_of_contents(spec, evidence, reasons)


def _remedy_of_contents(spec: DiskSpec, evidence: Evidence, reasons: list[str]) -> str:
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
