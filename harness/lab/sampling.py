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

# Standard input: the times, in seconds of the machine's uptime. Arguments: how many files belong to disks, then
# the files, those of disks first. Only the disks must be read before the next slice starts, so the times before and
# after their reading are printed: `@ BEGUN ENDED`, then `PATH:LINE` for each line of each file. The files stay open,
# because on an emulated host opening them takes longer than reading. perl is part of every Debian and Proxmox VE, and
# one process costs less than a program for each reading. The lines are selected by one search in each content: a search
# in each line took an emulated host 3 s for 100 readings, which is ten times as long.
#
# /proc/uptime has steps of 10 ms, in which a fast disk moves more bytes than the check of bytes tolerates. So the clock
# behind it (CLOCK_BOOTTIME, 7) is read with the system call clock_gettime, whose number depends on the machine. perl's
# own module for that, Time::HiRes, is not in Debian's perl-base. On other machines, /proc/uptime is read.
_PROGRAM = r"""
use Config;
my $clock_gettime = {x86_64 => 228, aarch64 => 113}->{(split /-/, $Config{archname})[0]};
my $disks = shift;
my %files;
for my $path ('/proc/uptime', @ARGV) { open($files{$path}, '<', $path) or delete $files{$path} }
sub content {
    my ($path) = @_;
    my ($all, $part) = ('', '');
    sysseek($files{$path}, 0, 0);
    while (sysread($files{$path}, $part, 1 << 16)) { $all .= $part }
    return $all;
}
sub now {
    my $moment = pack('q2', 0, 0);
    if ($clock_gettime and syscall($clock_gettime, 7, $moment) == 0) {
        my ($seconds, $ns) = unpack('q2', $moment);
        return $seconds + $ns / 1e9;
    }
    return (split ' ', content('/proc/uptime'))[0];
}
my @paths = grep { exists $files{$_} } @ARGV;
my ($gone) = grep { !exists $files{$_} } @ARGV[0 .. $disks - 1];
die "$gone: the device is gone\n" if defined $gone;
my @samples;
for my $at (split ' ', <STDIN>) {
    while ((my $left = $at - now()) > 0) { select(undef, undef, undef, $left) }
    my $begun = now();
    my @contents = map { content($_) } @paths[0 .. $disks - 1];
    my $ended = now();
    push @samples, [$begun, $ended, @contents, map { content($_) } @paths[$disks .. $#paths]];
}
for (@samples) {
    my ($begun, $ended, @contents) = @$_;
    printf "@ %.6f %.6f\n", $begun, $ended;
    for my $path (@paths) {
        my $content = shift @contents;
        print "$path:$1\n" while $content =~ /^((?:PATTERN).*)/mg;
    }
}
""".replace("PATTERN", LINES)


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
