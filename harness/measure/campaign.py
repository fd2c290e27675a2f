"""Measures everything of one run on one host, group after group, and what a failure means for the others."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

from harness.errors import MeasurementError, NotTried, ResultsError, Unsupported
from harness.events import GroupMeasured, Note
from harness.feature import Feature, FeatureLimit, RunSwitch, features, find_brought, is_asked
from harness.measure.phases import MEASURE, Phases, Timing, add_pace
from harness.measure.recorder import Recorder
from harness.measure.resume import Earlier, claim_run, collect_fio_texts, describe_evaluation, requested
from harness.measure.rounds import GroupRounds, RunContext
from harness.measure.series import (
    CampaignSpec,
    LabFound,
    LimitReached,
    Measurer,
    NothingToCompare,
    PreparedGroup,
    SeriesEngine,
    StepLimit,
    require_guest,
)
from harness.model.mode import Cell
from harness.results import CellContext, CellRecord, Run, RunStatus, RunStore
from harness.scenario.plan import Plan
from harness.scenario.setups import Group


class Campaign:
    """Measures on request. The first cell of a group starts the measurement of the group. The others read the results.

    Cells that the host does not support are skipped. If fio fails, the scenario's other cells get the first cause.
    After any other failure, all later cells on this host get it.
    """

    def __init__(
        self,
        spec: CampaignSpec,
        store: RunStore,
        measurer: Measurer,
        phases: Phases,
        earlier: Earlier | None = None,
    ) -> None:
        self.spec = spec
        self.store = store
        self._measurer = measurer
        self._events = phases.events
        self._earlier = claim_run(store, earlier or Earlier())
        self._read_bytes = store.journal_bytes if self._earlier.run is not None else None
        """The size of the journal of a run that is resumed, until the host is this run's alone; then None."""
        self._measured: set[str] = set()
        self._recorder = Recorder(spec, store, phases, self._earlier.journal)
        self._context = RunContext(spec, store, self._recorder, phases, self._earlier, measurer, self._measured)
        limit = find_brought(FeatureLimit) if spec.limits else None
        self._limit = limit.keep(self._context) if limit is not None else StepLimit()
        self._phases = phases
        self._timing = Timing(spec.plans)
        self._engine = SeriesEngine(measurer, self._events, self._record_lab, self._limit, self._timing)
        self._again_seconds = 0.0
        """The time for which jobs were measured again."""
        self._recorder.describe(
            {"asked": requested(spec), "evaluation": describe_evaluation(spec), **collect_fio_texts(spec)}
        )
        self._recorder.describe(spec.planned.as_provenance())
        self._broken: Exception | None = None
        self._failed: dict[str, Exception] = {}
        """The failure of each scenario that concerns only this scenario."""
        self._refused: dict[tuple[str, int], Unsupported] = {}
        """Why the host does not support a setup, by scenario and number of the setup."""
        self._reached = False
        self._finished = self._earlier.run if self._earlier.finished(spec) else None
        self.not_measured: set[str] = set()
        """The ids of the cells that were not measured because of the limit of the bytes written."""
        self._records = {cell.id: cell for cell in self._finished.cells} if self._finished else {}
        """The cells of the groups that are measured."""
        self._groups = {cell.id: (group, plan) for plan in spec.plans for group in plan.groups for cell in group.cells}
        self._left_out = {
            cell.id: (plan, left_out) for plan in spec.plans for left_out in plan.left_out for cell in left_out.cells
        }

    def record(self, cell: Cell) -> CellRecord:
        """The cell's record. Raises the error that stopped measuring, and NotTried with this cause for later cells."""
        if cell.id in self._left_out:
            self.not_measured.add(cell.id)
            return self._make_left_out_record(cell)
        if cell.id in self._records:
            return self._records[cell.id]
        group, plan = self._groups[cell.id]
        if group.id not in self._measured:
            self._require_no_failure(group)
            try:
                self._measure(group, plan)
            except MeasurementError as error:
                self._failed[group.scenario] = error
                self._recorder.failed(error)
                raise
            except Exception as error:
                self._broken = error
                self._recorder.failed(error)
                raise
            finally:
                self._write_if_due()
        self._records |= self._recorder.records_of(group.cells)
        return self._records[cell.id]

    def _require_no_failure(self, group: Group) -> None:
        scenario = self._failed.get(group.scenario)
        if cause := self._broken or scenario:
            what = f"host {self.spec.host.name}" if self._broken else f"scenario {group.scenario}"
            raise NotTried(f"not tried: {what} failed before: {str(cause).partition(chr(10))[0]}")

    def close(self, *, interrupted: bool) -> Run:
        """Take down everything that was built, and write the final results. Returns the stored run."""
        groups = {group.id for plan in self.spec.plans for group in plan.groups}
        whole = self._broken is None and not self._failed and self._measured == groups
        status: RunStatus = "complete" if whole else "failed"
        ended: RunStatus = "interrupted" if interrupted else status
        try:
            try:
                self._limit.record()  # A disk that is a file ends with its session.
                self._measurer.close_session()
                self._limit.end()
            finally:
                self._measurer.close()
        finally:
            self._limit.record()
            try:
                run = self._complete(self._finished) if self._finished else self._write(ended)
            finally:
                self.store.release()
        if run.run.status == "complete" and self._earlier.run is None and not self._refused:
            seconds = self._phases.seconds
            add_pace(self.spec.host, self._timing.pace(seconds, self._again_seconds))
        return run

    def _complete(self, finished: Run) -> Run:
        """A completely measured run, with the status `complete` also if it was killed before it could write that."""
        if finished.run.status != "complete":
            finished = replace(finished, run=replace(finished.run, status="complete", finished=time.time()))
            self.store.write_results(finished)
        return finished

    def _write(self, status: RunStatus) -> Run:
        """Store the current state. Keeps the results of an earlier part until the lab is known to be the same."""
        stored = self._earlier.run
        return self._recorder.write(status) if stored is None or self._reached else stored

    def _write_if_due(self) -> None:
        if self._earlier.run is None or self._reached:
            self._recorder.write_if_due()

    def _measure(self, group: Group, plan: Plan) -> None:
        self._earlier.require_same(self._recorder.provenance)
        self._write_if_due()  # --resume needs this from the moment when something is built.
        try:
            self._measure_group(group, plan, self._prepare(group, plan))
        except Unsupported as refused:
            self._resume()
            self._skip(group, plan, refused)

    def _prepare(self, group: Group, plan: Plan) -> PreparedGroup:
        """Prepare the group. Raises Unsupported, also if the host refused a group of the same setup before."""
        setup = group.scenario, group.setup
        if refused := self._refused.get(setup):
            raise refused
        try:
            prepared = self._engine.prepare(plan, group)
        except Unsupported as error:
            self._refused[setup] = error
            raise
        reasons = {cell.mode.name: prepared.why_skipped(cell) for cell in group.cells}
        require_guest([cell.mode for cell in group.cells], {name: why for name, why in reasons.items() if why})
        return prepared

    def _measure_group(self, group: Group, plan: Plan, prepared: PreparedGroup) -> None:
        """Measure the rounds of the group, then the series that follow them. The recorder gets everything."""
        self._resume()
        self._recorder.describe(prepared.provenance)
        self._recorder.disks(prepared.disks)
        self._write_if_due()  # New provenance and disks are stored before anything is measured.
        context = self._context.of_group(plan, group)
        rounds = GroupRounds(
            context,
            limit=self._limit,
            seconds_after=lambda: self._timing.after(group, self._measured),
        )
        with self._phases.step(MEASURE, f"measure {group.id}"):
            latest = self._engine.run_series(rounds, prepared)
        self._again_seconds += rounds.again_seconds
        for series in (series for feature in self._list_asked(group) for series in feature.follow(context, latest)):
            with self._phases.step(series.phase, series.title):
                latest = self._engine.run_series(series, latest)
        self._recorder.disks(prepared.disks_afterwards())
        self._measured.add(group.id)
        self._events(self._describe_progress(group))

    def _list_asked(self, group: Group) -> list[Feature]:
        """The features that the scenario or a switch asks for, as far as they need that."""
        scenario, switches = self.spec.scenarios[group.scenario], self.spec.switches
        return [
            feature
            for feature in features()
            if is_asked(feature, scenario) and all(switch.flag in switches for switch in feature.of(RunSwitch))
        ]

    def _describe_progress(self, group: Group) -> GroupMeasured:
        groups = {planned.id: planned for plan in self.spec.plans for planned in plan.groups}
        records = self._recorder.records_of(cell for cell in group.cells if cell.mode.attach is not None)
        counted = Counter("skipped" if record.skipped else str(record.verdict) for record in records.values())
        return GroupMeasured(
            group.id,
            sum(len(planned.cells) for planned in groups.values() if planned.id in self._measured),
            sum(len(planned.cells) for planned in groups.values()),
            ", ".join(f"{number} {verdict}" for verdict, number in counted.items()) or "measured",
        )

    def _skip(self, group: Group, plan: Plan, refused: Unsupported) -> None:
        """Record the reason for every cell of the group. The group is not measured.

        If the limit of the bytes written is the reason, what an earlier part of the run measured is kept.
        """
        cells = group.cells
        if isinstance(refused, LimitReached):
            records = self._recorder.records_of(cells)
            cells = tuple(cell for cell in cells if cell.id not in records or not records[cell.id].rounds)
            self.not_measured |= {cell.id for cell in cells}
        contexts = {
            cell.id: CellContext(self.spec.host.name, group.id, plan.span, skipped=_explain_skip(cell, refused))
            for cell in cells
        }
        self._recorder.assemble(cells, contexts)
        self._measured.add(group.id)

    def _make_left_out_record(self, cell: Cell) -> CellRecord:
        """The record of a cell that the plan leaves out to keep the limit of the bytes written."""
        if cell.id in self._records:
            return self._records[cell.id]
        plan, why = self._left_out[cell.id]
        if not self._recorder.records_of([cell]):
            reason = f"{why.option}={self.spec.max_writes}: the plan leaves out {why.what}"
            context = CellContext(self.spec.host.name, "", plan.span, skipped=reason)
            return self._recorder.assemble([cell], {cell.id: context})[cell.id]
        self._records |= self._recorder.records_of(why.cells)
        return self._records[cell.id]

    def _record_lab(self, lab: LabFound) -> None:
        """Record the properties of the host. Refuses a resumed run on another lab before anything is built."""
        read_bytes, self._read_bytes = self._read_bytes, None
        if read_bytes not in (None, self.store.journal_bytes):
            # On a file server without locks, another process may have measured until it released the host.
            raise ResultsError(
                f"{self.store.path} was changed by another process since it was read",
                hint="nothing is lost: resume the run again",
            )
        self._earlier.require_same(lab.provenance)
        self._recorder.record_lab(lab)

    def _resume(self) -> None:
        """When the lab is first known to be the same, take over the results of the earlier part."""
        if self._earlier.run is not None and not self._reached:
            for note in self._earlier.journal.notes:
                self._events(Note(note))
            self._recorder.resume(self._earlier.run)
        self._reached = True


def _explain_skip(cell: Cell, refused: Unsupported) -> str:
    if isinstance(refused, NothingToCompare):
        return refused.reason(cell.mode)
    return refused.with_hint
