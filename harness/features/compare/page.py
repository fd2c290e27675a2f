"""A comparison as one offline HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.features.compare.records import RunComparison
from harness.features.compare.words import (
    ChangeRow,
    ScenarioRows,
    describe_outcome,
    describe_pair,
    describe_runs,
    explain_ruled_out,
    list_remarks,
    list_scenarios,
)
from harness.report.blocks import (
    Banner,
    Block,
    Box,
    Column,
    Heading,
    Listing,
    Mark,
    Row,
    Scale,
    Sentence,
    Table,
    TableCell,
    join_words,
)
from harness.report.page import render_page

_CLASSES = {
    "worse": "exceeds",
    "mixed": "exceeds",
    "not comparable": "void",
    "better": "within",
    "equal": "within",
    "undecided": "inconclusive",
}
"""The report's colours of outcomes and findings: those of its verdicts."""


def render_comparison(comparisons: Sequence[RunComparison], metric: str | None) -> str:
    """The page for the comparisons with one reference. It loads no other file, and has no script."""
    titles = list(map(describe_pair, comparisons))
    return render_page(
        f"{titles[0]} \N{MIDDLE DOT} virt-overhead compare",
        ("virt-overhead compare", ", ".join(titles)),
        _yield_header(comparisons, metric),
        (_make_box(comparison, metric) for comparison in comparisons),
        scripted=False,
    )


def _yield_header(comparisons: Sequence[RunComparison], metric: str | None) -> Iterator[Block]:
    for number, comparison in enumerate(comparisons):
        name = (f"`{describe_pair(comparison)}` ",) if len(comparisons) > 1 else ()
        outcome = comparison.outcome.value
        verdict = describe_outcome(comparison, metric).removeprefix(outcome)
        words = join_words(*name, Mark(outcome, "verdict", _CLASSES[outcome]), verdict)
        yield Sentence(words, style="headline") if number else Heading(words, level=1)
        if why := explain_ruled_out(comparison):
            yield Banner("status", outcome, why)


def _make_box(comparison: RunComparison, metric: str | None) -> Box:
    blocks: list[Block] = [Heading(describe_pair(comparison), level=2)]
    blocks += [Sentence(run, style="basis meta") for run in describe_runs(comparison)]
    for scenario in list_scenarios(comparison, metric):
        blocks += [Heading(scenario.title), _change_table(scenario)]
    for title, sentences in list_remarks(comparison):
        blocks += [Heading(title), Listing(tuple(sentences))]
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
        Row((overall.arm, TableCell(overall.jobs, columns=2), *_change_cells(overall)), group="overall")
        for overall in scenario.overall
    ]
    for job in scenario.jobs:
        rows.append(Row((job.job,), group=job.job))
        rows += [Row((arm.arm, arm.before, arm.after, *_change_cells(arm)), group=job.job) for arm in job.rows]
    caption = "After divided by before, with its interval; the drawing shows the change in percent"
    return Table(columns, tuple(rows), caption, style="glance", caption_shown=True)


def _change_cells(arm: ChangeRow) -> tuple[TableCell | str, ...]:
    finding = TableCell(arm.finding.value, tone=_CLASSES[arm.finding])
    return (arm.change, TableCell("", drawn=arm.of.share), arm.n, finding)


def _scale(scenario: ScenarioRows) -> Scale:
    """One scale for all rows of a scenario."""
    changes = [row.of for row in scenario.overall] + [row.of for job in scenario.jobs for row in job.rows]
    return Scale.around([change.share for change in changes])
