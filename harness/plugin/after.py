"""What is judged after the last test: whether the run judged anything, and how it compares with a baseline."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from harness.console import CleanConsole
from harness.errors import ConfigError, ResultsError
from harness.plugin.engine import Engine
from harness.plugin.options import BASELINE, REQUIRE_VERDICT
from harness.plugin.project import SCENARIOS
from harness.report.compare import comparison_view
from harness.report.compare_text import print_comparison
from harness.results import RunStore
from harness.results.baselines import baseline_store
from harness.results.compare import compare
from harness.results.compare_records import Comparison, Outcome

_TEST = f"{SCENARIOS}/test_overhead.py"


def report_failures(session: pytest.Session, engine: Engine) -> None:
    """Report a failed test for each thing that fails only now: --require-verdict, and --baseline."""
    failures = [*_without_verdict(engine), *_worse(engine)]
    for name, why in failures:
        failed = pytest.TestReport(
            nodeid=f"{_TEST}::{name}",
            location=(_TEST, None, name),
            keywords={},
            outcome="failed",
            longrepr=why,
            when="call",
        )
        session.config.hook.pytest_runtest_logreport(report=failed)
    if failures and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def write_comparisons(reporter: pytest.TerminalReporter, engine: Engine) -> None:
    """Print how each run differs from the baseline."""
    if engine.options.baseline is None:
        return
    for path in engine.runs:
        reporter.section(f"compared with the baseline {engine.options.baseline}")
        try:
            comparison = _compared(path, engine.options.reports, engine.options.baseline)
        except (ConfigError, ResultsError) as error:
            reporter.write_line(str(error), red=True)
            continue
        width = 120 if not reporter.isatty() else reporter._tw.fullwidth
        console = CleanConsole(width=width, colours=reporter.hasmarkup)
        with console.capture() as capture:
            print_comparison(comparison_view(comparison), console)
        reporter.write(capture.get())


def _without_verdict(engine: Engine) -> Iterator[tuple[str, str]]:
    for place, why in engine.without_verdict.items() if engine.options.require_verdict else ():
        yield f"verdict[{place}]", f"{REQUIRE_VERDICT}: nothing was judged on {place}: {why}"


def _worse(engine: Engine) -> Iterator[tuple[str, str]]:
    """For each run that is worse than the baseline, or cannot be compared with it, why that is a failure."""
    options = engine.options
    if options.baseline is None:
        return
    for path in engine.runs:
        name = f"baseline[{options.baseline}-{path.name}]"
        try:
            comparison = _compared(path, options.reports, options.baseline)
        except (ConfigError, ResultsError) as error:
            yield name, f"{BASELINE}: {error}"
            continue
        view = comparison_view(comparison)
        undecided = comparison.outcome is Outcome.UNDECIDED and options.inconclusive == "fail"
        if undecided or comparison.outcome in (Outcome.WORSE, Outcome.MIXED, Outcome.NOT_COMPARABLE):
            yield name, f"{BASELINE}={options.baseline}: {view.ruled_out or view.verdict}"


@cache
def _compared(path: Path, reports: Path, baseline: str) -> Comparison:
    """The complete run against the baseline. It is judged first, and printed later."""
    after = RunStore.open(path).read_results()
    before = baseline_store(reports, baseline, after.lab.host).read_results()
    return compare(before, after, same_machine=True)
