"""The old design of a round against slices, in one session of the embedded lab and with equal wall time.

    python -m tests.bench.designs blocks.jsonl --minutes=150
    python -m tests.bench.designs --report blocks.jsonl

Three comparisons have a known truth: the host's disk against itself and the guest's disk against itself (0), and two
disks in memory of which one answers 1 ms later (`lat_mean`, one request at a time). Each has three jobs: random reads,
random writes, and half of each, with 4 KiB, at iodepth 32 or, for the delay, 1.

- slices: 12 blocks of 0.2 s. The arms of a block alternate, and the blocks of a job are spread over the unit, as in a
  smoke run.
- old: 3 rounds of about 0.9 s, which gives the same wall time. In each round, each arm runs its jobs one after the
  other, and the arms come in random order. So the two values of a pair are 6 s apart on average, and 0.4 s with slices.
  In a run of version 0.1, they were further apart.

The pause after a slice is what the unit before needed: how late its slices ended, and by how much their starts differed
from the plan. It is the same in both designs.
Both use the same engine, so the old design is not charged for its starts of fio. A unit has one group of each
comparison, job and design: 9 groups with slices and 9 with the old design, in random order. No value is in two groups.
A unit takes about 2 minutes, and a comparison gets 3 groups of each design from it. So 200 groups need 67 units, which
take about 2 h 15 min.

A call ends after `--minutes`, or when there are `--groups` groups. It appends each block to the file, and a later call
with the same file continues. `--report` needs no lab, and takes several files, also compressed ones. `measured/` has
those that docs/statistics.md quotes, of two sessions on one machine:

    python -m tests.bench.designs --report tests/bench/designs/measured/*.gz

The intervals are Student's t on the values as measured, without an adjustment for their moment. Power is the share of
groups whose interval excludes 0: of the delay, and otherwise if the values of the second arm are 5 % smaller. Run it
on a machine without other load: otherwise slices overlap, and their blocks do not count.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.errors import HarnessError
from harness.events import Events, Progress, StandardOutput
from harness.signals import ended_like_ctrl_c
from harness.units import format_duration
from tests.bench.designs.assess import rows, table
from tests.bench.designs.blocks import Block, units
from tests.bench.designs.comparisons import COMPARISONS, Design, Seen, Sizes
from tests.bench.designs.measuring import STARTUP_SECONDS, measure, unit_seconds, units_for
from tests.bench.lines import read


def main(arguments: Sequence[str] | None = None) -> int:
    sizes = Sizes()
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.designs", description="The old design of a round against slices, in the lab."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="the file of the blocks")
    parser.add_argument("--report", action="store_true", help="only print the table of the files")
    parser.add_argument("--minutes", type=float, default=150.0, help="end after about this time (%(default)s)")
    parser.add_argument("--groups", type=int, default=200, help="groups of each comparison and design (%(default)s)")
    parser.add_argument("--slice", type=float, default=sizes.slice_s, help="seconds of a slice (%(default)s)")
    parser.add_argument("--blocks", type=int, default=sizes.blocks, help="blocks of a group (%(default)s)")
    options = parser.parse_args(arguments)
    if not options.report and len(options.files) > 1:
        parser.error("only --report takes several files")
    if not options.report and options.files[0].suffix == ".gz":
        parser.error("only --report reads a compressed file")
    if options.slice < 0.2 or options.blocks < 2:
        parser.error("--slice must be at least 0.2, and --blocks at least 2")
    try:
        if not options.report:
            _measure(options, Sizes(options.slice, options.blocks))
        _report(options.files)
    except HarnessError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the blocks so far are in the file\n")
        return 130
    return 0


def _measure(options: argparse.Namespace, sizes: Sizes) -> None:
    (path,) = options.files
    missing = options.groups - _fewest_groups(read(path, Block))
    if missing <= 0:
        return
    wanted = units_for(missing)
    seconds = STARTUP_SECONDS + wanted * unit_seconds(sizes, Seen())
    print(f"{missing} groups of each comparison are missing: {wanted} units, about {format_duration(seconds)}")
    seed = random.SystemRandom().getrandbits(31)
    with ended_like_ctrl_c():
        events = Events(Progress(StandardOutput()))
        measure(path, sizes, units=wanted, minutes=options.minutes, seed=seed, events=events)


def _fewest_groups(blocks: Sequence[Block]) -> int:
    """The number of groups of the comparison and design that has the fewest."""
    found = [(group.head.comparison, group.head.design) for unit in units(blocks) for group in unit]
    return min(found.count((comparison.name, design)) for comparison in COMPARISONS for design in Design)


def _report(files: Sequence[Path]) -> None:
    blocks = [block for path in files for block in read(path, Block)]
    counted = units(blocks)
    print("\n".join(table(rows(counted))))
    overlapping = sum(block.overlap for block in blocks)
    used = sum(len(group.blocks) for unit in counted for group in unit)
    print(f"{used} of {len(blocks)} blocks are in groups that count; {overlapping} blocks had an overlapping slice")


if __name__ == "__main__":
    sys.exit(main())
