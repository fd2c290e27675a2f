"""How often a run without any difference says that there is one, by the whole path from measurements to verdicts.

    python -m tests.bench.false_alarms --write
    python -m tests.bench.false_alarms --quick

The first runs have 20 cells, 5 modes in 4 jobs, with a budget of no loss at all. Those for the answers have 8 modes in
one job; the answers are also made from fewer of them. Without --write, the part of the page is printed.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence

from tests.bench.coverage.page import PAGE, replace_part, tabulate
from tests.bench.false_alarms.runs import MODES, PROFILES, WORKLOADS, Claims, find_worse, simulate_run

RUNS = {"one-boot": 300, "boots": 100}
QUICKER = 20
MOST = 0.05
"""The share of runs that may make a false claim."""
MODES_OF_RUN = 5
_WORDS = """\
No guest differs here from its host or from another guest, but for noise: 10 % of a slice, in an environment that
changes by 10 % within a second. The real campaign plans the runs ({runs}),
looks at them, judges {cells} cells against a budget of no loss, and answers which mode to use. `one-boot` has the
rounds of `smoke`; `boots` has 4 to 9 boots of two blocks, until all is decided.

At most {most:.0f} % of the runs may say anything. By chance, a share of {most:.0f} % deviates by {error:.1f} points in
the larger number of runs (one standard deviation). *Within chance* is a share that is larger by at most two of them."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.false_alarms", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help=f"a {QUICKER}th of them")
    parser.add_argument("--write", action="store_true", help=f"write the last part of docs/reference/{PAGE.name}")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        # Simulated runs say nothing about how long runs of this user take.
        os.environ["VIRT_OVERHEAD_PACES"] = f"{scratch}/paces.json"
        part = write_part({profile: runs // (QUICKER if options.quick else 1) for profile, runs in RUNS.items()})
    if options.write:
        PAGE.write_text(replace_part(PAGE.read_text(encoding="utf-8"), false_alarms=part), encoding="utf-8")
    else:
        print(part)
    return 0


def write_part(runs: Mapping[str, int]) -> str:
    """The part of the page, in Markdown, from so many runs of each profile and kind."""
    cells = MODES_OF_RUN * len(WORKLOADS)
    numbers = " and ".join(f"{number} of `{profile}`" for profile, number in runs.items())
    error = 100 * math.sqrt(MOST * (1 - MOST) / max(runs.values()))
    words = _WORDS.format(runs=numbers, cells=cells, most=100 * MOST, error=error)
    rows = [row for profile in PROFILES for row in list_claims(profile, runs[profile])]
    return f"{words}\n\n{tabulate(('runs', 'claim', 'share of runs', 'holds'), rows)}"


def list_claims(profile: str, runs: int) -> Iterator[tuple[str, ...]]:
    """The rows of a profile."""
    yield from _claim_of_cells(profile, runs)
    yield from _claim_of_answers(profile, runs)


def _claim_of_cells(profile: str, runs: int) -> Iterator[tuple[str, ...]]:
    claims = [Claims.of(simulate_run(profile, seed, MODES_OF_RUN)) for seed in range(runs)]
    yield _fill(profile, "a cell is better than its host", [bool(of_run.better) for of_run in claims])
    yield _fill(profile, "a cell exceeds its budget", [bool(of_run.exceeds) for of_run in claims])
    yield _fill(profile, "either", [bool(of_run.better or of_run.exceeds) for of_run in claims])


def _claim_of_answers(profile: str, runs: int) -> Iterator[tuple[str, ...]]:
    results = [simulate_run(profile, seed, len(MODES), WORKLOADS[:1]) for seed in range(runs)]
    for modes in range(2, len(MODES) + 1):
        worse = [find_worse(run, modes) for run in results]
        yield _fill(profile, f"an answer calls one of {modes} modes worse", worse)


def _fill(profile: str, claim: str, flags: Sequence[bool]) -> tuple[str, ...]:
    share, error = sum(flags) / len(flags), math.sqrt(MOST * (1 - MOST) / len(flags))
    verdict = "yes" if share <= MOST else "within chance" if share <= MOST + 2 * error else "**no**"
    return f"`{profile}`", claim, f"{100 * share:.1f} %", verdict


if __name__ == "__main__":
    sys.exit(main())
