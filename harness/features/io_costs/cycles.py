"""Counts cycles of a host's CPUs with `perf` during an arm: of guest and host, in user mode and in the kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.lab.counters import CycleCounting, Cycles
from harness.lab.facts import HostFacts
from harness.lab.pin import MARK
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

_DEADLINE = 30.0

INTERVAL_SECONDS = 0.1
"""How often perf prints the counts. More often, perf would take a noticeable part of a CPU."""

# perf prints values on standard output, and errors on standard error.
_PERF = ("env", MARK, "perf", "stat", "--all-cpus", "--field-separator=,", "--log-fd=1")

# A CPU that polls when idle is never halted, so waiting would be counted as work.
_PROBE = """
export PATH="$PATH:/usr/sbin:/sbin"
grep -qw idle=poll /proc/cmdline && exit 4
exec "$@" -- sleep 0.1
"""

_COUNT = """
export PATH="$PATH:/usr/sbin:/sbin"
cat /proc/uptime
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Interval:
    """The cycles between two moments of the host's uptime, in seconds. `share` is as in `CycleCounts`."""

    begun: float
    ended: float
    cycles: Mapping[str, float]
    share: float


@dataclass(frozen=True, slots=True)
class CycleSeries:
    """Cycles in successive intervals. `note` says why there are none."""

    intervals: tuple[Interval, ...] = ()
    note: str = ""

    def between(self, begun: float, ended: float) -> Cycles:
        """The cycles between two moments of the host's uptime, scaled up from the intervals that lie inside."""
        inside = [interval for interval in self.intervals if begun <= interval.begun and interval.ended <= ended]
        if not inside:
            return Cycles(note=self.note)
        scale = (ended - begun) / sum(interval.ended - interval.begun for interval in inside)
        counts = {name: scale * sum(interval.cycles[name] for interval in inside) for name in MODIFIERS}
        share = min(interval.share for interval in inside)
        return Cycles(CycleCounts(**counts, share=share), _SHARED if share < _ALL_THE_TIME else "")


def probe_cycle_counting(runner: Runner, facts: HostFacts) -> CycleCounting:
    """Whether perf counts cycles on this host. This runs perf, because perf often has no counters to use."""
    if not facts["perf"]:
        return CycleCounting(False, "perf is not installed (Debian and Proxmox VE: linux-perf, RHEL and Fedora: perf)")
    done = runner.run(["sh", "-s", "--", *_make_command(CYCLES)], stdin=_PROBE, deadline=_DEADLINE, check=False)
    if done.status == 4:
        return CycleCounting(False, "the CPUs are never halted (idle=poll), so waiting would be counted as work")
    with reading(f"{runner.name}: the output of perf"):
        tried = parse_counts(done.stdout.splitlines(), done.stderr)
    return CycleCounting(True, facts["perf"]) if tried.counts is not None else CycleCounting(False, tried.note)


def count_cycles(runner: Runner, seconds: float, *, event: str = CYCLES) -> CycleSeries:
    """Count on all CPUs of the host for `seconds`. HostError if the host is lost.

    The counts are of all CPUs, not only of QEMU's or fio's process: interrupts, kernel threads and io_uring's workers
    do a part of each I/O, and they belong to no process of the arm.
    """
    perf = (*_make_command(event), f"--interval-print={INTERVAL_SECONDS * 1000:.0f}", "--", "sleep", f"{seconds:.2f}")
    done = runner.run(["sh", "-s", "--", *perf], stdin=_COUNT, deadline=seconds * 1.5 + _DEADLINE, check=False)
    with reading(f"{runner.name}: the output of perf"):
        return parse_series(done.stdout.splitlines(), done.stderr)


def parse_series(printed: Sequence[str], errors: str) -> CycleSeries:
    """The intervals from the two outputs of `perf stat -x, -I`, after a line with the uptime at perf's start.

    A line begins with the seconds since perf's start, then it has the fields that `parse_counts` reads. An interval in
    which perf counted nothing is left out.
    """
    started = finite(printed[0].split()[0]) if printed else 0.0
    by_end: dict[float, list[str]] = {}
    for line in printed[1:]:
        moment, separator, rest = line.strip().partition(",")
        if separator and re.fullmatch(r"[0-9]+\.[0-9]+", moment):
            by_end.setdefault(finite(moment), []).append(rest)
    intervals: list[Interval] = []
    note, before = "", 0.0
    for end in sorted(by_end):
        parsed = parse_counts(by_end[end], errors)
        if parsed.counts is None:
            note = note or parsed.note
        else:
            cycles = {name: getattr(parsed.counts, name) for name in MODIFIERS}
            intervals.append(Interval(started + before, started + end, cycles, parsed.counts.share))
        before = end
    if not intervals and not note:
        note = parse_counts((), errors).note
    return CycleSeries(tuple(intervals), note)


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
        return Cycles(note=f"perf counted nothing: {_find_first_error(errors)}")
    return Cycles(CycleCounts(**counts, share=share), _SHARED if share < _ALL_THE_TIME else "")


def _make_command(event: str) -> Sequence[str]:
    return (*_PERF, f"--event={','.join(f'{event}:{modifiers}' for modifiers in MODIFIERS.values())}")


def _name(event: str) -> str | None:
    """The field of `CycleCounts` for perf's event `cycles:uH` or `cpu_core/cycles/uH`; None for another event."""
    modifiers = set(re.split("[:/]", event.rstrip("/"))[-1])
    return next((name for name, wanted in MODIFIERS.items() if set(wanted) == modifiers), None)


def _find_first_error(errors: str) -> str:
    """perf's first error: it prints `Error:` on a separate line, then the error, then many lines of advice."""
    lines = [line.strip() for line in errors.splitlines()]
    return next((line for line in lines if line and line != "Error:"), "it printed nothing")
