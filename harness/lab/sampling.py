"""Reads a host's counters at planned times, in one program for a whole timetable: no login for each reading."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import HostError
from harness.lab.counters import LINES, CounterFiles, HostCounters
from harness.lab.paths import MARK
from harness.lab.transport.base import Runner
from harness.untrusted import finite, reading

# Standard input: the times, in hundredths of a second of /proc/uptime. Arguments: the files. perl is part of every
# Debian and of every Proxmox VE host, and one process costs less than a program for each reading.
_PROGRAM = r"""
sub now { open(my $file, '<', '/proc/uptime') or die; my ($up) = split ' ', <$file>; return $up * 100 }
for my $at (split ' ', <STDIN>) {
    while ((my $left = $at - now()) > 0) { select(undef, undef, undef, $left / 100) }
    my @lines = ('@ ' . now());
    for my $path (@ARGV) {
        open(my $file, '<', $path) or next;
        while (my $line = <$file>) { chomp $line; push @lines, "$path:$line" if $line =~ /PATTERN/ }
    }
    print join("\n", @lines, '@ ' . now()), "\n";
}
""".replace("PATTERN", LINES)


@dataclass(frozen=True, slots=True)
class Sample:
    """The host's counters, read between two moments of its uptime, in seconds."""

    begun: float
    ended: float
    counters: HostCounters


def sampling_command(files: CounterFiles) -> tuple[str, ...]:
    """The command that reads the files at the times on its standard input, see `planned`."""
    return ("env", MARK, "perl", "-e", _PROGRAM, *files.paths)


def planned(times: Sequence[float]) -> str:
    """The standard input for these moments of the host's uptime, in seconds."""
    return " ".join(f"{time * 100:.0f}" for time in times) + "\n"


def parse_samples(printed: str, files: CounterFiles, name: str) -> list[Sample]:
    """The samples in the command's output, in order. HostError if they cannot be read, or if a device is gone."""
    samples, begun, lines = [], None, []
    for line in printed.splitlines():
        moment = re.fullmatch(r"@ ([0-9.]+)", line)
        if moment is None:
            lines.append(line)
            continue
        with reading(f"{name}: the times of its counters"):
            uptime = finite(moment[1]) / 100
        if begun is None:
            begun = uptime
        else:
            samples.append(Sample(begun, uptime, files.parse(lines, name)))
            begun = None
        lines = []
    return samples


def sample(runner: Runner, files: CounterFiles, times: Sequence[float], *, deadline: float) -> str:
    """Read the files at these moments of the host's uptime. Returns what `parse_samples` reads. Raises HostError."""
    done = runner.run(sampling_command(files), stdin=planned(times), deadline=deadline, check=False)
    if done.status != 0:
        raise HostError(f"{runner.name}: its counters cannot be read: {done.stderr.strip()[-300:]}")
    return done.stdout
