"""Histories of many made-up runs, written as `virt-overhead history add` writes them, but without their results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.features.compare.history_store import HISTORY_COLUMNS
from harness.features.export_formats import TypedColumn, parquet_bytes

DAY = 86_400.0
_NAMED: Sequence[TypedColumn[dict[str, Any]]] = [
    TypedColumn(column.name, column.type, lambda row, name=column.name: row.get(name))  # type: ignore[misc]
    for column in HISTORY_COLUMNS
]


def run_id(number: int) -> str:
    """The id of a run; one starts each day."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(1.7e9 + number * DAY))}-{number % 65536:04x}"


def write_history(
    directory: Path,
    runs: int,
    cells: int,
    share: Callable[[int, int], float],
    facts: Callable[[int], Mapping[str, str]] = lambda _run: {"host.kernel": "6.1"},
) -> None:
    """A history with these numbers of runs and cells. `share(run, cell)` is the guest's share of its host's IOPS."""
    directory.mkdir(parents=True)
    for run in range(runs):
        same = {
            "run": run_id(run),
            "started": 1.7e9 + run * DAY,
            "host": "node1",
            "representative": True,
            "profile": "standard",
            "scenario": "nvme",
            "disk": "nvme",
            "disk_id": "/dev/disk/by-id/nvme (serial N)",
            "verdict": "within",
            "metric": "iops",
            "main": True,
            "unit": "IO/s",
            "better": "higher",
            "host_mean": 1e5,
            "n": 12,
            "facts": json.dumps(facts(run)),
            "digest": "0" * 64,
        }
        rows = []
        for cell in range(cells):
            guest = share(run, cell)
            own = {"cell": f"nvme-lvm-job{cell}", "mode": "lvm", "job": f"job{cell}"}
            rows.append({**same, **own, "guest_mean": 1e5 * guest, "overhead": 1 - guest})
        data = parquet_bytes(rows, _NAMED, needed_for="this test", extra="history")
        (directory / f"{run_id(run)}.parquet").write_bytes(data)
