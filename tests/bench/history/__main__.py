"""`python -m tests.bench.history [DIR] [RUNS] [CELLS]`: writes a history, and times its queries.

One cell in 50 has a change. Without arguments: 1,000 runs of 1,000 cells in a temporary directory.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness.features.compare.history_store import HistoryStore
from harness.features.compare.trends import find_trends
from tests.features.compare.history_files import write_history


def main(directory: Path, runs: int, cells: int) -> None:
    chance = random.Random(1)
    started = time.perf_counter()
    write_history(directory, runs, cells, lambda run, cell: _share(chance, run >= runs - 100 and cell % 50 == 0))
    size = sum(path.stat().st_size for path in directory.iterdir())
    print(f"{runs} runs of {cells} cells, {size / 2**20:.0f} MiB, written in {time.perf_counter() - started:.1f} s")
    store = HistoryStore.at(str(directory))
    averages = "SELECT cell, avg(overhead) FROM history GROUP BY cell"
    _timed("the mean of each cell over all runs, by SQL", lambda: len(store.query(averages, {})))
    one, every = f"job{cells - 1}", ""
    _timed("trend and change points of one cell, newest 200 runs", lambda: _trends(store, one, 200))
    _timed("trends and change points of all cells, newest 200 runs", lambda: _trends(store, every, 200))
    _timed("trend and change points of one cell, all runs", lambda: _trends(store, one, runs))


def _trends(store: HistoryStore, cell: str, most: int) -> int:
    return len(find_trends(store, cell=cell, metric=None, quantity="overhead", most=most))


def _share(chance: random.Random, changed: bool) -> float:
    return (0.72 if changed else 0.8) * (1 + chance.gauss(0, 0.02))


def _timed(what: str, query: Callable[[], int]) -> None:
    started = time.perf_counter()
    found = query()
    print(f"{what}: {time.perf_counter() - started:.2f} s ({found} cells)")


if __name__ == "__main__":
    given = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(given[0] if given else f"{temporary}/history"), *map(int, given[1:] or ("1000", "1000")))
