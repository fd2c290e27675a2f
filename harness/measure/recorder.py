"""The records of a run, and its results.json.

The journal has every measurement as soon as it is made. The file has all of them when the run ends, also by Ctrl-C. In
between it is written at most so often that this takes WRITING_SHARE of the time, because it is written as a whole.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from typing import Any

from pydantic import JsonValue

from harness.analysis import CONFIDENCE
from harness.errors import NotReached, ResultsError
from harness.feature import FeatureRecords, feature_records, features, is_asked
from harness.measure.phases import MEASURE, Phases
from harness.measure.series import CampaignSpec, LabFound
from harness.model.disk import DiskRecord, merge_disk_records
from harness.model.mode import Budget, Cell, LabKind
from harness.results import (
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
    correct_records,
    make_judged_record,
)
from harness.results.assemble import AssembledRun
from harness.results.records import CarryOverRecord, DiskWrites

NOT_EXAMINED = "the host was not examined"
WRITING_SHARE = 0.02
"""The share of the time that writing results.json may take before the run ends."""


class Recorder:
    """Measurements, cell records and group records of one run. `earlier` is the journal of a resumed run."""

    def __init__(self, spec: CampaignSpec, store: RunStore, phases: Phases, earlier: Journal) -> None:
        self._spec = spec
        self._store = store
        self._phases = phases
        self._earlier = earlier
        self._lab = LabInfo(spec.host.name, spec.host.kind, "unknown", representative=False, why=NOT_EXAMINED)
        self._lab_kind: LabKind | None = None
        planned = (cell for plan in spec.plans for cell in plan.cells)
        left_out = (cell for plan in spec.plans for part in plan.left_out for cell in part.cells)
        self._every_cell = {cell.id: cell for cell in (*planned, *left_out)}
        """The cells of the plans, then those that the plans leave out, by id."""
        self._family = 0
        self._cause: str | None = None
        self._fio_seconds = 0.0
        self._provenance: dict[str, JsonValue] = {}
        self._disks: dict[str, DiskRecord] = {}
        self._groups: dict[str, GroupRecord] = {}
        self._records: dict[str, CellRecord] = {}
        self._of_features: dict[str, dict[str, Any]] = {}
        """Records of features by their key in results.json and by id."""
        self._writes: tuple[DiskWrites, ...] = ()
        self._measurements: dict[str, list[Measurement]] = {}
        """Those that count, by group."""
        self._ran: dict[str, list[Measurement]] = {}
        """Those of this part of the run, by group."""
        self._numbers: dict[str, set[int]] = {}
        self._abandoned: dict[str, set[int]] = {}
        self._started = time.time()
        self._written: tuple[dict[str, JsonValue], set[str]] | None = None
        """The provenance and the names of the disks in results.json; None if it is not from this part of the run."""
        self._next_write = 0.0
        """When results.json is due, on the monotonic clock."""

    @property
    def fio_seconds(self) -> float:
        """Seconds in which fio ran, including ramps and an earlier part of the run."""
        return self._fio_seconds

    @property
    def family(self) -> int:
        """The number of budgets that the run judges, whether measured already or not."""
        return self._family

    def budgets(self, cell: Cell) -> dict[str, Budget]:
        """The budgets of the cell in this lab, by their keys. Empty until the host was examined."""
        return self._spec.budgets(cell, self._lab_kind) if self._lab_kind else {}

    @property
    def provenance(self) -> Mapping[str, JsonValue]:
        """Versions and settings of the measurement, as plain JSON values."""
        return self._provenance

    def record_lab(self, lab: LabFound) -> None:
        """Record the properties of the host."""
        self._lab = lab.info
        self._lab_kind = lab.kind
        self._family = self._spec.family(lab.kind)
        self.describe(lab.provenance)

    def describe(self, provenance: Mapping[str, JsonValue]) -> None:
        self._provenance |= provenance

    def disks(self, disks: Iterable[DiskRecord]) -> None:
        """Record disks and their health. What is known from before is kept."""
        self._disks |= {disk.name: merge_disk_records(self._disks.get(disk.name), disk) for disk in disks}

    def failed(self, error: Exception) -> None:
        """Record why measuring stopped. The first cause counts."""
        if self._cause is None:
            self._cause = str(error) or type(error).__name__
            if isinstance(error, NotReached) and self._lab.why == NOT_EXAMINED:
                self._lab = replace(self._lab, why=f"the host was never reached: {error.message}")

    def group(self, record: GroupRecord) -> None:
        self._groups[record.id] = record

    def add_record(self, record: Any) -> None:
        """Record the current state of what a feature measures. Its class must be the record of a feature.

        If the journal does not have it, results.json is due.
        """
        of = _find_kind(type(record))
        self._of_features.setdefault(of.key, {})[record.id] = record
        if not of.in_journal:
            self._next_write = 0.0

    def has_record(self, kind: type, record_id: str) -> bool:
        """Whether there is a record of this class of a feature with this id."""
        return record_id in self._of_features.get(_find_kind(kind).key, {})

    def writes(self, records: Iterable[DiskWrites]) -> None:
        """Record what was written to each disk so far, of a run with a limit."""
        self._writes = tuple(records)

    def carry_over(self, group: str) -> tuple[CarryOverRecord, ...]:
        """What the jobs of a group show about carry-over, by the group's current state."""
        return self._groups[group].carry_over

    def add(self, measurements: Sequence[Measurement], *, fio_seconds: float) -> None:
        """Record new measurements. fio ran for `fio_seconds` in them, including ramps."""
        self.take_over(measurements)
        for measurement in measurements:
            self._ran.setdefault(measurement.group, []).append(measurement)
        self._fio_seconds += fio_seconds

    def take_over(self, measurements: Sequence[Measurement]) -> None:
        """Count a whole round of an earlier part of the run."""
        for measurement in measurements:
            self._measurements.setdefault(measurement.group, []).append(measurement)

    def ran(self, group: str, before: float = math.inf) -> list[Measurement]:
        """Everything that ran of a group in rounds below `before`, also in rounds that do not count (yet)."""
        every = (*self._earlier.of_group(group), *self._ran.get(group, ()))
        return [measurement for measurement in every if measurement.round < before]

    def next_round(self, group: str) -> int:
        """A number that no round of the group has used, also no abandoned one."""
        return max(self._used(group), default=0) + 1

    @contextmanager
    def rounds(self, begun: Sequence[RoundEvent]) -> Iterator[None]:
        """Rounds that are measured together. If that fails or is interrupted, they are abandoned."""
        for begin in begun:
            self._used(begin.group).add(begin.round)
        self._store.append(*begun)
        try:
            yield
        except BaseException as error:
            # If even this cannot be written, --resume abandons the rounds, because they are not complete.
            with suppress(ResultsError):
                for begin in begun:
                    self.abandon(begin.group, begin.round, str(error).partition("\n")[0] or "interrupted")
            raise

    def abandon(self, group: str, number: int, why: str) -> None:
        """Drop a round that was not finished. The journal has its measurements, and records that it is abandoned."""
        self._measurements[group] = [
            measurement for measurement in self._measurements.get(group, ()) if measurement.round != number
        ]
        self.abandoned(group).add(number)
        self._store.append(RoundEvent("abandoned", group, number, None, why))

    def abandoned(self, group: str) -> set[int]:
        """The numbers of the group's rounds that were begun and not finished."""
        return self._abandoned.setdefault(group, self._earlier.abandoned(group))

    def resume(self, stored: Run) -> None:
        """Begin with the records of a run that is resumed. A group keeps them until it is assembled again.

        Rounds in which the earlier process ended are abandoned. The earlier time counts.
        """
        self._fio_seconds += stored.run.efficiency.fio_s
        self._phases.add(stored.run.phases)
        self._disks |= {disk.name: merge_disk_records(disk, self._disks.get(disk.name, disk)) for disk in stored.disks}
        self._groups |= {group.id: group for group in stored.groups}
        self._records |= {cell.id: cell for cell in stored.cells if cell.id in self._every_cell}
        for of in feature_records():
            if of.compute is None:
                records = stored.of_features.get(of.key, ())
                self._of_features.setdefault(of.key, {}).update({record.id: record for record in records})
        self._writes = self._writes or stored.writes
        for begun in self._earlier.unfinished:
            self.abandon(begun.group, begun.round, "the run ended before the end of the round")

    def records_of(self, cells: Iterable[Cell]) -> dict[str, CellRecord]:
        """The records of these cells by id, as far as there are some.

        Their verdicts are corrected for the number of budgets of the run.
        """
        records = {cell.id: self._records[cell.id] for cell in cells if cell.id in self._records}
        if not any(record.budget for record in records.values()):
            return records
        return self._correct_verdicts(self._records.values(), only=records)

    def of_group(self, group: str) -> list[Measurement]:
        return sorted(self._measurements.get(group, ()), key=lambda measurement: measurement.started)

    def assemble(self, cells: Iterable[Cell], contexts: Mapping[str, CellContext]) -> dict[str, CellRecord]:
        """Make the records of `cells` from all measurements so far. Returns them by id, without the correction."""
        groups = dict.fromkeys(context.group for context in contexts.values())
        measurements = [measurement for group in groups for measurement in self._measurements.get(group, ())]
        made = {record.id: record for record in assemble(tuple(cells), measurements, contexts)}
        self._records |= made
        return made

    def write_if_due(self) -> None:
        """Write the current state, unless results.json has all that --resume needs and writing took long enough."""
        # The journal does not have the provenance, and the first health of a disk.
        if self._written != (self._provenance, set(self._disks)) or time.monotonic() >= self._next_write:
            self.write("running")

    def write(self, status: RunStatus) -> Run:
        """Write the current state to results.json, with cells in the order of the plan."""
        begun = time.monotonic()
        spec, phases = self._spec, self._phases.seconds
        info = RunInfo(
            id=spec.run_id,
            started=self._started,
            finished=None if status == "running" else time.time(),
            command=spec.command,
            profile=spec.profile,
            seed=spec.seed,
            status=status,
            scenarios={name: scenario.title for name, scenario in spec.scenarios.items()},
            phases={name: round(seconds, 3) for name, seconds in phases.items()},
            efficiency=Efficiency.of(self._fio_seconds, phases.get(MEASURE, 0.0)),
            cause=self._cause if status == "failed" else None,
            published={name: scenario.published for name, scenario in spec.scenarios.items() if scenario.published},
            max_writes=spec.max_writes,
        )
        planned = tuple(group for plan in spec.plans for group in plan.groups)
        groups = tuple(self._groups[group.id] for group in planned if group.id in self._groups)
        records = self._correct_verdicts(
            self._records[cell_id] for cell_id in self._every_cell if cell_id in self._records
        )
        disks = tuple(self._disks.values())
        measured = (*self._earlier.measurements, *chain(*self._measurements.values()))
        cells = tuple(cell for group in planned for cell in group.cells)
        assembled = AssembledRun(cells, records, measured, disks, tuple(spec.scenarios.values()), planned)
        guests = sum(cell.mode.attach is not None for cell in self._every_cell.values())
        run = Run(
            SCHEMA_VERSION,
            info,
            self._lab,
            dict(self._provenance),
            groups,
            tuple(records.values()),
            self._writes,
            make_judged_record(records.values(), self._lab_kind, planned=guests),
            disks,
            self._collect_feature_records(assembled),
        )
        self._store.write_results(run)
        ended = time.monotonic()
        self._written = dict(self._provenance), set(self._disks)
        self._next_write = ended + (ended - begun) / WRITING_SHARE
        return run

    def _collect_feature_records(self, assembled: AssembledRun) -> dict[str, tuple[Any, ...]]:
        planned = [follow_up.id for plan in self._spec.plans for follow_up in plan.follow_ups]
        by_key: dict[str, tuple[Any, ...]] = {}
        asked = {
            records.key
            for feature in features()
            if any(is_asked(feature, scenario) for scenario in assembled.scenarios)
            for records in feature.load_records()
        }
        for of in feature_records():
            recorded = self._of_features.get(of.key, {})
            if of.compute is not None:
                by_key[of.key] = tuple(of.compute(assembled)) if of.key in asked else ()
            elif of.in_journal:
                by_key[of.key] = tuple(recorded[name] for name in planned if name in recorded)
            else:
                by_key[of.key] = tuple(recorded.values())
        return by_key

    def _used(self, group: str) -> set[int]:
        return self._numbers.setdefault(group, self._earlier.numbers(group))

    def _correct_verdicts(
        self, records: Iterable[CellRecord], only: Collection[str] | None = None
    ) -> dict[str, CellRecord]:
        judged = correct_records(records, family=self._family, error_rate=(1 - CONFIDENCE) / 2, only=only)
        return {record.id: record for record in judged}


def _find_kind(record: type) -> FeatureRecords:
    return next(of for of in feature_records() if issubclass(record, of.record))
