"""What a run has found so far, and its results.json: kept current, so that an interrupt loses nothing measured."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from harness.lab.inventory import HostSpec
from harness.measure.phases import MEASURE, Phases
from harness.results import (
    SCHEMA_VERSION,
    CellContext,
    CellRecord,
    Efficiency,
    LabInfo,
    Measurement,
    Run,
    RunInfo,
    RunStatus,
    RunStore,
    assemble,
)
from harness.scenario.model import Cell
from harness.scenario.plan import Plan


@dataclass(frozen=True, slots=True)
class Order:
    """What a campaign is to do: the plans of the selected cells on one host, and how the run is called."""

    run_id: str
    host: HostSpec
    plans: tuple[Plan, ...]
    titles: Mapping[str, str]
    profile: str
    seed: int
    command: str


class Ledger:
    """Measurements and cell records of one run. `fio_seconds` counts ramps and measured time."""

    def __init__(self, order: Order, store: RunStore, phases: Phases) -> None:
        self.fio_seconds = 0.0
        self.lab = LabInfo(
            order.host.name, order.host.kind, "unknown", representative=False, why="the lab was never reached"
        )
        self.provenance: dict[str, JsonValue] = {}
        self.records: dict[str, CellRecord] = {}
        self._order = order
        self._store = store
        self._phases = phases
        self._measurements: list[Measurement] = []
        self._started = time.time()

    def add(self, measurements: Iterable[Measurement], *, fio_seconds: float) -> None:
        self._measurements += measurements
        self.fio_seconds += fio_seconds

    def drop(self, group: str, number: int) -> None:
        """Forget a round that was not finished; the journal keeps it."""
        self._measurements = [each for each in self._measurements if (each.group, each.round) != (group, number)]

    def assemble(self, cells: Iterable[Cell], contexts: Mapping[str, CellContext]) -> None:
        """Make the records of `cells` from all that was measured of them so far."""
        for record in assemble(tuple(cells), self._measurements, contexts):
            self.records[record.id] = record

    def write(self, status: RunStatus) -> Run:
        """Write results.json as things stand, cells in the order of the plan."""
        order, phases = self._order, self._phases.seconds
        planned = (cell.id for plan in order.plans for cell in plan.cells)
        info = RunInfo(
            id=order.run_id,
            started=self._started,
            finished=None if status == "running" else time.time(),
            command=order.command,
            profile=order.profile,
            seed=order.seed,
            status=status,
            scenarios=dict(order.titles),
            phases={name: round(seconds, 3) for name, seconds in phases.items()},
            efficiency=Efficiency.of(self.fio_seconds, phases.get(MEASURE, 0.0)),
        )
        cells = tuple(self.records[cell_id] for cell_id in planned if cell_id in self.records)
        run = Run(SCHEMA_VERSION, info, self.lab, dict(self.provenance), cells)
        self._store.write_results(run)
        return run
