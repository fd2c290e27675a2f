"""The block devices in the arguments that libvirt gave to a guest's QEMU process.

QEMU's monitor reports neither the engine for asynchronous I/O of a disk nor whether the disk passes discards on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from harness.errors import GuestError
from harness.guest.libvirt.last_words import qemu_log
from harness.guest.qemu_process import Engines, look_at_process, parse_inspected
from harness.lab.transport.base import Runner
from harness.model.effective import Effective
from harness.model.guest import GUEST_OPTIONS
from harness.model.option import QemuArgument, read_from
from harness.untrusted import parse_json, reading

_ARGUMENTS = read_from(QemuArgument, GUEST_OPTIONS)
PID_FILE = "/run/libvirt/qemu/{name}.pid"


@dataclass(frozen=True, slots=True)
class QemuProcess:
    """The block devices in QEMU's arguments, by node name, its AIO engines, and all arguments."""

    nodes: Mapping[str, Mapping[str, Any]]
    engines: Engines
    arguments: Sequence[str] = ()

    @property
    def files(self) -> Effective:
        """What its arguments show of the guest: the program, the kernel and the initramfs."""
        given: dict[str, Any] = dict(pairwise(self.arguments)) | {"": next(iter(self.arguments), None)}
        return Effective(**{setting: given.get(source.name) for setting, source in _ARGUMENTS.items()})

    def aio(self, node: str) -> str:
        """The engine in effect: the requested one, unless QEMU dropped it or never set it up."""
        *formats, storage = self._chain(node)
        # A node that leads to the storage without a format is raw.
        image_format = formats[0]["driver"] if formats else "raw"
        return self.engines.in_effect(storage.get("aio", "threads"), image_format)

    def discard(self, node: str) -> str:
        """`unmap` if every layer of block devices passes discards on."""
        return "unmap" if all(each.get("discard") == "unmap" for each in self._chain(node)) else "ignore"

    def _chain(self, node: str) -> Iterator[Mapping[str, Any]]:
        """The node of a device (raw, qcow2) and the nodes below it, down to the file or host device."""
        for _ in range(len(self.nodes) + 1):
            if node not in self.nodes:
                raise GuestError(f"QEMU's arguments have no block device {node}; they have {', '.join(self.nodes)}")
            found = self.nodes[node]
            yield found
            if not isinstance(found.get("file"), str):
                return
            node = found["file"]
        raise GuestError(f"QEMU's block device {node} is its own layer")


def read_process(runner: Runner, guest: str) -> QemuProcess:
    """The QEMU process of the running guest called `guest` in libvirt."""
    pid_file = PID_FILE.format(name=guest)
    printed = look_at_process(runner, pid_file, log=qemu_log(guest)).stdout
    with reading(f"{runner.name}: the command line of QEMU, guest {guest},", GuestError):
        process = parse_process(printed)
    if not process.nodes and "argument" not in printed:
        raise GuestError(f"{runner.name}: {pid_file} leads to no QEMU process of guest {guest}")
    return process


def parse_process(printed: str) -> QemuProcess:
    """The process, from what the host printed about it. Pure."""
    found = parse_inspected(printed)
    nodes = {}
    for option, value in pairwise(found.arguments):
        if option == "-blockdev" and value.startswith("{"):
            node = parse_json(value, "-blockdev", GuestError)
            nodes[node["node-name"]] = node
    return QemuProcess(nodes, found.engines, found.arguments)
