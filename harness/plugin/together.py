"""The page of all hosts that one session of pytest measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.errors import ResultsError
from harness.report.hosts import HostsView, write_hosts_page
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
