"""How many seconds of fio two versions of the harness need to decide a budget of 10 %, and comparisons of two modes.

    python -m tests.bench.decide WORK --old=DIRECTORY --new=DIRECTORY
    python -m tests.bench.decide --replay RUN ... --old=DIRECTORY --new=DIRECTORY

Each directory is a checkout. A directory of an older commit comes from `git worktree add DIRECTORY COMMIT`. The cells
are 4 attach modes x 3 jobs on two simulated disks: `optane` with 32 requests in its queue, which loses most of its
speed in a guest, and `hdd` with one request at a time, which should lose little, so that no cell is near its budget.
Both versions measure them with `pytest scenarios --profile=standard` in the embedded lab: until the budget is decided,
until there are as many rounds as the profile allows, or until the time is spent. The rules, the rounds and the lengths
of slices are those of each version's profile. These settings are the same in both: one iodepth for each disk, regions
of 64 MiB, filled once, and at most `--minutes` for each disk.

With 20 minutes for each disk, each version takes up to about 45 minutes. What is measured already in WORK is not
measured again, and an interrupted run is resumed. So a call with `--old` alone measures one part. If both are measured,
the table is printed. With more `--minutes` than before, cells that are still open get more rounds.

Measured on 2026-11-26 on 2 CPUs, commit 765dca9 (three samples of 10 s) against 75fab71 (slices of 0.5 s):

| minutes for each disk | decided by old | decided by new | seconds of fio, old and new | old/new |
|---|---|---|---|---|
| 20 | 6 of 24 | 24 of 24 | 1728, 355 | 4.9 |
| 30 | 17 of 24 | 24 of 24 | 2881, 355 | 8.1 |

All cells that both decided had the same verdict. The new version took 13 minutes, with 23 boots of the guest. Cells
that the old version left open or void make its seconds a lower bound. The overheads of the two versions differ, but not
because of the slices: with the new version, slices of 0.5 s and of 3 s showed the same. The lab's guest changed between
the two commits, which is the likely cause.

On 2026-11-28, with 6 minutes for each disk, c406b45 against e5288ea9: both decided all 24 cells with the same verdicts,
in about the fewest rounds that their profiles allow, in 250 and 268 s of fio. No overhead was near the budget, so
narrower intervals could not save rounds. Comparisons of two modes needed 120 and 82 s in the median.

Beside the budgets, the guests of each two modes are compared in each job, by the statistics of the version that
measured them. A comparison is decided if its 95 % interval excludes either no difference or one of 5 %. The seconds
until then are those of the two guests, scaled by the square of the half width. This needs both checkouts.

The time of an arm that several cells use is shared between them, so the sum of the cells is the time of the run.
Rounds that were lost with the lab are left out.

With --replay, nothing is measured, and a minute is enough on any machine. Both versions evaluate the slices of stored
runs, the same blocks in the same order, until each decides (`replay.py`). So this compares the statistics alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.errors import HarnessError
from tests.bench.decide.checkout import measured
from tests.bench.decide.costs import compare_guests, costs, summarise_comparisons, table
from tests.bench.decide.replay import replay_runs, summarise_replay


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.decide", description="Seconds of fio to decide 24 lab cells, old against new."
    )
    parser.add_argument("work", type=Path, nargs="?", help="the directory for scenarios and results")
    parser.add_argument(
        "--replay", type=Path, nargs="+", metavar="RUN", help="directories of runs; nothing is measured"
    )
    parser.add_argument("--old", type=Path, metavar="DIRECTORY", help="a checkout of the old version")
    parser.add_argument("--new", type=Path, metavar="DIRECTORY", help="a checkout of the new version")
    parser.add_argument("--minutes", type=int, default=20, help="the time limit for each disk (%(default)s)")
    parser.add_argument(
        "--profile", choices=("smoke", "standard"), default="standard", help="the profile (%(default)s)"
    )
    options = parser.parse_args(arguments)
    if (options.work is None) is (options.replay is None):
        parser.error("name either a directory for measurements, or --replay with runs")
    if options.replay and not (options.old and options.new):
        parser.error("--replay needs --old and --new")
    try:
        lines = _replay(options) if options.replay else _measure(options)
    except HarnessError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    print("\n".join(lines))
    return 0


def _replay(options: argparse.Namespace) -> list[str]:
    old, new = replay_runs(options.replay, (options.old, options.new))
    return summarise_replay(old, new)


def _measure(options: argparse.Namespace) -> list[str]:
    runs = [
        measured(options.work / name, checkout, options.profile, options.minutes)
        for name, checkout in (("old", options.old), ("new", options.new))
    ]
    old, new = (costs(run) if run else {} for run in runs)
    compared = [
        compare_guests(run, checkout) if run and checkout else {}
        for run, checkout in zip(runs, (options.old, options.new), strict=True)
    ]
    lines = table(old, new) if old and new else []
    return [*lines, *(summarise_comparisons(*compared) if all(compared) else [])]


if __name__ == "__main__":
    sys.exit(main())
