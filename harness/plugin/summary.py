"""What the user reads before and after a run, in the terminal, JUnit and failed assertions; the page of all hosts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.analysis import Verdict
from harness.console import CleanConsole
from harness.errors import ResultsError
from harness.report.hosts import hosts_headline, read_hosts, write_hosts_page
from harness.report.numbers import confidence_words, percent, percent_interval, sample_words
from harness.report.terminal import print_run
from harness.report.verdicts import describe_budget, format_limit, gravest_first
from harness.results import CellRecord, RunStore


def cell_properties(record: CellRecord) -> list[tuple[str, object]]:
    """Properties of the cell's JUnit test case."""
    properties: list[tuple[str, object]] = [
        ("verdict", str(record.verdict)),
        ("rounds", len(set(record.rounds))),
        ("blocks", len(record.rounds)),
        ("boots", record.boot_count),
        ("confidence", record.confidence),
    ]
    for budget in record.budget:
        of = budget.metric if budget.difference is None else f"{budget.metric}.difference"
        properties.append((f"{of}.budget", format_limit(budget)))
        properties.append((f"{of}.verdict", str(budget.verdict)))
        if budget.p_value is not None:
            properties.append((f"{of}.p", budget.p_value))
    for name, metric in record.metrics.items():
        for arm in ("host", "twin", "against", "guest"):
            values = getattr(metric, arm)
            if values:
                properties.append((f"{name}.{arm}", sum(values) / len(values)))
        for what, estimate in (("overhead", metric.overhead), ("difference", metric.difference)):
            if estimate is not None:
                properties.append((f"{name}.{what}", estimate.point))
                if estimate.low is not None and estimate.high is not None:
                    properties.append((f"{name}.{what}.low", estimate.low))
                    properties.append((f"{name}.{what}.high", estimate.high))
    return properties


def explain(record: CellRecord) -> str:
    """Why a cell has its verdict, with the figures. Of several budgets, the worst verdict comes first.

    For example "CELL: exceeds: iops overhead 79.4 % [77.5, 81.2], budget 60 %, p < 0.0001; within: clat_p99 ...; n = 6
    blocks, intervals hold with 95 %".
    """
    if record.verdict is Verdict.VOID:
        return f"{record.id} is void: {'; '.join(record.remarks)}"
    parts = [f"{budget.verdict}: {describe_budget(record, budget)}" for budget in gravest_first(record.budget)]
    if not parts and record.overhead is not None:
        found = f"{percent(record.overhead.point)} % {percent_interval(record.overhead)}".rstrip()
        parts.append(f"{record.verdict}: {record.headline_name} overhead {found}, no budget")
    if not parts:
        return f"{record.id}: {record.verdict}"
    basis = f"n = {sample_words(record)}, intervals hold with {confidence_words([record])}"
    return f"{record.id}: {'; '.join(parts)}; {basis}"


def write_summary(reporter: pytest.TerminalReporter, path: Path, *, verbose: bool) -> None:
    """The answers of a run and the path of its report; with `verbose`, also the table of its cells and all findings."""
    store = RunStore.open(path)
    run = store.read_results()
    reporter.section(f"overhead on {run.lab.host}, profile {run.run.profile}")
    width = 120 if not reporter.isatty() else reporter._tw.fullwidth
    console = CleanConsole(width=width, colours=reporter.hasmarkup)
    with console.capture() as capture:
        print_run(run, store.report_path, verbose=verbose, console=console)
    reporter.write(capture.get())


def write_hosts(reporter: pytest.TerminalReporter, runs: Sequence[Path]) -> None:
    """For several runs: a line for each host, and one page with all cells, beside the directories of the runs."""
    if len(runs) < 2:
        return
    try:
        hosts = read_hosts([RunStore.open(path) for path in runs])
        page = runs[0].parent / f"hosts-{min(path.name for path in runs)}.html"
        write_hosts_page(hosts, page)
    except (ResultsError, OSError) as error:
        reporter.write_line(f"the page of all hosts cannot be written: {error}", red=True)
        return
    reporter.section(hosts_headline(hosts))
    for host in hosts:
        reporter.write_line(host.sentence)
    reporter.write_line(f"report of all hosts: {page}")
