"""What the runs of one session leave together: a page of all hosts, and the history."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.errors import ConfigError, ResultsError
from harness.history.store import HistoryStore
from harness.redaction import without_passwords
from harness.report.hosts import HostsView, write_hosts_page
from harness.report.numbers import count
from harness.results import RunStore


def write_hosts(reporter: pytest.TerminalReporter, runs: Sequence[Path]) -> None:
    """For several runs: a line for each host, and one page with all cells, beside the directories of the runs."""
    if len(runs) < 2:
        return
    try:
        view = HostsView.of([RunStore.open(path) for path in runs])
        page = runs[0].parent / f"hosts-{min(path.name for path in runs)}.html"
        write_hosts_page(view, page)
    except (ResultsError, OSError) as error:
        reporter.write_line(f"the page of all hosts cannot be written: {error}", red=True)
        return
    reporter.section(view.headline)
    for host in view.hosts:
        reporter.write_line(host.sentence)
    reporter.write_line(f"report of all hosts: {page}")


def add_to_history(reporter: pytest.TerminalReporter, runs: Sequence[Path], url: str | None) -> None:
    """Add the complete runs to the history at `url`; the others are named with the reason. None adds nothing."""
    if url is None or not runs:
        return
    added = 0
    for path in runs:
        try:
            added += HistoryStore.at(url).add(RunStore.open(path), {})
        except (ConfigError, ResultsError) as error:
            reporter.write_line(f"not added to the history: {error}", red=True)
            remedy = f"virt-overhead history add {path} --store=URL"
            reporter.write_line(f"  the run itself is stored; to add it later: {remedy}")
    reporter.write_line(f"history {without_passwords(url, is_url=True)}: {added} of {count(len(runs), 'run')} added")
