"""Cycles of a host's CPUs, counted by `perf` while an arm measures: in guest mode and not, in user mode and kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from harness.errors import HostError
from harness.lab.facts import HostFacts
from harness.lab.paths import LEASE_DIRECTORY, MARK
from harness.lab.transport.base import Runner
from harness.model.counters import CycleCounts
from harness.untrusted import finite, reading

CYCLES = "cycles"
"""perf's name of the event: cycles in which a CPU is not halted."""

MODIFIERS: Mapping[str, str] = {
    "guest_user": "uG",
    "guest_kernel": "kG",
    "host_user": "uH",
    "host_kernel": "kH",
}
"""For each part of the cycles in `CycleCounts`, perf's modifiers for user, kernel, guest and host."""

_NO_COUNTER = "the host's CPUs show no cycle counter (PMU); a virtual machine has one only where its host gives it one"
_TAKEN = "perf got no counter (PMU) of the host's CPUs: other programs hold all of them"
_TURNS = "the CPUs had too few counters for all who wanted one: cycles are scaled up from a part of the time"
_ALL_THE_TIME = 0.995  # what perf prints of a counter that was never taken away may be rounded

_DIRECTORY = f"{LEASE_DIRECTORY}/cycles"
_GRACE_SECONDS = 60.0
_DEADLINE = 30.0

# Values on standard output, complaints on standard error.
_PERF = ("env", MARK, "perf", "stat", "--all-cpus", "--field-separator=,", "--log-fd=1")

# An idle loop that polls is never halted: waiting would be counted as work.
_PROBE = """
export PATH="$PATH:/usr/sbin:/sbin"
grep -qw idle=poll /proc/cmdline && exit 4
exec "$@" -- sleep 0.1
"""

# What perf runs says that the counters are on, then waits to be ended: perf prints once it is gone. It goes by itself
# after $2 seconds, so that perf does not outlive for long a run that was killed.
_START = r"""
export PATH="$PATH:/usr/sbin:/sbin"
directory=$1 seconds=$2; shift 2
rm -rf "$directory"; mkdir -p "$directory" && cd "$directory" || exit 1
(
    "$@" -- sh -c 'echo $$ >waiting; exec sleep "$1"' sh "$seconds"
    echo over >ended
) </dev/null >counts 2>said &
for _ in $(seq 500); do
    [ -s waiting ] || [ -s ended ] && break
    sleep 0.01
done
"""

# A number that is no longer ours is left alone: what perf ran may have been ended, and its number given away.
_STOP = r"""
cd "$1" || exit 1
read -r waiting 2>/dev/null <waiting && grep -qzxF "$2" "/proc/$waiting/environ" 2>/dev/null && kill "$waiting"
for _ in $(seq 500); do
    [ -s ended ] && break
    sleep 0.01
done
cat counts; cat said >&2
cd / && rm -rf "$1"
"""


@dataclass(frozen=True, slots=True)
class CycleCounting:
    """Whether a host's cycles can be counted, and by what, or why not."""

    counted: bool
    why: str


NOT_ASKED = CycleCounting(False, "nobody asked the host whether it can")


@dataclass(frozen=True, slots=True)
class Cycles:
    """Cycles of all CPUs of a host together over some time; None if none were counted.

    `note` says why nothing was counted, or that the CPUs had too few counters: then programs took turns, and perf
    scaled the counts up to the whole time. It is empty where all is well.
    """

    counts: CycleCounts | None = None
    note: str = ""


@dataclass(slots=True)
class CycleCount:
    """What `counting` found: nothing until it has ended."""

    cycles: Cycles = Cycles()


def cycle_counting(runner: Runner, facts: HostFacts) -> CycleCounting:
    """Whether perf counts cycles on this host: tried, for a perf without counters behind it is common."""
    if not facts["perf"]:
        return CycleCounting(False, "perf is not installed (Debian and Proxmox VE: linux-perf, RHEL and Fedora: perf)")
    done = runner.run(["sh", "-s", "--", *_command(CYCLES)], stdin=_PROBE, deadline=_DEADLINE, check=False)
    if done.status == 4:
        return CycleCounting(False, "the CPUs are never halted (idle=poll), so waiting would be counted as work")
    with reading(f"{runner.name}: what perf printed"):
        tried = parse_counts(done.stdout.splitlines(), done.stderr)
    return CycleCounting(True, facts["perf"]) if tried.counts is not None else CycleCounting(False, tried.note)


@contextmanager
def counting(
    runner: Runner, seconds: float, *, event: str = CYCLES, directory: str = _DIRECTORY
) -> Iterator[CycleCount]:
    """Count on all CPUs of the host for as long as this lasts, which is `seconds` at most. HostError if it is lost.

    All CPUs rather than QEMU's process or fio's: interrupts, kernel threads and io_uring's workers do a part of each
    I/O and belong to no process of the arm. What is counted is kept in `directory` of the host meanwhile.
    """
    command = _command(event)
    arguments = [directory, f"{seconds + _GRACE_SECONDS:.0f}", *command]
    runner.run(["sh", "-s", "--", *arguments], stdin=_START, deadline=_DEADLINE)
    count = CycleCount()
    try:
        yield count
    except BaseException:
        with suppress(HostError):  # the first error says more than a second one of the same connection
            _stop(runner, directory)
        raise
    count.cycles = _stop(runner, directory)


def parse_counts(printed: Iterable[str], said: str) -> Cycles:
    """From what `perf stat -x,` printed, and said on standard error. Source: perf-stat(1), "CSV FORMAT".

    A line is value, unit, event, run time of the counter in ns, and the percentage of the time that it was on. A CPU
    with cores of two kinds has a counter for each, as `cpu_core/cycles/uH` and `cpu_atom/cycles/uH`: they are added.
    """
    counts = dict.fromkeys(MODIFIERS, 0.0)
    missing = set(MODIFIERS)
    share = 1.0
    for line in printed:
        fields = line.split(",")
        name = _name(fields[2]) if len(fields) >= 5 else None
        if name is None:
            continue
        value, on = fields[0], fields[4]
        if value == "<not supported>":
            return Cycles(note=_NO_COUNTER)
        if value == "<not counted>":
            return Cycles(note=_TAKEN)
        counts[name] += finite(value)
        missing.discard(name)
        share = min(share, finite(on) / 100)
    if missing:
        return Cycles(note=f"perf counted nothing: {_complaint(said)}")
    return Cycles(CycleCounts(**counts, share=share), _TURNS if share < _ALL_THE_TIME else "")


def _stop(runner: Runner, directory: str) -> Cycles:
    done = runner.run(["sh", "-s", "--", directory, MARK], stdin=_STOP, deadline=_DEADLINE, check=False)
    with reading(f"{runner.name}: what perf printed"):
        return parse_counts(done.stdout.splitlines(), done.stderr)


def _command(event: str) -> Sequence[str]:
    return (*_PERF, f"--event={','.join(f'{event}:{modifiers}' for modifiers in MODIFIERS.values())}")


def _name(event: str) -> str | None:
    """The part of the cycles that perf calls `cycles:uH`, or `cpu_core/cycles/uH`; None of another event."""
    modifiers = set(re.split("[:/]", event.rstrip("/"))[-1])
    return next((name for name, wanted in MODIFIERS.items() if set(wanted) == modifiers), None)


def _complaint(said: str) -> str:
    """What perf said first: it puts `Error:` on a line of its own, and advice on many that follow."""
    lines = [line.strip() for line in said.splitlines()]
    return next((line for line in lines if line and line != "Error:"), "it printed nothing")
