"""Decompositions as the report shows them: the cost of each step, as figures for tables and as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.analysis import Estimate
from harness.report.cells import CONFIDENCE, CellView
from harness.report.numbers import count, microseconds, microseconds_interval, percent_interval, signed_percent
from harness.results import DecompositionRecord

ALL = "all steps"


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step, or all of them together."""

    change: str
    arm: str
    added: Estimate
    """In seconds."""
    overhead: Estimate
    """As a share of the arm before; of the host for all steps."""
    so_far: Estimate
    """As a share of the host."""
    beyond_chance: bool | None
    """Whether the step differs from zero, corrected for the number of steps; None if that is not judged."""
    doubt: str
    """The failed checks of the arm, or of the one before, because of which this is not a result; else empty."""

    @property
    def values(self) -> tuple[str, str]:
        """What the step adds, in us and in percent, both with their intervals."""
        return (
            f"{microseconds(self.added.point, signed=True)} {microseconds_interval(self.added)}".rstrip(),
            f"{signed_percent(self.overhead.point)} {percent_interval(self.overhead)}".rstrip(),
        )

    @property
    def remark(self) -> str:
        """Why the step is not a finding; empty if it is one."""
        if self.doubt:
            return f"not a result: {self.doubt}"
        return "not beyond chance" if self.beyond_chance is False else ""


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The decomposition of one job."""

    record: DecompositionRecord
    workload: str
    iodepth: int

    @property
    def host(self) -> float:
        """The host's mean latency over the blocks, in seconds. Only if the decomposition was not skipped."""
        return fmean(self.record.steps[0].values)

    @property
    def rows(self) -> tuple[StepRow, ...]:
        """The steps in order; none if the decomposition was skipped."""
        found = []
        for before, step in zip(self.record.steps, self.record.steps[1:], strict=False):
            if step.added is None or step.overhead is None or step.so_far is None:
                continue
            judged = step.shown if step.p_value is not None else None
            doubts = dict.fromkeys(doubt for doubt in (before.doubt, step.doubt) if doubt)
            found.append(
                StepRow(step.change, step.arm, step.added, step.overhead, step.so_far, judged, ", ".join(doubts))
            )
        return tuple(found)

    @property
    def total(self) -> StepRow | None:
        """The last arm against the first; None if the decomposition was skipped."""
        record = self.record
        if record.added is None or record.overhead is None:
            return None
        first, last = record.steps[0], record.steps[-1]
        doubts = ", ".join(dict.fromkeys(doubt for doubt in (first.doubt, last.doubt) if doubt))
        return StepRow(ALL, last.arm, record.added, record.overhead, record.overhead, None, doubts)

    @property
    def basis(self) -> str:
        """For example "Host 80.1 us, 5 blocks; blocks of rounds 2 and 4 lack an arm and are not used"."""
        words = f"Host {microseconds(self.host)} us, {count(len(self.record.rounds), 'block')}"
        if self.record.left_out:
            rounds = "round" if len(self.record.left_out) == 1 else "rounds"
            numbers = " and ".join(", ".join(map(str, self.record.left_out)).rsplit(", ", 1))
            words += f"; blocks of {rounds} {numbers} lack an arm and are not used"
        return words


@dataclass(frozen=True, slots=True)
class WaterfallGroup:
    """One decomposition of one workload at all depths. `key` is the id of its chart in the page."""

    key: str
    name: str
    workload: str
    by_depth: tuple[Waterfall, ...]

    @property
    def drawn(self) -> tuple[Waterfall, ...]:
        """The waterfalls that were not skipped."""
        return tuple(each for each in self.by_depth if each.total is not None)

    @property
    def confidence(self) -> str:
        """The confidence of each interval alone."""
        early = any(each.record.confidence > CONFIDENCE for each in self.drawn)
        return f"{CONFIDENCE * 100:.0f} % each{', over all looks' if early else ''}"


def waterfall_groups(
    key: str, records: Sequence[DecompositionRecord], cells: Sequence[CellView]
) -> tuple[WaterfallGroup, ...]:
    """The decompositions of one section. Its cells have the workload and depth of each job."""
    jobs = {cell.record.job.id: cell for cell in cells}
    grouped: dict[tuple[str, str], list[Waterfall]] = {}
    for record in records:
        if (cell := jobs.get(record.job)) is not None:
            waterfall = Waterfall(record, cell.workload, cell.iodepth)
            grouped.setdefault((record.name, cell.workload), []).append(waterfall)
    return tuple(
        WaterfallGroup(f"{key}-fall{number}", name, workload, tuple(sorted(several, key=lambda each: each.iodepth)))
        for number, ((name, workload), several) in enumerate(grouped.items(), start=1)
    )


def waterfall_lines(group: WaterfallGroup) -> list[str]:
    """The waterfall at the smallest depth, for a terminal: there, an I/O waits for no other and pays each step once.

    The number of larger depths follows. If there is no waterfall, the line has the reason.
    """
    if not group.drawn:
        return [f"{group.name}, {group.workload}: no decomposition: {group.by_depth[0].record.skipped}"]
    shown = group.drawn[0]
    rows = [*shown.rows, *([shown.total] if shown.total else [])]
    values = [row.values for row in rows]
    widths = [max(len(value[column]) for value in values) for column in (0, 1)]
    lines = [f"{group.name}, {group.workload} qd{shown.iodepth}, mean latency [{group.confidence}]. {shown.basis}:"]
    for row, (added, overhead) in zip(rows, values, strict=True):
        name = f"{ALL}, to {row.arm}" if row.change == ALL else row.change
        remark = f" ({row.remark})" if row.remark else ""
        lines.append(f"  {added:<{widths[0]}} us  {overhead:<{widths[1]}} %  {name}{remark}")
    if len(group.drawn) > 1:
        lines.append(f"  and {count(len(group.drawn) - 1, 'larger depth')}: see the report")
    return lines
