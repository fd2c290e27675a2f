"""What the comparison adds to the kernel: the option `--baseline` of a measurement."""

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
