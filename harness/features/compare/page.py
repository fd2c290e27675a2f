"""A comparison as one offline HTML page."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis import Change, Estimate
from harness.features.compare.records import Finding, Outcome
from harness.features.compare.words import ComparisonView, ScenarioRows
from harness.report.html import environment
from harness.report.intervals import Scale

_CLASSES = {
    Outcome.WORSE: "exceeds",
    Outcome.MIXED: "exceeds",
    Outcome.NOT_COMPARABLE: "void",
    Outcome.BETTER: "within",
    Outcome.EQUAL: "within",
    Outcome.UNDECIDED: "inconclusive",
    Finding.WORSE: "exceeds",
    Finding.BETTER: "within",
    Finding.EQUAL: "within",
    Finding.UNDECIDED: "inconclusive",
}
"""The report's colours: those of its verdicts."""


def comparison_html(views: Sequence[ComparisonView]) -> str:
    """The page for the comparisons with one reference. It loads no other file, and has no script."""
    page = environment().get_template("compare.html.j2")
    return page.render(views=views, classes=_CLASSES, scale_of=_scale, drawn=_drawn)


def _drawn(change: Change) -> Estimate:
    """The change as a share: 0.1 is 10 % more."""
    low, high = (None if end is None else end - 1 for end in (change.low, change.high))
    return Estimate(change.ratio - 1, low, high, min(change.n_before, change.n_after))


def _scale(scenario: ScenarioRows) -> Scale:
    """One scale for all rows of a scenario."""
    changes = [row.of for row in scenario.overall] + [row.of for job in scenario.jobs for row in job.rows]
    return Scale.around([_drawn(change) for change in changes])
