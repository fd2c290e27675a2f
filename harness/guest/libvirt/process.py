"""The QEMU process of a guest, as its host shows it: what it was told on its command line, and what it fell back to.

QEMU answers over its monitor neither which engine for asynchronous I/O a disk has nor whether it passes discards on.
Its command line is what it was really told, whatever made it; it refuses to start with an engine that it cannot have,
but may drop one later, which it tells in its log alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from harness.errors import GuestError
from harness.lab.transport.base import Runner
from harness.untrusted import parse_json, reading

# $1: the guest's name. A ring of Linux AIO is a mapping of the process, one of io_uring a file it has open.
_LOOK = r"""
pid=$(cat "/run/libvirt/qemu/$1.pid" 2>/dev/null || cat "/var/run/libvirt/qemu/$1.pid") || exit 1
printf 'native\t%s\n' "$(grep -c '/\[aio\]' "/proc/$pid/maps")"
printf 'io_uring\t%s\n' "$(ls -l "/proc/$pid/fd" | grep -c 'anon_inode:\[io_uring\]')"
grep 'falling back to thread pool' "/var/log/libvirt/qemu/$1.log" | sed 's/^/said\t/'
tr '\000' '\n' <"/proc/$pid/cmdline" | sed 's/^/argument\t/'
"""
_ENGINES = {"native": "Linux AIO", "io_uring": "linux io_uring"}
"""QEMU's option, and what its log calls it."""


@dataclass(frozen=True, slots=True)
class QemuProcess:
    """What the host tells of a QEMU: the block devices it was told to open, by node name, and its AIO engines.

    `rings` is how many rings of each engine the process has; `dropped` the engines that it fell back from.
    """

    nodes: Mapping[str, Mapping[str, Any]]
    rings: Mapping[str, int]
    dropped: frozenset[str]

    def aio(self, node: str) -> str:
        """The engine in effect: the one that was asked for, unless QEMU dropped it or never set one up."""
        told: str = self._protocol(node).get("aio", "threads")
        if told in self.dropped or self.rings.get(told) == 0:
            return "threads"
        return told

    def discard(self, node: str) -> str:
        """`unmap` where every layer of block devices passes discards on."""
        return "unmap" if all(each.get("discard") == "unmap" for each in self._chain(node)) else "ignore"

    def _protocol(self, node: str) -> Mapping[str, Any]:
        return list(self._chain(node))[-1]

    def _chain(self, node: str) -> Iterator[Mapping[str, Any]]:
        """The node that a device works on (raw, qcow2), and those below it down to the file or host device."""
        for _ in range(len(self.nodes) + 1):
            if node not in self.nodes:
                raise GuestError(f"QEMU was not told of a block device {node}; it knows {', '.join(self.nodes)}")
            found = self.nodes[node]
            yield found
            if not isinstance(found.get("file"), str):
                return
            node = found["file"]
        raise GuestError(f"QEMU's block device {node} is its own layer")


def read_process(runner: Runner, guest: str) -> QemuProcess:
    """The QEMU process of the running guest called `guest` in libvirt."""
    looked = runner.run(["sh", "-s", "--", guest], stdin=_LOOK, deadline=30, check=False).stdout
    with reading(f"{runner.name}: the command line of QEMU, guest {guest},", GuestError):
        process = parse_process(looked)
    if not process.nodes and "argument" not in looked:
        raise GuestError(f"{runner.name}: no QEMU process of guest {guest} is found by /run/libvirt/qemu/{guest}.pid")
    return process


def parse_process(looked: str) -> QemuProcess:
    """What the script printed: a word, a tab and a text per line."""
    lines = [line.split("\t", 1) for line in looked.splitlines() if "\t" in line]
    arguments = [text for word, text in lines if word == "argument"]
    said = [text for word, text in lines if word == "said"]
    nodes = {}
    for option, value in pairwise(arguments):
        if option == "-blockdev" and value.startswith("{"):
            node = parse_json(value, "-blockdev", GuestError)
            nodes[node["node-name"]] = node
    rings = {engine: int(text) for engine, text in lines if engine in _ENGINES}
    dropped = (engine for engine, name in _ENGINES.items() if any(f"Unable to use {name}," in text for text in said))
    return QemuProcess(nodes, rings, frozenset(dropped))
