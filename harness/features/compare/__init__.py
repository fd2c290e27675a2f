"""The comparison of runs, baselines to compare with, and the history of many runs with its trends.

`virt-overhead compare` and `--baseline` of a measurement find the cells of two runs that belong together and what else
differs between the runs, estimate the change of each arm and judge it among all that are compared (comparison.py).
records.py is the JSON document, words.py says it in words for a terminal and as Markdown, page.py as a page.
`virt-overhead baseline` names a run (command.py).

`virt-overhead history add`, or `--history` of a run, writes the cells of a complete run to a directory or an object
store, a Parquet file for each run (history_store.py). `virt-overhead history` queries all files with DuckDB, finds the
change points of each cell, and names the versions and settings that changed near them (trends.py); it prints them, or
writes a page with charts (page.py). Both ask which facts of a run may affect its values (comparability.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from harness.feature import Feature, RunOption, import_later

if TYPE_CHECKING:
    from harness.features.compare import command, history_store
else:
    command, history_store = import_later(__name__, "command", "history_store")

Quantity = Literal["overhead", "guest", "twin", "host"]
"""What a trend is of."""

FEATURE = Feature(
    name="compare",
    brings=(
        RunOption(
            flag="--baseline",
            metavar="NAME",
            help="compare the run with this baseline (`virt-overhead baseline`); a run that is worse is a failure",
            check=lambda name, reports: command.find_baseline(reports, name),
            judge=lambda name, runs: command.judge_runs(name, runs),
            print=lambda name, runs, reporter: command.print_comparisons(name, runs, reporter),
        ),
        RunOption(
            flag="--history",
            metavar="URL",
            help="add the complete runs, one of each host, to the history in this directory or at this URL "
            "(`virt-overhead history`)",
            check=lambda url, _reports: history_store.HistoryStore.at(url),
            print=lambda url, runs, reporter: history_store.add_runs(url, runs, reporter),
        ),
    ),
)
