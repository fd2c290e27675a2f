"""A comparison as one offline HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.analysis import Change, Estimate
from harness.features.compare.records import Finding, Outcome
from harness.features.compare.words import ComparisonView, OverallRow, ScenarioRows
from harness.features.compare.words import Row as ArmRow
from harness.report.blocks import (
    Banner,
    Block,
    Box,
    Cell,
    Column,
    Heading,
    Listing,
    Mark,
    Row,
    Scale,
    Sentence,
    Table,
    join_words,
)
from harness.report.page import render_page

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
    return render_page(
        f"{views[0].title} \N{MIDDLE DOT} virt-overhead compare",
        ("virt-overhead compare", ", ".join(view.title for view in views)),
        _header_blocks(views),
        map(_comparison_box, views),
        scripted=False,
    )


def _header_blocks(views: Sequence[ComparisonView]) -> Iterator[Block]:
    for number, view in enumerate(views):
        name = (f"`{view.title}` ",) if len(views) > 1 else ()
        words = join_words(*name, _verdict(view.outcome), view.verdict.removeprefix(view.outcome.value))
        yield Sentence(words, style="headline") if number else Heading(words, level=1)
        if view.ruled_out:
            yield Banner("status", view.outcome.value, view.ruled_out)


def _comparison_box(view: ComparisonView) -> Box:
    blocks: list[Block] = [Heading(view.title, level=2)]
    blocks += [Sentence(run, style="basis meta") for run in view.runs]
    for scenario in view.scenarios:
        blocks += [Heading(scenario.title), _change_table(scenario)]
    lists = [("What to know", view.notes), *view.differences]
    lists += [
        (title, lines) for title, lines in (("To be explained", view.doubtful), ("Left out", view.left_out)) if lines
    ]
    for title, lines in lists:
        blocks += [Heading(title), Listing(lines)]
    return Box((*blocks,))


def _change_table(scenario: ScenarioRows) -> Table:
    """All arms of a scenario, first over all jobs, then in each job."""
    columns = (
        Column("arm", "head"),
        *map(Column, ("before", "after", "after / before")),
        Column("drawing", "drawing", scale=_scale(scenario), hidden=True),
        Column("n"),
        Column("finding", "text"),
    )
    rows = []
    if scenario.overall:
        rows.append(Row(("throughput over all jobs (geometric mean)",), group="overall"))
    rows += [
        Row((overall.arm, Cell(overall.jobs, columns=2), *_change_cells(overall)), group="overall")
        for overall in scenario.overall
    ]
    for job in scenario.jobs:
        rows.append(Row((job.job,), group=job.job))
        rows += [Row((arm.arm, arm.before, arm.after, *_change_cells(arm)), group=job.job) for arm in job.rows]
    caption = "After divided by before, with its interval; the drawing shows the change in percent"
    return Table(columns, tuple(rows), caption, style="glance", caption_shown=True)


def _change_cells(arm: ArmRow | OverallRow) -> tuple[Cell | str, ...]:
    finding = Cell(arm.finding.value, tone=_CLASSES[arm.finding])
    return (arm.change, Cell("", drawn=_drawn(arm.of)), arm.n, finding)


def _verdict(outcome: Outcome) -> Mark:
    return Mark(outcome.value, "verdict", _CLASSES[outcome])


def _drawn(change: Change) -> Estimate:
    """The change as a share: 0.1 is 10 % more."""
    low, high = (None if end is None else end - 1 for end in (change.low, change.high))
    return Estimate(change.ratio - 1, low, high, min(change.n_before, change.n_after))


def _scale(scenario: ScenarioRows) -> Scale:
    """One scale for all rows of a scenario."""
    changes = [row.of for row in scenario.overall] + [row.of for job in scenario.jobs for row in job.rows]
    return Scale.around([_drawn(change) for change in changes])
