"""Measures where the microseconds of an I/O go, for each mode and workload of a group, after its other rounds."""

from __future__ import annotations

from dataclasses import replace

from harness.errors import GuestError, HostError, Unsupported
from harness.events import Note
from harness.measure.measurer import Measurer, Prepared
from harness.measure.pauses import Pauses
from harness.measure.phases import Phases
from harness.measure.recorder import Recorder
from harness.measure.rounds import Rounds
from harness.measure.spec import CampaignSpec
from harness.measure.traced_slices import TracingRequest, require_blocks
from harness.model.attach import Attach, Vfio
from harness.model.cell import Cell, Place
from harness.results import TracedJob
from harness.scenario.plan import Group, Plan
from harness.scenario.timetable import rebuilds
from harness.units import format_duration

_PHASE = "breakdown"


class Breakdowns:
    """Measures breakdowns with one I/O in flight, whatever the depths of the group's own cells."""

    def __init__(
        self, spec: CampaignSpec, recorder: Recorder, rounds: Rounds, measurer: Measurer, *, phases: Phases
    ) -> None:
        self._spec = spec
        self._recorder = recorder
        self._rounds = rounds
        self._measurer = measurer
        self._phases = phases

    def measure(self, group: Group, plan: Plan, at: Prepared) -> None:
        """Measure the breakdowns of a group that was measured, if the run requests them and has none of them yet.

        The recorder gets everything. Raises what the measurer raises.
        """
        if not self._spec.breakdown:
            return
        cells = _cells(group)
        if not cells:
            self._phases.events(Note(f"{group.id}: no breakdown: no workload of a guest runs with one I/O in flight"))
        for cell in cells:
            if cell.id in self._recorder.breakdowns:
                continue
            baseline, guest = cell.by_role.get(Place.TWIN, cell.by_role[Place.HOST]), cell.by_role[Place.GUEST]
            traced = TracedJob(
                cell.id, cell.scenario, self._spec.host.name, cell.disk, cell.job.id, baseline=baseline, guest=guest
            )
            pause = Pauses().after(cell.job, in_guest=True, rotational=at.rotational)
            request = TracingRequest(cell.id, baseline, guest, cell.job, pause)
            why = at.skipped.get(cell.mode.name) or self._why_not(cell)
            if why is None:
                takes = format_duration(round(request.seconds))
                with self._phases.step(_PHASE, f"trace {cell.id}, {takes} of I/O"):
                    at = self._measure(traced, request, group, plan, at)
            else:
                self._recorder.breakdown(traced.skipped(why))
            self._recorder.write_if_due()

    def _measure(self, traced: TracedJob, request: TracingRequest, group: Group, plan: Plan, at: Prepared) -> Prepared:
        """Measure one breakdown. If a simulated lab fails meanwhile, it is prepared again and measured anew."""
        while True:
            try:
                blocks = self._measurer.trace(group, request)
                require_blocks(blocks)
            except Unsupported as error:
                why = f"{error.message}; {error.hint}" if error.hint else error.message
                self._phases.events(Note(f"{request.id}: no breakdown: {why}"))
                self._recorder.breakdown(traced.skipped(why))
                return at
            except (HostError, GuestError) as error:
                self._measurer.start_again(error, f"the lab failed while {request.id} was traced")
                at = self._rounds.ready(plan, group)
            else:
                self._recorder.breakdown(traced.record(blocks))
                return at

    def _why_not(self, cell: Cell) -> str | None:
        """Why the I/Os of this cell cannot be followed; None if they can."""
        mode, attach = cell.mode, cell.mode.attach
        cached = isinstance(attach, Attach) and not attach.direct
        reasons = {
            "the guest has the disk itself (VFIO), so its I/Os do not pass the host": isinstance(attach, Vfio),
            "the host's page cache is between QEMU and the disk": cached,
            "the guests of these variants do not run at the same time; measure one variant": mode.alternating,
            "the recovery of the array also does I/O": rebuilds(mode),
            "flushes are requests too, which the traces do not tell from writes": cell.job.flushes,
            "what it writes is not in the plan of a run with a limit": bool(self._spec.limits) and cell.writes,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)


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
        for cell in _cells(group)
    )


def _cells(group: Group) -> list[Cell]:
    """A cell with one I/O in flight for each mode with a guest and each workload that may have one."""
    found: dict[str, Cell] = {}
    for cell in group.cells:
        job = cell.job
        if cell.mode.attach is None or cell.mode.runs_with_others or job.from_file is not None or job.numjobs > 1:
            continue
        # A workload with depths of its own is about those.
        if not job.iodepths or 1 in job.iodepths:
            alone = replace(cell, job=job.workload.job(1, ramp=job.ramp, seconds=job.seconds))
            found.setdefault(alone.id, alone)
    return list(found.values())
