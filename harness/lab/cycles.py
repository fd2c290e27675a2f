"""Counts cycles of a host's CPUs with `perf` during an arm: of guest and host, in user mode and in the kernel."""

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
"""perf's modifiers (user, kernel, guest, host) for each part of the cycles in `CycleCounts`."""

_NO_COUNTER = "the host's CPUs show no cycle counter (PMU); a virtual machine has one only if its host provides it"
_ALL_IN_USE = "perf got no counter (PMU) of the host's CPUs: other programs use all of them"
_SHARED = "the CPUs had too few counters for all programs: cycles are scaled up from a part of the time"
_ALL_THE_TIME = 0.995  # perf may round the share of a counter that was always active

_DIRECTORY = f"{LEASE_DIRECTORY}/cycles"
_GRACE_SECONDS = 60.0
_DEADLINE = 30.0

# perf prints values on standard output, and errors on standard error.
_PERF = ("env", MARK, "perf", "stat", "--all-cpus", "--field-separator=,", "--log-fd=1")

# A CPU that polls when idle is never halted, so waiting would be counted as work.
_PROBE = """
export PATH="$PATH:/usr/sbin:/sbin"
grep -qw idle=poll /proc/cmdline && exit 4
exec "$@" -- sleep 0.1
"""

# perf runs a child, which writes a file when the counters are active, and then sleeps. perf prints the counts when the
# child has ended. The child ends after $2 seconds at the latest, so perf soon ends after a run that was killed.
_START = r"""
export PATH="$PATH:/usr/sbin:/sbin"
directory=$1 seconds=$2; shift 2
rm -rf "$directory"; mkdir -p "$directory" && cd "$directory" || exit 1
(
    "$@" -- sh -c 'echo $$ >waiting; exec sleep "$1"' sh "$seconds"
    echo over >ended
) </dev/null >counts 2>errors &
for _ in $(seq 500); do
    [ -s waiting ] || [ -s ended ] && break
    sleep 0.01
done
"""

# Only a process with our mark is ended. perf's child may have ended, and another process may have its id now.
_STOP = r"""
cd "$1" || exit 1
read -r waiting 2>/dev/null <waiting && grep -qzxF "$2" "/proc/$waiting/environ" 2>/dev/null && kill "$waiting"
for _ in $(seq 500); do
    [ -s ended ] && break
    sleep 0.01
done
cat counts; cat errors >&2
cd / && rm -rf "$1"
"""


@dataclass(frozen=True, slots=True)
class CycleCounting:
    """Whether a host's cycles can be counted, and with which perf, or why not."""

    counted: bool
    why: str


NOT_PROBED = CycleCounting(False, "it was not tried whether the host can count cycles")


@dataclass(frozen=True, slots=True)
class Cycles:
    """Cycles of all CPUs of a host together over some time; None if none were counted.

    `note` says why nothing was counted, or that the CPUs had too few counters. In the second case, programs took turns,
    and perf scaled the counts up to the whole time. It is empty if there was no problem.
    """

    counts: CycleCounts | None = None
    note: str = ""


@dataclass(slots=True)
class CycleCount:
    """The result of `counting`, which is empty until the block has ended."""

    cycles: Cycles = Cycles()


def cycle_counting(runner: Runner, facts: HostFacts) -> CycleCounting:
    """Whether perf counts cycles on this host. This runs perf, because perf often has no counters to use."""
    if not facts["perf"]:
        return CycleCounting(False, "perf is not installed (Debian and Proxmox VE: linux-perf, RHEL and Fedora: perf)")
    done = runner.run(["sh", "-s", "--", *_command(CYCLES)], stdin=_PROBE, deadline=_DEADLINE, check=False)
    if done.status == 4:
        return CycleCounting(False, "the CPUs are never halted (idle=poll), so waiting would be counted as work")
    with reading(f"{runner.name}: the output of perf"):
        tried = parse_counts(done.stdout.splitlines(), done.stderr)
    return CycleCounting(True, facts["perf"]) if tried.counts is not None else CycleCounting(False, tried.note)


@contextmanager
def counting(
    runner: Runner, seconds: float, *, event: str = CYCLES, directory: str = _DIRECTORY
) -> Iterator[CycleCount]:
    """Count on all CPUs of the host during the block, which lasts at most `seconds`. HostError if the host is lost.

    The counts are of all CPUs, not only of QEMU's or fio's process: interrupts, kernel threads and io_uring's workers
    do a part of each I/O, and they belong to no process of the arm. `directory` on the host holds the counts meanwhile.
    """
    command = _command(event)
    arguments = [directory, f"{seconds + _GRACE_SECONDS:.0f}", *command]
    runner.run(["sh", "-s", "--", *arguments], stdin=_START, deadline=_DEADLINE)
    count = CycleCount()
    try:
        yield count
    except BaseException:
        with suppress(HostError):  # the first error is more useful than a second one of the same connection
            _stop(runner, directory)
        raise
    count.cycles = _stop(runner, directory)


def parse_counts(printed: Iterable[str], errors: str) -> Cycles:
    """Cycles from the two outputs of `perf stat -x,`. Source: perf-stat(1), "CSV FORMAT".

    A line is value, unit, event, run time of the counter in ns, and the percentage of the time that it was active. A
    CPU with two kinds of cores has one counter for each, `cpu_core/cycles/uH` and `cpu_atom/cycles/uH`: they are added.
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
            return Cycles(note=_ALL_IN_USE)
        counts[name] += finite(value)
        missing.discard(name)
        share = min(share, finite(on) / 100)
    if missing:
        return Cycles(note=f"perf counted nothing: {_first_error(errors)}")
    return Cycles(CycleCounts(**counts, share=share), _SHARED if share < _ALL_THE_TIME else "")


def _stop(runner: Runner, directory: str) -> Cycles:
    done = runner.run(["sh", "-s", "--", directory, MARK], stdin=_STOP, deadline=_DEADLINE, check=False)
    with reading(f"{runner.name}: the output of perf"):
        return parse_counts(done.stdout.splitlines(), done.stderr)


def _command(event: str) -> Sequence[str]:
    return (*_PERF, f"--event={','.join(f'{event}:{modifiers}' for modifiers in MODIFIERS.values())}")


def _name(event: str) -> str | None:
    """The field of `CycleCounts` for perf's event `cycles:uH` or `cpu_core/cycles/uH`; None for another event."""
    modifiers = set(re.split("[:/]", event.rstrip("/"))[-1])
    return next((name for name, wanted in MODIFIERS.items() if set(wanted) == modifiers), None)


def _first_error(errors: str) -> str:
    """perf's first error: it prints `Error:` on a separate line, then the error, then many lines of advice."""
    lines = [line.strip() for line in errors.splitlines()]
    return next((line for line in lines if line and line != "Error:"), "it printed nothing")
