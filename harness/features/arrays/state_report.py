"""What a missing member of an array, or its recovery, costs guest and host, job by job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.analysis import Estimate
from harness.features.arrays.records import ArrayStateMetric, ArrayStateRecord
from harness.model.cell import Place
from harness.report.blocks import Aside, Block, Column, Heading, Row, Table
from harness.report.cells import CellView
from harness.report.lines import MOST_LISTED
from harness.report.numbers import count, percent, percent_with_interval, sample_count
from harness.report.section import Section
from harness.results.contrasts import contrast, mean_over_jobs

_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class StateCell:
    """One array with a missing member in one job, and the cell on the optimal array."""

    record: ArrayStateRecord
    cell: CellView
    optimal: CellView

    @property
    def array(self) -> str:
        """For example "RAID 5 over 6 disks, degraded"."""
        return self.cell.record.mode_detail.layout.base.words

    @property
    def throughput(self) -> ArrayStateMetric | None:
        """The loss of IOPS for random jobs, of bandwidth for sequential ones."""
        return self.record.metrics.get(self.cell.throughput_name)

    @property
    def latency(self) -> ArrayStateMetric | None:
        return self.record.metrics.get("lat_mean")

    @property
    def values(self) -> tuple[str, str, str, str]:
        """Loss of throughput in the guest and on the host, then the latency added there: percent with interval."""
        both = [self.throughput, self.latency]
        guest, host = ([getattr(metric, arm) if metric else None for metric in both] for arm in ("guest", "twin"))
        throughput, latency = zip(guest, host, strict=True)
        shown = [percent_with_interval(estimate) for estimate in (*throughput, *latency)]
        return shown[0], shown[1], shown[2], shown[3]

    @property
    def outcome(self) -> str:
        """Whether a difference is shown, how the recovery ran, or why the figures are not a result."""
        if self.record.doubt:
            return f"not a result: {self.record.doubt}"
        return "; ".join(filter(None, (self._difference, self.recovery)))

    @property
    def recovery(self) -> str:
        """For example "rebuilding in 97 % of the slices, 0.82 MiB/s of each disk"; empty if degraded."""
        share, rate = self.record.rebuilding, self.record.rebuild_rate
        if share is None:
            return ""
        speed = f", {rate / _MIB:.3g} MiB/s of each disk" if rate is not None else ""
        return f"rebuilding in {percent(share).removesuffix('.0')} % of the slices{speed}"

    @property
    def _difference(self) -> str:
        metric = self.throughput
        return "" if metric is None else difference(metric.guest or metric.twin)

    @property
    def sentence(self) -> str:
        """For a line of text."""
        if self.record.doubt:
            return f"{self.cell.id}: {self.outcome}"
        guest, host, *_ = self.values
        where = f"{guest} % of the guest's throughput and {host} %" if self._has_guest else f"{host} %"
        return f"{self.cell.id}: costs {where} of the array's on the host; {self.outcome}"

    @property
    def _has_guest(self) -> bool:
        return self.throughput is not None and self.throughput.guest is not None


def array_state_blocks(section: Section) -> Iterator[Block]:
    """What the states of the arrays of a disk cost; nothing if all have their members."""
    states = state_cells(section.run.of(ArrayStateRecord), section.cells)
    if not states:
        return
    yield Heading("Arrays with a missing member")
    yield Aside(
        "The array with a missing member against the same array with all its members, in the same blocks: what guest "
        "and host lose of their throughput there, and how much their mean latency grows. The blocks of a rebuilding "
        "array are in another timetable of the same round, because its recovery would disturb all other arms."
    )
    figures = ("host loses, %", "guest's latency, +%", "host's latency, +%")
    yield Table(
        (
            Column("array", "head"),
            Column("cell", "mode"),
            Column("guest loses, %", "strong"),
            *map(Column, figures),
            Column("result", "reason"),
        ),
        tuple(
            Row(
                (state.array, state.cell.id, *state.values, state.outcome),
                sentence=state.sentence,
                doubtful=bool(state.record.doubt),
            )
            for state in states
        ),
        f"Arrays with a missing member on {section.name}",
        style="cells states",
        most=MOST_LISTED,
    )


def difference(estimate: Estimate) -> str:
    """Whether an interval excludes zero, in words."""
    if estimate.low is None or estimate.high is None:
        return "too few blocks to show a difference"
    if estimate.low > 0:
        return "slower"
    return "faster" if estimate.high < 0 else "no difference shown"


def state_cells(records: Sequence[ArrayStateRecord], cells: Sequence[CellView]) -> tuple[StateCell, ...]:
    """The records of these cells with the cells on the optimal arrays, in the order of the cells."""
    by_id = {cell.id: cell for cell in cells}
    by_cell = {record.cell: record for record in records}
    return tuple(
        StateCell(by_cell[cell.id], cell, by_id[by_cell[cell.id].optimal])
        for cell in cells
        if cell.id in by_cell and by_cell[cell.id].optimal in by_id
    )


def state_details(section: Section) -> list[str]:
    """What the states of a disk's arrays cost, a sentence for each mode."""
    return state_sentences(state_cells(section.run.of(ArrayStateRecord), section.cells))


def state_sentences(views: Sequence[StateCell]) -> list[str]:
    """The answer for each mode, over its jobs: what the state costs the VM, and what it costs on the host.

    For example "`raid5-degraded` costs the VM 31.2 % [28.0, 34.1] of its throughput on the optimal array `raid5`, ...".
    The modes are in the order of the plan and not ranked.
    """
    sentences = []
    for mode in dict.fromkeys(view.cell.mode for view in views):
        own = [view for view in views if view.cell.mode == mode]
        usable = [view for view in own if not view.record.doubt and view.throughput is not None]
        if not usable:
            sentences.append(f"`{mode}`: a check failed in each of its jobs, so no cost is given.")
            continue
        sentences.append(_sentence(mode, usable, len(own) - len(usable)))
    return sentences


def _sentence(mode: str, views: Sequence[StateCell], left_out: int) -> str:
    guest, host = _pooled(views, Place.GUEST), _pooled(views, Place.TWIN)
    costs = [f"the array on the host {_loss(host)}"] if host else []
    if guest:
        costs.insert(0, f"the VM {_loss(guest)} of its throughput")
    basis = guest or host
    number = count(len(views), "job")
    samples = sample_count(basis.n, basis.boots) if basis else ""
    words = f"`{mode}` costs {' and '.join(costs)}, against the optimal `{views[0].optimal.mode}` ({number}, {samples})"
    if basis and (shown := difference(basis)) != "slower":
        words += f": {shown}"
    rates = [view.record.rebuild_rate for view in views if view.record.rebuild_rate is not None]
    shares = [view.record.rebuilding for view in views if view.record.rebuilding is not None]
    if shares:
        words += f". The recovery ran in {percent(sum(shares) / len(shares)).removesuffix('.0')} % of its slices"
        ends = dict.fromkeys(f"{rate / _MIB:.1f}" for rate in (min(rates), max(rates))) if rates else ()
        words += f", at {' to '.join(ends)} MiB/s of each disk" if ends else ""
    if left_out:
        words += f". A check failed in {count(left_out, 'job')}, which are left out"
    return f"{words}."


def _loss(estimate: Estimate) -> str:
    return percent_with_interval(estimate).replace(" ", " % ", 1) if estimate.low is not None else _point(estimate)


def _point(estimate: Estimate) -> str:
    return f"{percent(estimate.point)} %"


def _pooled(views: Sequence[StateCell], arm: Place) -> Estimate | None:
    """The loss of the geometric mean over the jobs. A sample is a block of each of them that both arrays have."""
    contrasts = []
    for view in views:
        name = view.cell.throughput_name
        left, right = (cell.record.series(name, arm) for cell in (view.optimal, view.cell))
        contrasts.append(contrast(left, right))
    jobs = [one for one in contrasts if one is not None]
    if len(jobs) < len(views):
        return None
    left, right = (mean_over_jobs(side) for side in ([one.left for one in jobs], [one.right for one in jobs]))
    over_jobs = contrast(left, right, confidence=max(view.record.confidence for view in views))
    return None if over_jobs is None else over_jobs.loss
