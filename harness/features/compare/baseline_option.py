"""`--baseline` of a measurement: each of its runs against a baseline."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from harness.console import CleanConsole
from harness.errors import ConfigError, ResultsError
from harness.feature import SessionRuns
from harness.features.compare.baselines import find_baseline
from harness.features.compare.comparison import compare
from harness.features.compare.records import Comparison, Outcome
from harness.features.compare.text import print_comparison
from harness.features.compare.words import comparison_view
from harness.results import RunStore

if TYPE_CHECKING:
    import pytest

FLAG = "--baseline"


def judge_runs(baseline: str, runs: SessionRuns) -> Iterator[tuple[str, str]]:
    """For each run that is worse than the baseline, or cannot be compared with it, why that is a failure."""
    for path in runs.paths:
        name = f"baseline[{baseline}-{path.name}]"
        try:
            comparison = _compare(path, runs.reports, baseline)
        except (ConfigError, ResultsError) as error:
            yield name, f"{FLAG}: {error}"
            continue
        view = comparison_view(comparison)
        undecided = comparison.outcome is Outcome.UNDECIDED and runs.undecided_fails
        if undecided or comparison.outcome in (Outcome.WORSE, Outcome.MIXED, Outcome.NOT_COMPARABLE):
            yield name, f"{FLAG}={baseline}: {view.ruled_out or view.verdict}"


def print_comparisons(baseline: str, runs: SessionRuns, reporter: pytest.TerminalReporter) -> None:
    """Print how each run differs from the baseline."""
    for path in runs.paths:
        reporter.section(f"compared with the baseline {baseline}")
        try:
            comparison = _compare(path, runs.reports, baseline)
        except (ConfigError, ResultsError) as error:
            reporter.write_line(str(error), red=True)
            continue
        width = 120 if not reporter.isatty() else reporter._tw.fullwidth
        console = CleanConsole(width=width, colours=reporter.hasmarkup)
        with console.capture() as capture:
            print_comparison(comparison_view(comparison), console)
        reporter.write(capture.get())


@cache
def _compare(path: Path, reports: Path, baseline: str) -> Comparison:
    """The complete run against the baseline. It is judged first, and printed later."""
    after = RunStore.open(path).read_results()
    before = find_baseline(reports, baseline, after.lab.host).read_results()
    return compare(before, after, same_machine=True)
