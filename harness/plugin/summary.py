"""What the terminal, JUnit and a failed assertion say of measured cells."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from harness.analysis import Verdict
from harness.report.terminal import overhead_table, summary_lines
from harness.results import CellRecord, RunStore

HEADLINE_METRICS = {"randread": "iops", "randwrite": "iops", "randrw": "iops"}


def headline_metric(record: CellRecord) -> str:
    """The metric that a cell is spoken of by: IOPS of random patterns, bandwidth of sequential ones."""
    return HEADLINE_METRICS.get(record.job.pattern, "bw")


def cell_properties(record: CellRecord) -> list[tuple[str, object]]:
    """Properties of the cell's JUnit test case."""
    properties: list[tuple[str, object]] = [("verdict", str(record.verdict)), ("rounds", len(record.rounds))]
    for name, metric in record.metrics.items():
        for arm in ("host", "twin", "guest"):
            values = getattr(metric, arm)
            if values:
                properties.append((f"{name}.{arm}", sum(values) / len(values)))
        if metric.overhead is not None:
            properties.append((f"{name}.overhead", metric.overhead.point))
            if metric.overhead.low is not None and metric.overhead.high is not None:
                properties.append((f"{name}.overhead.low", metric.overhead.low))
                properties.append((f"{name}.overhead.high", metric.overhead.high))
    return properties


def explain(record: CellRecord) -> str:
    """Why a cell has its verdict, with the figures it rests on."""
    failed = [f"{check.check}: {check.detail}" for check in record.validity if not check.ok]
    if record.verdict is Verdict.VOID:
        return f"{record.id} is void: " + "; ".join(failed)
    name = record.budget.metric if record.budget else headline_metric(record)
    metric = record.metrics.get(name)
    if metric is None or metric.overhead is None:
        return f"{record.id}: {record.verdict}"
    found = metric.overhead
    interval = f" [{found.low:.1%}, {found.high:.1%}]" if found.low is not None and found.high is not None else ""
    budget = f", budget {record.budget.share:.1%}" if record.budget else ""
    return f"{record.id}: {record.verdict}: overhead in {name} {found.point:.1%}{interval}, n={found.n}{budget}"


def write_summary(reporter: pytest.TerminalReporter, path: Path) -> None:
    """The overhead table of a run, its efficiency, and where its report is."""
    store = RunStore.open(path)
    run = store.read_results()
    reporter.section(f"overhead on {run.lab.host}, profile {run.run.profile}")
    width = 120 if not reporter.isatty() else reporter._tw.fullwidth
    console = Console(width=width, no_color=not reporter.hasmarkup, highlight=False)
    with console.capture() as capture:
        console.print(overhead_table(run, width=width))
    reporter.write(capture.get())
    for line in summary_lines(run):
        reporter.write_line(line)
    reporter.write_line(f"report: {store.report_path}")
