"""The comparison of runs, and baselines to compare with.

`virt-overhead compare` and `--baseline` of a measurement find the cells of two runs that belong together and what else
differs between the runs, estimate the change of each arm and judge it among all that are compared (comparison.py).
records.py is the JSON document, words.py says it in words for a terminal and as Markdown, page.py as a page.
`virt-overhead baseline` names a run (command.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from harness.feature import Feature, RunOption, SessionRuns

if TYPE_CHECKING:
    import pytest


def _check(name: str, reports: Path) -> None:
    from harness.features.compare.command import find_baseline

    find_baseline(reports, name)


def _judge(name: str, runs: SessionRuns) -> Iterable[tuple[str, str]]:
    from harness.features.compare.command import judge_runs

    return judge_runs(name, runs)


def _print(name: str, runs: SessionRuns, reporter: pytest.TerminalReporter) -> None:
    from harness.features.compare.command import print_comparisons

    print_comparisons(name, runs, reporter)


FEATURE = Feature(
    name="compare",
    run_options=(
        RunOption(
            flag="--baseline",
            metavar="NAME",
            help="compare the run with this baseline (`virt-overhead baseline`); a run that is worse is a failure",
            check=_check,
            judge=_judge,
            print=_print,
        ),
    ),
)
