"""What the history adds to the kernel: the option `--history` of a measurement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.feature import Feature, RunOption, SessionRuns

if TYPE_CHECKING:
    import pytest


def check_url(url: str, _reports: Path) -> None:
    """Raise ConfigError if there can be no history at this URL."""
    from harness.features.history.store import HistoryStore

    HistoryStore.at(url)


def add_runs(url: str, runs: SessionRuns, reporter: pytest.TerminalReporter) -> None:
    """Add the complete runs to the history; the others are named with the reason."""
    from harness.errors import ConfigError, ResultsError
    from harness.features.history.store import HistoryStore
    from harness.report.numbers import count
    from harness.results import RunStore
    from harness.terminal import hide_passwords

    if not runs.paths:
        return
    added = 0
    for path in runs.paths:
        try:
            added += HistoryStore.at(url).add(RunStore.open(path), {})
        except (ConfigError, ResultsError) as error:
            reporter.write_line(f"not added to the history: {error}", red=True)
            remedy = f"virt-overhead history add {path} --store=URL"
            reporter.write_line(f"  the run itself is stored; to add it later: {remedy}")
    total = count(len(runs.paths), "run")
    reporter.write_line(f"history {hide_passwords(url, is_url=True)}: {added} of {total} added")


FEATURE = Feature(
    name="history",
    run_options=(
        RunOption(
            flag="--history",
            metavar="URL",
            help="add the complete runs, one of each host, to the history in this directory or at this URL "
            "(`virt-overhead history`)",
            check=check_url,
            print=add_runs,
        ),
    ),
)
