"""The QEMU process of a guest, as its host shows it: its arguments, its AIO engines and its threads.

The process's arguments are what QEMU was really told, whatever made them. QEMU refuses to start with an engine that it
cannot have, but may drop one later, and reports that in its log alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.errors import HostError
from harness.events import Events, Note
from harness.lab.transport.base import Completed, Runner
from harness.lab.vm_threads import VmThreads, find_threads

# $1: the file with the process's id, $2: its log, or nothing; then the command that prints how it would be started,
# for where the process is out of reach.
# A ring of Linux AIO is a mapping of the process, one of io_uring a file that it has open.
_LOOK = r"""
export PATH="$PATH:/usr/sbin:/sbin"
log=$2
if pid=$(cat "$1" 2>/dev/null) && [ -r "/proc/$pid/cmdline" ]; then
    printf 'native\t%s\n' "$(grep -c '/\[aio\]' "/proc/$pid/maps")"
    printf 'io_uring\t%s\n' "$(ls -l "/proc/$pid/fd" | grep -c 'anon_inode:\[io_uring\]')"
    [ -z "$log" ] || grep 'falling back to thread pool' "$log" | sed 's/^/said\t/'
    tr '\000' '\n' <"/proc/$pid/cmdline" | sed 's/^/argument\t/'
elif shift 2 && [ $# -gt 0 ]; then
    printf 'command\t%s\n' "$("$@")"
fi
"""
_ENGINES = {"native": "Linux AIO", "io_uring": "linux io_uring"}
"""QEMU's option, and what its log calls it."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Engines for asynchronous I/O: how many rings of each the process has, and those that it fell back from.

    `rings` is empty where the process is out of reach.
    """

    rings: Mapping[str, int]
    dropped: frozenset[str] = frozenset()

    def in_effect(self, requested: str) -> str:
        """The requested engine, unless QEMU dropped it or never set one up: then its thread pool."""
        return "threads" if requested in self.dropped or self.rings.get(requested) == 0 else requested


@dataclass(frozen=True, slots=True)
class Inspected:
    """QEMU's arguments, and its engines."""

    arguments: tuple[str, ...]
    engines: Engines


def look_at_process(runner: Runner, pid_file: str, *, log: str = "", would_be: Sequence[str] = ()) -> Completed:
    """What the host prints of the process with the id in `pid_file`, for `parse_inspected`."""
    words = ["sh", "-s", "--", pid_file, log, *would_be]
    return runner.run(words, stdin=_LOOK, deadline=60, check=False)


def parse_inspected(printed: str) -> Inspected:
    """From a word, a tab and a text per line. Pure. ValueError where that is not what was printed."""
    lines = [line.split("\t", 1) for line in printed.splitlines() if "\t" in line]
    arguments = [text for word, text in lines if word == "argument"]
    for word, text in lines:
        if word == "command":
            arguments += shlex.split(text)
    said = [text for word, text in lines if word == "said"]
    rings = {word: int(text) for word, text in lines if word in _ENGINES}
    dropped = (engine for engine, name in _ENGINES.items() if any(f"Unable to use {name}," in text for text in said))
    return Inspected(tuple(arguments), Engines(rings, frozenset(dropped)))


def qemu_threads(runner: Runner, pid_file: str, events: Events) -> VmThreads | None:
    """The threads of the guest's process on its host; None, with a note, where the host does not show them.

    Without them a run reports CPU time as a whole, and all the rest.
    """
    try:
        return find_threads(runner, pid_file)
    except HostError as error:
        events(Note(f"CPU time is not reported by QEMU's threads: {error.message}"))
        return None
