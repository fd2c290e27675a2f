"""The QEMU process of a VM on its node: what it was really told, and whether its AIO engine is there."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import GuestError
from harness.guest.proxmox.resolved import Resolved, resolved
from harness.lab.transport.base import Runner
from harness.untrusted import reading

PID_FILE = "/var/run/qemu-server/{vmid}.pid"

# $1: the file with the process's id, $2: the VM's. A ring of Linux AIO is a mapping of the process, one of io_uring a
# file that it has open. `qm showcmd` is what PVE would start it with: the next best, where the process is out of reach.
_LOOK = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
if pid=$(cat "$1" 2>/dev/null) && [ -r "/proc/$pid/cmdline" ]; then
    printf 'native\t%s\n' "$(grep -c '/\[aio\]' "/proc/$pid/maps")"
    printf 'io_uring\t%s\n' "$(ls -l "/proc/$pid/fd" | grep -c 'anon_inode:\[io_uring\]')"
    tr '\000' '\n' <"/proc/$pid/cmdline" | sed 's/^/argument\t/'
else
    printf 'command\t%s\n' "$(qm showcmd "$2")"
fi
"""


@dataclass(frozen=True, slots=True)
class QemuProcess:
    """QEMU's arguments, and how many rings of each AIO engine it has; none are known where it is out of reach."""

    arguments: tuple[str, ...]
    rings: Mapping[str, int]

    def drive(self, key: str) -> Resolved:
        """How QEMU serves the drive; GuestError where it has none of that name."""
        with reading(f"QEMU's arguments for the drive {key}", GuestError):
            found = resolved(self.arguments, key)
        if found is None:
            raise GuestError(f"QEMU was started without the drive {key}")
        return found

    def aio(self, told: str) -> str:
        """The engine in effect: QEMU falls back to its thread pool without a ring, and says so in no answer."""
        return "threads" if self.rings.get(told) == 0 else told


def read_process(runner: Runner, vmid: int) -> QemuProcess:
    """The process of a running VM. GuestError where neither it nor PVE tells its arguments."""
    pid_file = PID_FILE.format(vmid=vmid)
    looked = runner.run(["sh", "-s", "--", pid_file, str(vmid)], stdin=_LOOK, deadline=60, check=False)
    with reading(f"{runner.name}: the command line of QEMU, VM {vmid},", GuestError):
        process = parse_process(looked.stdout)
    if not process.arguments:
        raise GuestError(
            f"{runner.name}: neither {pid_file} nor `qm showcmd {vmid}` tells how QEMU was started: "
            f"{looked.stderr.strip()}"
        )
    return process


def parse_process(printed: str) -> QemuProcess:
    """What the script printed: a word, a tab and a text per line. Pure."""
    lines = [line.split("\t", 1) for line in printed.splitlines() if "\t" in line]
    arguments = [text for word, text in lines if word == "argument"]
    for word, text in lines:
        if word == "command":
            arguments += shlex.split(text)
    rings = {word: int(text) for word, text in lines if word in ("native", "io_uring")}
    return QemuProcess(tuple(arguments), rings)
