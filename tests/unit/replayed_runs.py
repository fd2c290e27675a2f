"""A run that is replayed with its own noise, as it was or changed by a known factor."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from harness.results import CellRecord, Run
from tests.build import synthetic_run

BLOCKS = 30


@cache
def recorded() -> Run:
    """A run of two jobs: 6 cells with 8 arms, each with the main metric only."""
    found = synthetic_run(modes=("host", "passthrough", "lvm"), workloads=("randread-4k",), budget=None, rounds=BLOCKS)
    return replace(found, cells=tuple(map(_with_main_metric, found.cells)))


def _with_main_metric(cell: CellRecord) -> CellRecord:
    return replace(cell, metrics={cell.job.headline: cell.metrics[cell.job.headline]})


def replayed(seed: int, *, factor: float = 1.0, noise: float = 0.05) -> Run:
    """The recorded run again, with `factor` times the throughput and its own noise in each block and arm."""
    chance = np.random.default_rng(seed)

    def again(values: tuple[float, ...]) -> tuple[float, ...]:
        mean = factor * float(np.exp(np.log(values).mean())) if values else 1.0
        return tuple(mean * float(error) for error in np.exp(chance.normal(0, noise, len(values))))

    def cell(of: CellRecord) -> CellRecord:
        metric = of.metrics[of.job.headline]
        host, twin, guest = again(metric.host), again(metric.twin), again(metric.guest)
        return replace(of, metrics={of.job.headline: replace(metric, host=host, twin=twin, guest=guest, adjusted={})})

    run = recorded()
    info = replace(run.run, id=f"20260101-120000-{seed:04x}", seed=seed)
    return replace(run, run=info, cells=tuple(map(cell, run.cells)))
