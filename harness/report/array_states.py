"""What a missing member of an array, or its recovery, costs, as the report shows it: guest and host, job by job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean

from harness.analysis import Estimate, Samples, estimate_overhead
from harness.report.cells import CellView
from harness.report.numbers import count, percent, percent_with_interval, sample_count
from harness.results import ArrayStateMetric, ArrayStateRecord
from harness.results.array_costs import common_blocks
from harness.results.dependence import paired_blocks

_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class ArrayStateView:
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
        guest, host = ([getattr(each, arm) if each else None for each in both] for arm in ("guest", "twin"))
        throughput, latency = zip(guest, host, strict=True)
        shown = [percent_with_interval(each) for each in (*throughput, *latency)]
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


def difference(estimate: Estimate) -> str:
    """Whether an interval excludes zero, in words."""
    if estimate.low is None or estimate.high is None:
        return "too few blocks to show a difference"
    if estimate.low > 0:
        return "slower"
    return "faster" if estimate.high < 0 else "no difference shown"


def array_state_views(records: Sequence[ArrayStateRecord], cells: Sequence[CellView]) -> tuple[ArrayStateView, ...]:
    """The records of these cells, in the order of the cells."""
    by_id = {cell.id: cell for cell in cells}
    by_cell = {record.cell: record for record in records}
    return tuple(
        ArrayStateView(by_cell[cell.id], cell, by_id[by_cell[cell.id].optimal])
        for cell in cells
        if cell.id in by_cell and by_cell[cell.id].optimal in by_id
    )


def state_sentences(views: Sequence[ArrayStateView]) -> list[str]:
    """The answer for each mode, over its jobs: what the state costs the VM, and what it costs on the host.

    For example "`raid5-degraded` costs the VM 31.2 % [28.0, 34.1] of its throughput on the optimal array `raid5`, ...".
    The modes are in the order of the plan and not ranked.
    """
    found = []
    for mode in dict.fromkeys(view.cell.mode for view in views):
        own = [view for view in views if view.cell.mode == mode]
        usable = [view for view in own if not view.record.doubt and view.throughput is not None]
        if not usable:
            found.append(f"`{mode}`: a check failed in each of its jobs, so no cost is given.")
            continue
        found.append(_sentence(mode, usable, len(own) - len(usable)))
    return found


def _sentence(mode: str, views: Sequence[ArrayStateView], left_out: int) -> str:
    guest, host = _pooled(views, "guest"), _pooled(views, "twin")
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


def _pooled(views: Sequence[ArrayStateView], arm: str) -> Estimate | None:
    """The loss of the geometric mean over the jobs. A sample is a block of each of them that both arrays have."""
    restricted, before, after = [], [], []
    for view in views:
        own, whole = view.cell.throughput, view.optimal.throughput
        if own is None or whole is None or not getattr(own, arm) or not getattr(whole, arm):
            return None
        record = view.cell.record
        pairs = common_blocks(record, view.optimal.record)
        places = [at for at, _ in pairs]
        restricted.append(
            replace(
                record,
                rounds=tuple(record.rounds[at] for at in places),
                blocks=tuple(record.blocks[at] for at in places) if record.blocks else (),
                boots=tuple(record.boots[at] for at in places) if record.boots else (),
            )
        )
        after.append([getattr(own, arm)[at] for at in places])
        before.append([getattr(whole, arm)[at] for _, at in pairs])
    blocks = paired_blocks(restricted)

    def samples(values: Sequence[Sequence[float]]) -> list[float]:
        return [geometric_mean([each[at] for each, at in zip(values, block, strict=True)]) for block in blocks]

    boots = restricted[0].boots
    return estimate_overhead(
        samples(before),
        samples(after),
        higher_is_better=True,
        confidence=max(view.record.confidence for view in views),
        samples=Samples(tuple(boots[block[0]] for block in blocks) if boots else ()),
    )
