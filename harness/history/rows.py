"""A run as rows of the history: one for each cell and metric, with what identifies and surrounds it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import geometric_mean

from harness.results import MetricRecord, Run
from harness.results.cells import CellRecord
from harness.results.compare_differences import run_facts
from harness.results.tables import Column, Value


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One metric of one cell of a run. `facts` are those of the run, as JSON, so that they are made once."""

    run: Run
    digest: str
    facts: str
    disk_id: str
    cell: CellRecord
    name: str
    metric: MetricRecord


def history_rows(run: Run, digest: str, labels: Mapping[str, str]) -> Iterator[HistoryRow]:
    """The rows of a run whose results.json has this SHA-256. `labels` are further facts, for example a commit."""
    facts = run_facts(run) | {f"label.{name}": value for name, value in labels.items()}
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False)
    for cell in run.cells:
        identity = facts.get(f"{cell.scenario}.disk") or facts.get(f"{cell.scenario}.disk1") or cell.disk
        for name, metric in cell.metrics.items():
            yield HistoryRow(run, digest, text, str(identity), cell, name, metric)


def _mean(place: str) -> Column[HistoryRow]:
    def of(row: HistoryRow) -> Value:
        values = getattr(row.metric, place)
        return geometric_mean(values) if values and min(values) > 0 else None

    return Column(f"{place}_mean", float, of)


def _overhead(name: str, of_type: type, field: str) -> Column[HistoryRow]:
    return Column(name, of_type, lambda row: getattr(row.metric.overhead, field) if row.metric.overhead else None)


HISTORY_COLUMNS: tuple[Column[HistoryRow], ...] = (
    Column("run", str, lambda row: row.run.run.id),
    Column("started", float, lambda row: row.run.run.started),
    Column("host", str, lambda row: row.run.lab.host),
    Column("representative", bool, lambda row: row.run.lab.representative),
    Column("profile", str, lambda row: row.run.run.profile),
    Column("cell", str, lambda row: row.cell.id),
    Column("scenario", str, lambda row: row.cell.scenario),
    Column("disk", str, lambda row: row.cell.disk),
    Column("disk_id", str, lambda row: row.disk_id),
    Column("mode", str, lambda row: row.cell.mode),
    Column("job", str, lambda row: row.cell.job.id),
    Column("verdict", str, lambda row: row.cell.verdict.value),
    Column("metric", str, lambda row: row.name),
    Column("main", bool, lambda row: row.name == row.cell.job.headline),
    Column("unit", str, lambda row: row.metric.unit),
    Column("better", str, lambda row: row.metric.better),
    _mean("host"),
    _mean("twin"),
    _mean("guest"),
    _overhead("overhead", float, "point"),
    _overhead("overhead_low", float, "low"),
    _overhead("overhead_high", float, "high"),
    _overhead("n", int, "n"),
    Column("facts", str, lambda row: row.facts),
    Column("digest", str, lambda row: row.digest),
)
"""The columns of the history, in their order."""
