"""Generates docs/reference/coverage.md: how often the intervals that ship contain the truth, and how wide they are.

    python -m tests.bench.coverage --write
    python -m tests.bench.coverage --quick
    python -m tests.bench.coverage --labels-only reports/RUN

Without --write, the page is printed. It takes some minutes of one CPU, with --quick half a minute. The labels test
takes the runs that are stored beside this module, or those that are named.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.errors import HarnessError
from tests.bench.coverage.intervals import simulate_all_percentiles, simulate_boots, simulate_noises
from tests.bench.coverage.labels import RECORDED, permute_labels
from tests.bench.coverage.page import PAGE, replace_part, write_page

CAMPAIGNS, OF_PERCENTILES, PERMUTATIONS = 600, 400, 300
QUICKER = 20


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.coverage", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("runs", metavar="RUN", nargs="*", type=Path, help="directories of runs for the labels test")
    parser.add_argument("--quick", action="store_true", help=f"a {QUICKER}th of the simulations: rough figures")
    parser.add_argument("--labels-only", action="store_true", help="only the labels test")
    parser.add_argument("--write", action="store_true", help=f"write docs/reference/{PAGE.name} instead of printing it")
    options = parser.parse_args(arguments)
    divisor = QUICKER if options.quick else 1
    runs = options.runs or sorted(RECORDED.glob("*.jsonl.gz"))
    try:
        labels = [row for run in runs for row in permute_labels(run, PERMUTATIONS // min(divisor, 5))]
    except HarnessError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    campaigns = 0 if options.labels_only else CAMPAIGNS // divisor
    page = write_page(
        noises=list(simulate_noises(campaigns)) if campaigns else [],
        boots=list(simulate_boots(campaigns)) if campaigns else [],
        percentiles=list(simulate_all_percentiles(OF_PERCENTILES // divisor)) if campaigns else [],
        labels=labels,
        campaigns=campaigns or 1,
    )
    if options.write:
        before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        PAGE.write_text(replace_part(before, coverage=page), encoding="utf-8")
    else:
        print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
