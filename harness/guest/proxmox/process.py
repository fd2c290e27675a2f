"""The QEMU process of a VM on its node: how it really serves a drive."""

from __future__ import annotations

from harness.errors import GuestError
from harness.guest.proxmox.resolved import Resolved, resolved
from harness.guest.qemu_process import Inspected, look_at_process, parse_inspected
from harness.lab.transport.base import Runner
from harness.untrusted import reading

PID_FILE = "/var/run/qemu-server/{vmid}.pid"


def read_process(runner: Runner, vmid: int) -> Inspected:
    """The process of a running VM. GuestError where neither it nor PVE tells its arguments.

    `qm showcmd` is what PVE would start it with: the next best, where the process is out of reach.
    """
    pid_file = PID_FILE.format(vmid=vmid)
    looked = look_at_process(runner, pid_file, would_be=["qm", "showcmd", str(vmid)])
    with reading(f"{runner.name}: the command line of QEMU, VM {vmid},", GuestError):
        process = parse_inspected(looked.stdout)
    if not process.arguments:
        raise GuestError(
            f"{runner.name}: neither {pid_file} nor `qm showcmd {vmid}` tells how QEMU was started: "
            f"{looked.stderr.strip()}"
        )
    return process


def drive_of(process: Inspected, key: str) -> Resolved:
    """How QEMU serves the drive; GuestError where it has none of that name."""
    with reading(f"QEMU's arguments for the drive {key}", GuestError):
        found = resolved(process.arguments, key)
    if found is None:
        raise GuestError(f"QEMU was started without the drive {key}")
    return found
