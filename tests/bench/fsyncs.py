"""Fsyncs per second of `syncload` against those of pveperf's loop in Perl, by turns on one file system.

    python -m tests.bench.fsyncs --program SYNCLOAD [--pairs 20] [DIRECTORY]

Without DIRECTORY, they run on ext4 in memory, as root: fsync costs least there, so the time of Perl itself shows most.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median

from harness.analysis import estimate_paired_change
from tests.unit.loop_disks import loop, mounted, run, sparse

LOOP = Path(__file__).parents[1] / "features" / "commands" / "count_fsyncs.pl"
_BYTES = 256 << 20


@contextmanager
def filesystem_in_memory() -> Iterator[Path]:
    """An ext4 file system on a file in /dev/shm."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        volume, point = sparse(Path(directory, "volume"), _BYTES), Path(directory, "point")
        run("mkfs.ext4", "-q", "-F", str(volume))
        with loop(volume) as device, mounted(device, point):
            yield point


def count_fsyncs(argv: list[str | Path], directory: Path) -> tuple[float, float]:
    """The rate of a program that runs for one second, and its CPU time for each file in seconds, with its start."""
    before = os.times()
    printed = subprocess.run(argv, cwd=directory, check=True, capture_output=True, text=True).stdout
    after = os.times()
    rate = re.search(r"^FSYNCS/SECOND: ([0-9.]+)$", printed, re.MULTILINE)
    assert rate is not None, printed
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return float(rate[1]), spent / float(rate[1])


def compare(program: Path, directory: Path, pairs: int) -> str:
    """The ratio with its interval, and the CPU time for each file."""
    programs: list[list[str | Path]] = [["perl", LOOP, "1"], [program.absolute(), "fsyncs", "1"]]
    counted: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
    for _ in range(pairs):
        for side in random.sample((0, 1), 2):
            counted[side].append(count_fsyncs(programs[side], directory))
    (perl, perl_cpu), (ours, our_cpu) = (zip(*runs, strict=True) for runs in counted)
    change = estimate_paired_change(perl, ours, confidence=0.95)
    return (
        f"perl {median(perl):.0f}, syncload {median(ours):.0f} fsyncs/s: ratio {change.ratio:.3f} "
        f"[{change.low or 0:.3f}, {change.high or 0:.3f}] in {pairs} pairs; "
        f"CPU time for each: {median(perl_cpu) * 1e6:.0f} and {median(our_cpu) * 1e6:.0f} us"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=20)
    arguments = parser.parse_args()
    given = arguments.directory
    with nullcontext(given) if given is not None else filesystem_in_memory() as directory:
        sys.stdout.write(compare(arguments.program, directory, arguments.pairs) + "\n")


if __name__ == "__main__":
    main()
