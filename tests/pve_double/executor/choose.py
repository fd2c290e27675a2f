"""Which executor the command line asks for."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from harness.lab.embedded.disks import DISKS
from harness.lab.embedded.lab import state
from tests.pve_double.executor.base import Executor
from tests.pve_double.executor.commands import Shell
from tests.pve_double.executor.memory import MemoryExecutor
from tests.pve_double.executor.qemu import QemuExecutor
from tests.pve_double.pace import Pace
from tests.pve_double.storage.disks import Disk


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--executor", choices=["memory", "qemu"], default="memory", help="qemu really runs the guests")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--ssh", metavar="COMMAND", help="ssh, its options and a disposable KVM host: where guests run")
    where.add_argument("--embedded-lab", action="store_true", help="guests run in the embedded lab, which has to be up")
    parser.add_argument("--local-lvm-gib", type=int, default=4, help="size of local-lvm, kept in a sparse file")


@contextlib.contextmanager
def chosen(options: argparse.Namespace, pace: Pace, bridges: tuple[str, ...]) -> Iterator[Executor]:
    """The executor; what a real one made on its machine is removed at the end."""
    if options.executor == "memory":
        yield MemoryExecutor(pace.factor)
        return
    with _embedded_lab() if options.embedded_lab else contextlib.nullcontext(shlex.split(options.ssh or "")) as prefix:
        if not prefix:
            # What a node has is made there and removed again: this machine must never be taken for one by mistake.
            raise SystemExit("--executor qemu needs --ssh or --embedded-lab: a KVM host that may be used up")
        executor = QemuExecutor(Shell(prefix), bridges=bridges, kvm=options.kvm)
        try:
            executor.prepare(local_lvm_gib=options.local_lvm_gib)
            yield executor
        finally:
            executor.undo()


def lab_disks(executor: Executor) -> list[Disk]:
    """The embedded lab's simulated disks, as disks of the node."""
    found = ((each, executor.probe(each.spec.id)) for each in DISKS)
    return [replace(disk, serial=each.spec.serial, model="lab") for each, disk in found if disk is not None]


@contextlib.contextmanager
def _embedded_lab() -> Iterator[list[str]]:
    """The ssh command that leads into the embedded lab's host, whose key is pinned; its connection ends with this."""
    machine = state().running()
    if machine is None:
        raise SystemExit("the embedded lab is not up: virt-overhead lab up")
    with tempfile.TemporaryDirectory(prefix="pve-double-ssh-") as directory:
        known = Path(directory) / "known_hosts"
        known.write_text(f"[127.0.0.1]:{machine.port} {machine.host_key}\n")
        options = {
            "UserKnownHostsFile": str(known),
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            # One connection carries all commands: under emulation a handshake costs more than most of them.
            "ControlMaster": "auto",
            "ControlPath": f"{directory}/%C",
            "ControlPersist": "60",
        }
        given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        words = ["-F", "none", "-i", machine.key, "-p", str(machine.port), *given, "root@127.0.0.1"]
        try:
            yield ["ssh", *words]
        finally:
            subprocess.run(["ssh", "-O", "exit", *words], capture_output=True, check=False)
