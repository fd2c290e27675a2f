"""Looks at a group after each round: makes its records, and decides whether another round follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.analysis import Reason
from harness.measure.group_progress import GroupProgress
from harness.measure.recorder import Recorder
from harness.measure.series import Measurer, PreparedGroup
from harness.measure.spec import CampaignSpec
from harness.measure.stopping import Looking, reason_to_stop, reasons_to_stop, settled_cells
from harness.model.cell import Cell
from harness.model.effective import NOTHING
from harness.model.job import Job
from harness.results import CellContext, CellRecord, GroupRecord, Measurement, drift_checks, drift_notes, host_drift
from harness.results.carried import carry_overs, longer_slices, split_by_length
from harness.units import format_size


class Looks:
    """Looks at the measurements of a group on one host. The results are in `recorder`."""

    def __init__(self, spec: CampaignSpec, recorder: Recorder, measurer: Measurer) -> None:
        self._spec = spec
        self._recorder = recorder
        self._measurer = measurer

    def reason_to_stop(self, progress: GroupProgress, at: PreparedGroup) -> str | None:
        """Look at the rounds so far. Returns why no further round follows, in words; None to continue.

        Cells that need no further round are settled in `progress`.
        """
        plan, group = progress.plan, progress.group
        spent = progress.spent
        # Set before the records are made: they contain the look that decides the cells.
        progress.last_look = spent is not None
        records = self.assemble(progress, at, final=progress.last_look)
        progress.settle(settled_cells(group.cells, records, ()))
        if progress.rounds < progress.fewest:
            return spent if spent in (Reason.BYTES, Reason.WRITES) else None
        most = progress.most
        if progress.rounds >= most:
            spent = spent or Reason.TIME
        looking = Looking(
            plan,
            progress.sequential,
            {cell.id: self._recorder.budgets(cell) for cell in group.cells},
            self._recorder.family,
            spent,
            progress.reachable,
        )
        cells = progress.open_cells
        longer = self._longer_slices(progress)
        if all(cell.job in longer for cell in cells):
            return Reason.CARRY_OVER
        reason = reason_to_stop(cells, records, looking)
        if reason is None and not self._spec.scenarios[group.scenario].decompositions:
            # The steps of a decomposition need the same rounds, so none of its cells ends before the others.
            enough = [cell.id for cell in cells if cell.job in longer]
            enough += reasons_to_stop(cells, records, looking)
            progress.settle(settled_cells(group.cells, records, enough))
        return reason or (Reason.MOST if progress.rounds >= most else None)

    def _longer_slices(self, progress: GroupProgress) -> dict[Job, float]:
        """The jobs that need longer slices. Between two looks there are none, because carry-over is tested at looks."""
        if progress.sequential.reaching(progress.rounds).look(progress.rounds, final=progress.last_look) is None:
            return {}
        group = progress.group
        return longer_slices(self._recorder.carry_over(group.id), self._recorder.of_group(group.id), group.jobs)

    def assemble(self, progress: GroupProgress, at: PreparedGroup, *, final: bool) -> dict[str, CellRecord]:
        """Record the group and its cells as measured so far. Returns the cells by id, without the correction.

        `final` means that no round follows for a reason that is not in the data.
        """
        group = progress.group
        measured = self._recorder.of_group(group.id)
        counted, _ = split_by_length(measured)
        orders = _orders(measured)
        record = GroupRecord(
            id=group.id,
            disk=group.disk,
            orders=tuple(orders.values()),
            looks=progress.sequential.looks,
            stopped=progress.stopped,
            conditioning=at.conditioning,
            drift=host_drift(counted),
            rounds=tuple(orders),
            abandoned=tuple(sorted(self._recorder.abandoned(group.id))),
            carry_over=carry_overs(
                measured, group.jobs, target=progress.plan.target, looks=len(progress.sequential.looks)
            ),
        )
        self._recorder.group(record)
        contexts = {cell.id: self._context(cell, progress, at, record, final=final) for cell in group.cells}
        return self._recorder.assemble(group.cells, contexts)

    def _context(
        self, cell: Cell, progress: GroupProgress, at: PreparedGroup, group: GroupRecord, *, final: bool
    ) -> CellContext:
        modes, reference = [each.mode for each in progress.group.cells], cell.mode.against
        return CellContext(
            host=self._spec.host.name,
            group=group.id,
            span_bytes=at.span,
            budgets=self._recorder.budgets(cell),
            sequential=progress.sequential,
            final=(final and progress.is_open(cell)) or progress.ended_before(cell),
            validity=tuple(drift_checks(group.drift, cell, modes)),
            effective=at.effective.get(cell.mode.name, NOTHING),
            against=at.effective.get(reference.name, NOTHING) if reference is not None else NOTHING,
            others=tuple(at.effective.get(volume.name, NOTHING) for volume in cell.mode.volumes[1:]),
            carried=tuple(each for each in group.carry_over if each.job == cell.job.id),
            notes=(
                *self._measurer.restarts,
                *_rounded_up(cell.job, at.block),
                *(why for job, why in progress.left_out.items() if job == cell.job),
                *drift_notes(group.drift, cell, modes),
                *(note for arm in cell.arms for note in at.notes.get(arm.id, ())),
            ),
            skipped=at.why_skipped(cell),
            check=self._spec.check,
        )


def _rounded_up(job: Job, block: int) -> Iterator[str]:
    """Which block sizes of the job the disk cannot do. Patterns with one size are not rounded up."""
    several = job.block_sizes if job.sizes or job.from_file else ()
    smaller = [format_size(size) for size in several if size % block]
    if smaller:
        yield f"blocks of {', '.join(smaller)} are rounded up to {format_size(block)}, the disk's logical block size"


def _orders(measurements: Sequence[Measurement]) -> dict[int, tuple[str, ...]]:
    """The arms in the order of their first slices, by number of the round."""
    rounds: dict[int, dict[str, None]] = {}
    for measurement in measurements:
        rounds.setdefault(measurement.round, {})[measurement.arm] = None
    return {number: tuple(rounds[number]) for number in sorted(rounds)}
