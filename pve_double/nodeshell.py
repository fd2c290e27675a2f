"""`qm`, `pvesm` and `pveversion` as they are run on the node: the commands that a backend uses over SSH."""

from __future__ import annotations

from dataclasses import dataclass

from pve_double import nodetools
from pve_double.errors import PveError
from pve_double.qemu import command
from pve_double.state import KERNEL, MANAGER, Node
from pve_double.tasks import TaskLog

TOOLS = ("qm", "pvesm", "pveversion", *nodetools.COMMANDS)
"""All commands that are answered here."""


@dataclass(frozen=True, slots=True)
class Printed:
    """What a command prints, and its exit status."""

    text: str
    status: int = 0


def run(node: Node, argv: list[str]) -> Printed:
    """Run `qm ...`, `pvesm ...` or `pveversion`; what PVE refuses goes to stderr with status 255."""
    words = [word for word in argv if not word.startswith("-")]
    try:
        text = _printed(node, words, pretty="--pretty" in argv or "-pretty" in argv)
    except (PveError, ValueError) as refused:
        return Printed(f"{refused}\n", 255)
    return Printed(f"ERROR: unknown command '{' '.join(argv)}'\n", 255) if text is None else Printed(text)


def _printed(node: Node, words: list[str], *, pretty: bool) -> str | None:
    if words[:1] and words[0] in nodetools.COMMANDS:
        return nodetools.printed(node, words)
    match words:
        case ["qm", "showcmd", vmid, *_]:
            return showcmd(node, int(vmid), pretty=pretty)
        case ["pveversion"]:
            return f"{MANAGER} (running kernel: {KERNEL})\n"
    return _done(node, words)


def _done(node: Node, words: list[str]) -> str | None:
    """What changes something, and where a volume is."""
    match words:
        case ["qm", "unlock", vmid]:
            node.machine(int(vmid)).config.pop("lock", None)
            return ""
        case ["pvesm", "path", volid]:
            return f"{node.store.path(volid)}\n"
        case ["pvesm", "free", volid]:
            node.store.free(volid, TaskLog())
            return f"Removed volume '{volid}'\n"
    return None


def showcmd(node: Node, vmid: int, *, pretty: bool) -> str:
    """The QEMU command with which the VM would be started."""
    words = command.build(node, vmid, node.machine(vmid).with_pending, TaskLog())
    return command.printed(words, pretty=pretty) + "\n"
