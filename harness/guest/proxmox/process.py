"""The QEMU process of a VM on its node: the effective options of a drive."""

from __future__ import annotations

import shlex
from dataclasses import replace

from harness.errors import GuestError
from harness.guest.proxmox.resolved import Resolved, resolved
from harness.guest.qemu_process import Inspected, look_at_process, parse_inspected
from harness.lab.transport.base import Runner
from harness.untrusted import reading

PID_FILE = "/var/run/qemu-server/{vmid}.pid"


def read_process(runner: Runner, vmid: int) -> Inspected:
    """The process of a running VM. Raises GuestError if neither the process nor PVE shows its arguments.

    If the process cannot be read, the arguments come from `qm showcmd`, which prints how PVE would start it.
    """
    pid_file = PID_FILE.format(vmid=vmid)
    done = look_at_process(runner, pid_file, would_be=["qm", "showcmd", str(vmid)])
    with reading(f"{runner.name}: the command line of QEMU, VM {vmid},", GuestError):
        process = parse_inspected(done.stdout)
    if not process.arguments:
        raise GuestError(
            f"{runner.name}: neither {pid_file} nor `qm showcmd {vmid}` shows how QEMU was started: "
            f"{done.stderr.strip()}"
        )
    return process


def with_plugged(runner: Runner, vmid: int, process: Inspected) -> Inspected:
    """The process with the arguments that `qm showcmd` prints: drives that were plugged in later are only there.

    The engines are those of the process itself.
    """
    printed = runner.run(["qm", "showcmd", str(vmid)], deadline=60).stdout
    with reading(f"{runner.name}: the output of qm showcmd {vmid}", GuestError):
        return replace(process, arguments=tuple(shlex.split(printed)))


def drive_of(process: Inspected, key: str) -> Resolved:
    """QEMU's effective options of the drive. Raises GuestError if it has no such drive."""
    with reading(f"QEMU's arguments for the drive {key}", GuestError):
        found = resolved(process.arguments, key)
    if found is None:
        raise GuestError(f"QEMU was started without the drive {key}")
    return found
