"""`python guests.py RUN`, with PYTHONPATH for the harness of a checkout: the comparisons of guests by that harness.

Prints a JSON list with the ratio of two guests of one disk and job, and the ends of its interval, for each pair of
modes. It imports nothing else of this repository, and takes the names of the function that older versions have.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

METRIC = "iops"
_RESULTS = "harness.results"
_PLACES = (("contrasts", "compare_guests"), ("mode_changes", "mode_changes"))
"""Modules of the package in which versions of the harness have the function, the newest first."""


def find_function() -> Any:
    """The function of this harness that compares guests."""
    for module, name in _PLACES:
        try:
            return getattr(import_module(f"{_RESULTS}.{module}"), name)
        except (ImportError, AttributeError):
            continue
    raise SystemExit("this version of the harness has no function that compares guests")


def compare_guests(run: Path) -> list[dict[str, Any]]:
    """A record for each disk, job and pair of modes that both have the metric with an interval."""
    compare = find_function()
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in import_module(_RESULTS).RunStore.open(run).read_results().cells:
        if cell.mode_detail.attach is not None and cell.skipped is None and METRIC in cell.metrics:
            cells.setdefault((cell.disk, cell.job.id), {})[cell.mode] = cell
    records = []
    for (disk, job), modes in cells.items():
        for one, other in combinations(sorted(modes), 2):
            change = compare({other: [(modes[one], modes[other])]}, METRIC, 0.95)[other].change
            records.append(
                {
                    "cells": [modes[one].id, modes[other].id],
                    "name": f"{disk} {job}: {other} against {one}",
                    "ratio": change.ratio,
                    "low": change.low,
                    "high": change.high,
                }
            )
    return records


if __name__ == "__main__":
    print(json.dumps(compare_guests(Path(sys.argv[1]))))
