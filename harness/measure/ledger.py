"""What a run has found so far, and its results.json: kept current, so that an interrupt loses nothing measured."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pydantic import JsonValue

from harness.errors import ResultsError
from harness.lab.inventory import HostSpec
from harness.measure.phases import MEASURE, Phases
from harness.model.budget import Budget, LabKind
from harness.model.mode import Cell
from harness.results import (
    CONFIDENCE,
    SCHEMA_VERSION,
    CellContext,
    CellRecord,
    Efficiency,
    GroupRecord,
    Journal,
    LabInfo,
    Measurement,
    RoundEvent,
    Run,
    RunInfo,
    RunStatus,
    RunStore,
    assemble,
    corrected,
    decompositions,
    scalings,
)
from harness.run_id import RunId
from harness.scenario.budgets import budgets_for
from harness.scenario.plan import Group, Plan
from harness.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Order:
    """What a campaign is to do: the plans of the selected cells on one host, and how the run is called.

    `scenarios` are those of the plans, by name.
    """

    run_id: RunId
    host: HostSpec
    plans: tuple[Plan, ...]
    scenarios: Mapping[str, Scenario]
    profile: str
    seed: int
    command: str

    @property
    def disks(self) -> frozenset[str]:
        """The names of all disks that the plans measure on."""
        return frozenset(disk for plan in self.plans for disk in plan.disks)

    def budgets(self, cell: Cell, lab_kind: LabKind) -> dict[str, Budget]:
        """The budgets that the cell is judged by in such a lab, by metric."""
        return budgets_for(self.scenarios[cell.scenario], cell, lab_kind)

    def family(self, lab_kind: LabKind) -> int:
        """How many budgets the run judges."""
        return sum(len(self.budgets(cell, lab_kind)) for plan in self.plans for cell in plan.cells)


class Ledger:
    """Measurements, cell and group records of one run. `fio_seconds` counts ramps and measured time.

    `family` is how many budgets the run judges, measured already or not; `earlier` the journal of a run that goes on.
    """

    def __init__(self, order: Order, store: RunStore, phases: Phases, earlier: Journal) -> None:
        self.fio_seconds = 0.0
        self.family = 0
        self.lab = LabInfo(
            order.host.name, order.host.kind, "unknown", representative=False, why="the lab was never reached"
        )
        self.provenance: dict[str, JsonValue] = {}
        self.groups: dict[str, GroupRecord] = {}
        self._records: dict[str, CellRecord] = {}
        self._order = order
        self._store = store
        self._phases = phases
        self._measurements: list[Measurement] = []
        self._earlier = earlier
        self._numbers: dict[str, set[int]] = {}
        self._abandoned: dict[str, set[int]] = {}
        self._started = time.time()

    def add(self, measurements: Iterable[Measurement], *, fio_seconds: float) -> None:
        self._measurements += measurements
        self.fio_seconds += fio_seconds

    def next_round(self, group: str) -> int:
        """A number that no round of the group has had, whatever became of it."""
        return max(self._used(group), default=0) + 1

    @contextmanager
    def round(self, group: str, number: int, measurements: int) -> Iterator[None]:
        """One round, of so many measurements. Where it fails or is interrupted it is abandoned, and does not count."""
        self._used(group).add(number)
        self._store.append(RoundEvent("begun", group, number, measurements, None))
        try:
            yield
        except BaseException as error:
            # Where not even this can be written, it is when the run is resumed: the round is not whole.
            with suppress(ResultsError):
                self.abandon(group, number, str(error).partition("\n")[0] or "interrupted")
            raise

    def abandon(self, group: str, number: int, why: str) -> None:
        """Forget a round that was not finished. The journal keeps its measurements, and says that it is abandoned."""
        self._measurements = [each for each in self._measurements if (each.group, each.round) != (group, number)]
        self.abandoned(group).add(number)
        self._store.append(RoundEvent("abandoned", group, number, None, why))

    def abandoned(self, group: str) -> set[int]:
        """The numbers of the group's rounds that were begun and not finished."""
        return self._abandoned.setdefault(group, self._earlier.abandoned(group))

    def resume(self, stored: Run) -> None:
        """Begin with the records of a run that is resumed: a group has them until it is assembled anew.

        Rounds in which its process ended are abandoned.
        """
        self.groups |= {group.id: group for group in stored.groups}
        self._records |= {cell.id: cell for cell in stored.cells}
        for begun in self._earlier.unfinished:
            self.abandon(begun.group, begun.round, "the run ended before the round did")

    @property
    def records(self) -> dict[str, CellRecord]:
        """The cells by id, their verdicts corrected for how many there are."""
        return {record.id: record for record in self._corrected()}

    def of_group(self, group: str) -> list[Measurement]:
        """What was measured of a group so far, in order of time."""
        return sorted((each for each in self._measurements if each.group == group), key=lambda each: each.started)

    def assemble(self, cells: Iterable[Cell], contexts: Mapping[str, CellContext]) -> dict[str, CellRecord]:
        """Make the records of `cells` from all that was measured of them so far; by id, not yet corrected."""
        made = {record.id: record for record in assemble(tuple(cells), self._measurements, contexts)}
        self._records |= made
        return made

    def write(self, status: RunStatus) -> Run:
        """Write results.json as things stand, cells in the order of the plan."""
        order, phases = self._order, self._phases.seconds
        info = RunInfo(
            id=order.run_id,
            started=self._started,
            finished=None if status == "running" else time.time(),
            command=order.command,
            profile=order.profile,
            seed=order.seed,
            status=status,
            scenarios={name: scenario.title for name, scenario in order.scenarios.items()},
            phases={name: round(seconds, 3) for name, seconds in phases.items()},
            efficiency=Efficiency.of(self.fio_seconds, phases.get(MEASURE, 0.0)),
        )
        groups = tuple(self.groups[group.id] for group in self._planned_groups() if group.id in self.groups)
        planned = tuple(self._planned_groups())
        cells = tuple(cell for group in planned for cell in group.cells)
        records = self.records
        run = Run(
            SCHEMA_VERSION,
            info,
            self.lab,
            dict(self.provenance),
            groups,
            tuple(records.values()),
            decompositions(order.scenarios.values(), planned, records),
            scalings(cells, records, (*self._earlier.measurements, *self._measurements)),
        )
        self._store.write_results(run)
        return run

    def _used(self, group: str) -> set[int]:
        return self._numbers.setdefault(group, self._earlier.numbers(group))

    def _planned_groups(self) -> Iterator[Group]:
        return (group for plan in self._order.plans for group in plan.groups)

    def _corrected(self) -> list[CellRecord]:
        planned = (cell.id for group in self._planned_groups() for cell in group.cells)
        found = [self._records[cell_id] for cell_id in planned if cell_id in self._records]
        return corrected(found, family=self.family, error_rate=(1 - CONFIDENCE) / 2)
