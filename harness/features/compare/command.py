"""`virt-overhead compare`: opens the runs, compares them, prints the comparison, and has the exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Literal

from harness.cli.common import chosen_store
from harness.errors import ConfigError
from harness.features.compare.baselines import find_baseline
from harness.features.compare.comparison import compare, only_scenario
from harness.features.compare.records import Comparison, Outcome, comparison_json
from harness.features.compare.text import comparison_markdown, print_comparison
from harness.features.compare.words import comparison_view
from harness.report.files import write_page
from harness.results import Run
from harness.terminal import clean_json

WORSE = 3
"""The exit status if a figure is worse."""
UNDECIDED = 4
"""The exit status if the comparison decides nothing, and that counts as a failure."""
NOT_COMPARABLE = 5
"""The exit status if a difference rules the comparison out."""


class Form(Enum):
    """How to print a comparison."""

    TERMINAL = auto()
    MARKDOWN = auto()
    JSON = auto()


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """What to compare, and how to show it."""

    runs: tuple[Path, ...]
    baseline: str | None
    """The name of the baseline that is the reference; None: the first run is."""
    reports: Path
    before_scenario: str | None
    after_scenario: str | None
    metric: str | None
    margin: float
    form: Form
    html: Path | None
    """The page to write; None for none."""
    inconclusive: Literal["fail", "skip"]
    """Whether an undecided comparison is a failure."""


def compare_runs(request: CompareRequest) -> int:
    """Compare the runs, print the comparison, and return the exit status: 0, WORSE, UNDECIDED or NOT_COMPARABLE.

    ConfigError for runs that do not exist, or as for `compare`; ResultsError for files that cannot be used.
    """
    first, *others = _open_runs(request)
    comparison = compare(
        first, *others, margin=request.margin, metric=request.metric, same_machine=request.baseline is not None
    )
    views = [comparison_view(two, request.metric) for two in comparison.each]
    if request.html is not None:
        from harness.features.compare.page import comparison_html  # noqa: PLC0415 - plotly takes a second to load

        write_page(request.html, comparison_html(views))
    if request.form is Form.JSON:
        sys.stdout.write(clean_json(comparison_json(comparison)) + "\n")
    elif request.form is Form.MARKDOWN:
        sys.stdout.write("\n".join(map(comparison_markdown, views)))
    else:
        for number, view in enumerate(views):
            sys.stdout.write("\n" if number else "")
            print_comparison(view)
        if request.html is not None:
            sys.stdout.write(f"\npage: {request.html}\n")
    return decide_status(comparison, request.inconclusive)


def decide_status(comparison: Comparison, inconclusive: Literal["fail", "skip"]) -> int:
    """The exit status for these outcomes: the gravest of them counts."""
    outcomes = {two.outcome for two in comparison.each}
    if Outcome.NOT_COMPARABLE in outcomes:
        return NOT_COMPARABLE
    if outcomes & {Outcome.WORSE, Outcome.MIXED}:
        return WORSE
    return UNDECIDED if Outcome.UNDECIDED in outcomes and inconclusive == "fail" else 0


def _open_runs(request: CompareRequest) -> Sequence[Run]:
    """The reference, and the runs to compare with it."""
    runs = [chosen_store(path, request.reports).read_results() for path in request.runs]
    if request.baseline is not None:
        runs.insert(0, find_baseline(request.reports, request.baseline, runs[0].lab.host).read_results())
    if len(runs) < 2:
        raise ConfigError(
            "one run: there is nothing to compare it with", hint="give two runs, or --baseline NAME and a run"
        )
    scenarios = [request.before_scenario, *[request.after_scenario] * (len(runs) - 1)]
    return [run if name is None else only_scenario(run, name) for run, name in zip(runs, scenarios, strict=True)]
