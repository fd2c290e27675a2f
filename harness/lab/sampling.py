"""Reads a host's counters at planned times, in one program for a whole timetable: no login for each reading."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import HostError
from harness.lab.counters import LINES, CounterFiles, HostCounters
from harness.lab.paths import MARK
from harness.lab.transport.base import Runner
from harness.shipped import read_script
from harness.untrusted import finite, reading

_PROGRAM = read_script("harness.lab", "sample_files.pl", PATTERN=LINES)


@dataclass(frozen=True, slots=True)
class Sample:
    """The host's counters. Those of disks were read between two moments of its uptime, in seconds."""

    begun: float
    ended: float
    counters: HostCounters


def sampling_command(files: CounterFiles) -> tuple[str, ...]:
    """The command that reads the files at the times on its standard input, see `planned`."""
    return ("env", MARK, "perl", "-e", _PROGRAM, str(len(files.disks)), *files.paths)


def planned(times: Sequence[float]) -> str:
    """The standard input for these moments of the host's uptime, in seconds."""
    return " ".join(f"{time:.4f}" for time in times) + "\n"


def parse_samples(printed: str, files: CounterFiles, name: str, *, expected: int) -> list[Sample]:
    """The samples in the command's output, in order, as many as `expected`.

    HostError if there are fewer, if they cannot be read, or if a device is gone. Without counters, nothing would check
    what fio reports.
    """
    found: list[tuple[float, float, list[str]]] = []
    for line in printed.splitlines():
        moments = re.fullmatch(r"@ ([0-9.]+) ([0-9.]+)", line)
        if moments is not None:
            with reading(f"{name}: the times of its counters"):
                found.append((finite(moments[1]), finite(moments[2]), []))
        elif found:
            found[-1][2].append(line)
    if len(found) != expected:
        raise HostError(f"{name}: its counters were read {len(found)} times instead of {expected}")
    return [Sample(begun, ended, files.parse(lines, name)) for begun, ended, lines in found]


def sample(runner: Runner, files: CounterFiles, times: Sequence[float], *, deadline: float) -> str:
    """Read the files at these moments of the host's uptime. Returns what `parse_samples` reads. Raises HostError."""
    done = runner.run(sampling_command(files), stdin=planned(times), deadline=deadline, check=False)
    if done.status != 0:
        raise HostError(f"{runner.name}: its counters cannot be read: {done.stderr.strip()[-300:]}")
    return done.stdout
