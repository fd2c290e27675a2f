"""The QEMU process of a guest, as its host shows it: its arguments, its AIO engines and its threads.

The arguments of the process are the effective request, for every hypervisor. QEMU refuses to start with an engine that
is not available. It may also drop an engine later, and reports that only in its log.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.errors import HostError
from harness.events import Events, Note
from harness.lab.transport.base import Completed, Runner
from harness.lab.vm_threads import VmThreads, find_threads
from harness.shipped import read_script

_LOOK = read_script("harness.guest", "read_qemu_process.sh")
_ENGINES = {"native": "Linux AIO", "io_uring": "linux io_uring"}
"""QEMU's option, and its name in QEMU's log."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Engines for asynchronous I/O: the number of rings of each in the process, and the engines that it dropped.

    `rings` is empty if the process cannot be read.
    """

    rings: Mapping[str, int]
    dropped: frozenset[str] = frozenset()

    def in_effect(self, requested: str, image_format: str) -> str:
        """The requested engine, or `threads` (QEMU's thread pool) if QEMU dropped it or never set it up.

        QEMU sets a ring up for the first I/O to the file. A guest that finds a raw disk reads it; an empty image of
        another format answers that itself, so nothing follows from a missing ring.
        """
        missing = image_format == "raw" and self.rings.get(requested) == 0
        return "threads" if requested in self.dropped or missing else requested


@dataclass(frozen=True, slots=True)
class Inspected:
    """QEMU's arguments, and its engines."""

    arguments: tuple[str, ...]
    engines: Engines


def look_at_process(runner: Runner, pid_file: str, *, log: str = "", would_be: Sequence[str] = ()) -> Completed:
    """What the host prints about the process with the id in `pid_file`, for `parse_inspected`."""
    words = ["sh", "-s", "--", pid_file, log, *would_be]
    return runner.run(words, stdin=_LOOK, deadline=60, check=False)


def parse_inspected(printed: str) -> Inspected:
    """Arguments and engines, from lines of a word, a tab and a text. Pure. Raises ValueError for other output."""
    lines = [line.split("\t", 1) for line in printed.splitlines() if "\t" in line]
    arguments = [text for word, text in lines if word == "argument"]
    for word, text in lines:
        if word == "command":
            arguments += shlex.split(text)
    log = [text for word, text in lines if word == "log"]
    rings = {word: int(text) for word, text in lines if word in _ENGINES}
    dropped = (engine for engine, name in _ENGINES.items() if any(f"Unable to use {name}," in text for text in log))
    return Inspected(tuple(arguments), Engines(rings, frozenset(dropped)))


def qemu_threads(runner: Runner, pid_file: str, events: Events) -> VmThreads | None:
    """The threads of the guest's process on its host; None, with a note, if the host does not show them.

    Without them a run reports only the total CPU time, and everything else.
    """
    try:
        return find_threads(runner, pid_file)
    except HostError as error:
        events(Note(f"CPU time is not reported per QEMU thread: {error.message}"))
        return None
