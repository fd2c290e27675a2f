"""Which executor the command line asks for."""

from __future__ import annotations

import argparse
import contextlib
import shlex
from collections.abc import Iterator

from pve_double.executor.base import Executor
from pve_double.executor.commands import Shell
from pve_double.executor.memory import MemoryExecutor
from pve_double.executor.qemu import QemuExecutor
from pve_double.pace import Pace


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--executor", choices=["memory", "qemu"], default="memory", help="qemu really runs the guests")
    parser.add_argument("--ssh", metavar="COMMAND", help="ssh, its options and a disposable KVM host: where guests run")
    parser.add_argument("--local-lvm-gib", type=int, default=4, help="size of local-lvm, kept in a sparse file")


@contextlib.contextmanager
def chosen(options: argparse.Namespace, pace: Pace, bridges: tuple[str, ...]) -> Iterator[Executor]:
    """The executor; what a real one made on its machine is removed at the end."""
    if options.executor == "memory":
        yield MemoryExecutor(pace.factor)
        return
    prefix = shlex.split(options.ssh or "")
    if not prefix:
        # The executor creates what a node has, and removes it again. It must never do that on this machine by mistake.
        raise SystemExit("--executor qemu needs --ssh, with a KVM host that may be used up")
    executor = QemuExecutor(Shell(prefix), bridges=bridges, kvm=options.kvm)
    try:
        executor.prepare(local_lvm_gib=options.local_lvm_gib)
        yield executor
    finally:
        executor.undo()
