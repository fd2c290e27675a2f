"""`virt-overhead compare`: opens the two runs, compares them, and prints the comparison."""

from __future__ import annotations

import sys
from enum import Enum, auto
from pathlib import Path

from harness.errors import ConfigError, ResultsError
from harness.report.compare import comparison_view
from harness.report.compare_text import comparison_markdown, print_comparison
from harness.results import Run, RunStore
from harness.results.compare import compare, only_scenario
from harness.results.compare_records import comparison_json


class Form(Enum):
    """How to print a comparison."""

    TERMINAL = auto()
    MARKDOWN = auto()
    JSON = auto()


def chosen_run(path: Path, reports: Path, scenario: str | None) -> Run:
    """The run at `path`, or of this name in the directory `reports`; with `scenario`, only the cells of it.

    ConfigError if there is no such run or scenario, ResultsError if its results.json cannot be read.
    """
    in_reports = reports / path
    try:
        store = RunStore.open(path if path.exists() or not in_reports.exists() else in_reports)
    except ResultsError as error:
        raise ConfigError(error.message, hint=error.hint) from error
    run = store.read_results()
    return only_scenario(run, scenario) if scenario is not None else run


def print_compared(before: Run, after: Run, form: Form, metric: str | None) -> None:
    """Print how `after` differs from `before`, by `metric`, or by each job's main metric. JSON has all metrics.

    ConfigError and ResultsError as for `compare`; ConfigError if no compared cell has the metric.
    """
    comparison = compare(before, after)
    if form is Form.JSON:
        sys.stdout.write(comparison_json(comparison) + "\n")
        return
    view = comparison_view(comparison, metric)
    if form is Form.MARKDOWN:
        sys.stdout.write(comparison_markdown(view))
    else:
        print_comparison(view)
