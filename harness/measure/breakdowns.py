"""Measures where the microseconds of an I/O go, for each mode and workload of a group, after its other rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from harness.errors import Unsupported
from harness.events import Note
from harness.measure.pauses import Pauses
from harness.measure.rounds import FollowingSeries, SeriesContext
from harness.measure.series import LimitReached, PreparedGroup, SpecialStep, Step
from harness.measure.traced_slices import TracingRequest, require_blocks
from harness.model.attach import Attach, Vfio
from harness.model.cell import Cell, Place
from harness.results import BreakdownRecord, TracedJob
from harness.scenario.plan import Plan
from harness.scenario.setups import Group
from harness.scenario.timetable import rebuilds
from harness.units import format_duration

_PHASE = "breakdown"


def breakdowns_of(context: SeriesContext, prepared: PreparedGroup) -> Iterator[FollowingSeries]:
    """The breakdowns of a group that was measured, if the run requests them and has none of them yet."""
    if not context.spec.breakdown:
        return
    group, recorder = context.group, context.recorder
    cells = _choose_cells(group)
    if not cells:
        context.phases.events(Note(f"{group.id}: no breakdown: no workload of a guest runs with one I/O in flight"))
    for cell in cells:
        if cell.id in recorder.breakdowns:
            continue
        baseline, guest = cell.by_role.get(Place.TWIN, cell.by_role[Place.HOST]), cell.by_role[Place.GUEST]
        traced = TracedJob(
            cell.id, cell.scenario, context.spec.host.name, cell.disk, cell.job.id, baseline=baseline, guest=guest
        )
        pause = Pauses().after(cell.job, in_guest=True, rotational=prepared.rotational)
        request = TracingRequest(cell.id, baseline, guest, cell.job, pause)
        why = prepared.skipped.get(cell.mode.name) or _why_not(cell, limited=bool(context.spec.limits))
        if why is None:
            yield Breakdown(context, traced, request)
        else:
            recorder.breakdown(traced.skipped(why))
        recorder.write_if_due()


class Breakdown(FollowingSeries):
    """The series of one breakdown: its only step has one I/O in flight, whatever the depths of the group's cells."""

    def __init__(self, context: SeriesContext, traced: TracedJob, request: TracingRequest) -> None:
        self.phase = _PHASE
        self.title = f"trace {request.id}, {format_duration(round(request.seconds))} of I/O"
        self._context = context
        self._traced = traced
        self._request = request
        self._ended = False

    def next_step(self, prepared: PreparedGroup) -> Step | None:  # noqa: ARG002 - a Policy
        if self._ended:
            return None
        failure = f"the lab failed while {self._request.id} was traced"
        return SpecialStep(self._context.plan, self._context.group, failure, self._trace)

    def handle_refusal(self, refusal: Unsupported) -> None:
        if isinstance(refusal, LimitReached):
            raise refusal
        why = f"{refusal.message}; {refusal.hint}" if refusal.hint else refusal.message
        self._context.phases.events(Note(f"{self._request.id}: no breakdown: {why}"))
        self._record(self._traced.skipped(why))

    def _trace(self) -> None:
        blocks = self._context.measurer.trace(self._context.group, self._request)
        require_blocks(blocks)
        self._record(self._traced.record(blocks))

    def _record(self, record: BreakdownRecord) -> None:
        self._context.recorder.breakdown(record)
        self._ended = True


def breakdown_seconds(plan: Plan) -> float:
    """For how long fio runs for the breakdowns of the plan at most, with the pauses."""
    pause = Pauses()
    return sum(
        TracingRequest(
            cell.id,
            cell.by_role.get(Place.TWIN, cell.by_role[Place.HOST]),
            cell.by_role[Place.GUEST],
            cell.job,
            pause.after(cell.job, in_guest=True, rotational=False),
        ).seconds
        for group in plan.groups
        for cell in _choose_cells(group)
    )


def _choose_cells(group: Group) -> list[Cell]:
    """A cell with one I/O in flight for each mode with a guest and each workload that may have one."""
    cells: dict[str, Cell] = {}
    for cell in group.cells:
        job = cell.job
        if cell.mode.attach is None or cell.mode.runs_with_others or job.from_file is not None or job.numjobs > 1:
            continue
        # A workload with depths of its own is about those.
        if not job.iodepths or 1 in job.iodepths:
            alone = replace(cell, job=job.workload.job(1, ramp=job.ramp, seconds=job.seconds))
            cells.setdefault(alone.id, alone)
    return list(cells.values())


def _why_not(cell: Cell, *, limited: bool) -> str | None:
    """Why the I/Os of this cell cannot be followed; None if they can."""
    mode, attach = cell.mode, cell.mode.attach
    cached = isinstance(attach, Attach) and not attach.direct
    reasons = {
        "the guest has the disk itself (VFIO), so its I/Os do not pass the host": isinstance(attach, Vfio),
        "the host's page cache is between QEMU and the disk": cached,
        "the guests of these variants do not run at the same time; measure one variant": mode.alternating,
        "the recovery of the array also does I/O": rebuilds(mode),
        "flushes are requests too, which the traces do not tell from writes": cell.job.flushes,
        "what it writes is not in the plan of a run with a limit": limited and cell.writes,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
