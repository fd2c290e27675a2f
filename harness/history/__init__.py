"""The history of runs: one Parquet file per run, its trends and change points."""

from __future__ import annotations

from typing import Literal

Quantity = Literal["overhead", "guest", "twin", "host"]
"""What of a cell is shown over time: the overhead, or the values of an arm."""
