"""The history of runs: one Parquet file per run, its trends and change points.

`virt-overhead history add`, or `--history` of a run, writes the cells of a complete run to a directory or an object
store (store.py). `virt-overhead history` queries all files with DuckDB, finds the change points of each cell, and names
the versions and settings that changed near them (trends.py); it prints them, or writes a page with charts (page.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from harness.feature import Feature, RunOption, import_later

if TYPE_CHECKING:
    from harness.features.history import store
else:
    (store,) = import_later(__name__, "store")

Quantity = Literal["overhead", "guest", "twin", "host"]
"""What a trend is of."""


FEATURE = Feature(
    name="history",
    brings=(
        RunOption(
            flag="--history",
            metavar="URL",
            help="add the complete runs, one of each host, to the history in this directory or at this URL "
            "(`virt-overhead history`)",
            check=lambda url, _reports: store.HistoryStore.at(url),
            print=lambda url, runs, reporter: store.add_runs(url, runs, reporter),
        ),
    ),
)
