"""The history of runs: one Parquet file per run, its trends and change points.

`virt-overhead history add`, or `--history` of a run, writes the cells of a complete run to a directory or an object
store (store.py). `virt-overhead history` queries all files with DuckDB, finds the change points of each cell, and names
the versions and settings that changed near them (trends.py); it prints them, or writes a page with charts (page.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.feature import Feature, RunOption, SessionRuns

if TYPE_CHECKING:
    import pytest

Quantity = Literal["overhead", "guest", "twin", "host"]
"""What a trend is of."""


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
