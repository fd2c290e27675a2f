"""The history of runs: one Parquet file per run, its trends and change points.

`virt-overhead history add`, or `--history` of a run, writes the cells of a complete run to a directory or an object
store (store.py). `virt-overhead history` queries all files with DuckDB, finds the change points of each cell, and names
the versions and settings that changed near them (trends.py); it prints them, or writes a page with charts (page.py).
"""

from typing import Literal

Quantity = Literal["overhead", "guest", "twin", "host"]
"""What a trend is of."""
