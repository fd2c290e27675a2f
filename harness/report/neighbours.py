"""Guests that ran at the same time as the report shows them: who got what, and what a neighbour costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.analysis import METRICS, Estimate
from harness.model.mode import DURING_BACKUP
from harness.report.budgets import gravest_first, limit
from harness.report.cells import CellView
from harness.report.numbers import NONE, difference_words, microseconds, percent, significant
from harness.results import GuestShare, SeveralGuests
from harness.units import format_size

_TAIL = ("clat_p99", "clat_mean")
"""The latency that shows a neighbour: the 99th percentile, or with too few I/Os the mean."""
_WORDS = {"clat_p99": "p99", "clat_mean": "mean latency"}

NEIGHBOUR_COLUMNS = (
    "job",
    "neighbour",
    "latency",
    "alone, us",
    "with it, us",
    "factor",
    "throughput",
    "neighbour did",
    "verdict",
)
"""What `NeighbourView.values` are."""
SHARED_COLUMNS = ("guest", "got", "host", "share, %", "host's share, %", "p99, us", "host's p99, us")
"""What the rows of a `SharedView` are."""


@dataclass(frozen=True, slots=True)
class SharedView:
    """One cell of several guests at the same time."""

    cell: CellView
    several: SeveralGuests

    @property
    def unit(self) -> str:
        return METRICS[self.several.metric].shown.unit

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """For each guest, and fio on the host on the same volume: throughput, share and p99, side by side as text."""
        return tuple(self._row(guest) for guest in self.several.guests)

    @property
    def total(self) -> tuple[str, ...]:
        """The same of all together, with the fairness in the place of the shares."""
        fair, host_fair = (_index(each) for each in (self.several.fairness, self.several.host_fairness))
        p99 = self.cell.record.metrics.get("clat_p99")
        pooled = p99.pooled if p99 is not None else {}
        tails = (microseconds(pooled[arm].value) if arm in pooled else NONE for arm in ("guest", "host"))
        guest, host = (self._shown(self._total(arm)) for arm in ("guest", "host"))
        return ("together", guest, host, f"fairness {fair}", f"fairness {host_fair}", *tails)

    @property
    def sentence(self) -> str:
        """For example "shared-randread-4k-qd8: 4 guests got 120 000 IOPS together (fio on the host 131 000), fairness
        0.998 [0.996, 0.999] (host 0.999), shares 24.1 to 26.0 %, p99 310 to 402 us (host 280 to 300)"."""
        several = self.several
        if not self.cell.usable:
            return f"{self.name}: {self.cell.outcome}"
        shares = [guest.share.point for guest in several.guests]
        words = (
            f"{self.name}: {len(shares)} guests got {self._shown(self._total('guest'))} {self.unit} together (fio on "
            f"the host {self._shown(self._total('host'))}), fairness {_index(several.fairness)} (host "
            f"{several.host_fairness.point:.3f}), shares {percent(min(shares))} to {percent(max(shares))} %"
        )
        guests, hosts = (
            [each.value for each in own if each is not None]
            for own in ([guest.p99 for guest in several.guests], [guest.host_p99 for guest in several.guests])
        )
        if len(guests) == len(hosts) == len(shares):
            words += f", p99 {_range(guests)} us (host {_range(hosts)})"
        return words

    @property
    def name(self) -> str:
        return f"{self.cell.mode}-{self.cell.record.job.id}"

    def _row(self, each: GuestShare) -> tuple[str, ...]:
        p99, host_p99 = (microseconds(tail.value) if tail is not None else NONE for tail in (each.p99, each.host_p99))
        values = (self._shown(fmean(own)) for own in (each.guest, each.host))
        return (f"guest {each.number}", *values, *map(_share, (each.share, each.host_share)), p99, host_p99)

    def _total(self, arm: str) -> float:
        return sum(fmean(getattr(guest, arm)) for guest in self.several.guests)

    def _shown(self, value: float) -> str:
        return significant(value / METRICS[self.several.metric].shown.scale)


@dataclass(frozen=True, slots=True)
class NeighbourView:
    """One cell with a neighbour, or during a backup, against the same guest without."""

    cell: CellView

    @property
    def neighbour(self) -> str:
        """The neighbour's job, or `backup`."""
        return self.cell.record.mode_detail.neighbour or DURING_BACKUP

    @property
    def when(self) -> str:
        """ "with the neighbour randwrite-4k-qd32", or "during a backup"."""
        return "during a backup" if self.cell.record.mode_detail.backup else f"with the neighbour {self.neighbour}"

    @property
    def name(self) -> str:
        """The mode without its neighbour and the job."""
        return (self.cell.record.against or "").removeprefix(f"{self.cell.record.scenario}-")

    @property
    def tail(self) -> str:
        """The name of the latency metric that is shown."""
        return next((name for name in _TAIL if name in self.cell.record.metrics), _TAIL[-1])

    @property
    def difference(self) -> Estimate | None:
        """How much longer this latency is with the neighbour, as a share; None if the cell is not a result."""
        return self._difference(self.tail)

    @property
    def values(self) -> tuple[str, ...]:
        """The job, the neighbour, the latency without and with it in us, both as a factor, the factor of the
        throughput, what the neighbour did, and the verdict."""
        before, after = self._means(self.tail)
        throughput = self._difference(self.cell.headline_name)
        return (
            self.name,
            self.neighbour,
            _WORDS[self.tail],
            microseconds(before),
            microseconds(after),
            _factor(self.difference),
            _factor(throughput, falls=METRICS[self.cell.headline_name].higher_is_better),
            self._own_speed,
            self.verdict,
        )

    @property
    def verdict(self) -> str:
        """For example "exceeds 200 % in clat_p99"; without a budget, whether a difference is shown."""
        if self.difference is None:
            return str(self.cell.outcome)
        budgets = gravest_first([each for each in self.cell.record.budget if each.difference is not None])
        return (
            f"{budgets[0].verdict} {limit(budgets[0])} in {budgets[0].metric}"
            if budgets
            else difference_words(self.difference)
        )

    @property
    def sentence(self) -> str:
        """For example "lvm-randread-4k-qd1: p99 with the neighbour randwrite-4k-qd32: x 3.1 [2.8, 3.4], 120 to 372 us;
        IOPS x 0.45 [0.41, 0.49]; the neighbour did 21 300 IOPS: worse".

        Or "lvm-randread-4k-qd1: p99 during a backup: x 2.0 [1.9, 2.1], ...; the backup did 410 MiB/s: worse".
        """
        if self.difference is None:
            return f"{self.name} {self.when}: {self.verdict}"
        _, _, words, before, after, tail, throughput, own, verdict = self.values
        unit = self.cell.headline_unit
        found = f"{self.name}: {words} {self.when}: {tail}, {before} to {after} us"
        if not METRICS[self.cell.headline_name].is_latency:
            found += f"; {unit} {throughput}"
        other = "backup" if self.cell.record.mode_detail.backup else "neighbour"
        return f"{found}; the {other} did {own}: {verdict}"

    @property
    def _own_speed(self) -> str:
        backup, found = self.cell.record.backup, self.cell.record.neighbour
        if backup is not None and backup.bw:
            return f"{format_size(round(fmean(backup.bw)))}/s"
        return f"{significant(fmean(found.iops))} IOPS" if found is not None and found.iops else NONE

    def _difference(self, name: str) -> Estimate | None:
        metric = self.cell.record.metrics.get(name)
        return metric.difference if metric is not None and self.cell.usable else None

    def _means(self, name: str) -> tuple[float | None, float | None]:
        metric = self.cell.record.metrics.get(name)
        return (fmean(metric.against), fmean(metric.guest)) if metric is not None and metric.against else (None, None)


def shared_views(cells: Sequence[CellView]) -> tuple[SharedView, ...]:
    """The cells of several guests, in the order of the plan."""
    return tuple(SharedView(cell, cell.record.several) for cell in cells if cell.record.several is not None)


def neighbour_views(cells: Sequence[CellView]) -> tuple[NeighbourView, ...]:
    """The cells with a neighbour or a backup, in the order of the plan."""
    details = ((cell, cell.record.mode_detail) for cell in cells)
    return tuple(NeighbourView(cell) for cell, mode in details if mode.neighbour is not None or mode.backup)


def worst_sentences(neighbours: Sequence[NeighbourView], shared: Sequence[SharedView]) -> Iterator[str]:
    """The neighbour that costs most, and the least fair cell of several guests; nothing without any."""
    shown_neighbours = [view for view in neighbours if view.difference is not None]
    if shown_neighbours:
        yield max(shown_neighbours, key=lambda view: view.difference.point if view.difference else 0.0).sentence
    usable = [view for view in shared if view.cell.usable]
    if usable:
        yield min(usable, key=lambda view: view.several.fairness.point).sentence


def _factor(difference: Estimate | None, *, falls: bool = False) -> str:
    """A difference as a factor: "x 3.1 [2.8, 3.4]". `falls`: the difference is what is lost."""
    if difference is None:
        return NONE
    sign = -1 if falls else 1
    point = 1 + sign * difference.point
    if difference.low is None or difference.high is None:
        return f"x {_two_digits(point)}"
    low, high = sorted(1 + sign * end for end in (difference.low, difference.high))
    return f"x {_two_digits(point)} [{_two_digits(low)}, {_two_digits(high)}]"


def _two_digits(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 2 else f"{value:.1f}"


def _index(estimate: Estimate) -> str:
    interval = f" [{estimate.low:.3f}, {estimate.high:.3f}]" if estimate.low is not None else ""
    return f"{estimate.point:.3f}{interval}"


def _share(estimate: Estimate) -> str:
    ends = f" [{percent(estimate.low)}, {percent(estimate.high)}]" if estimate.low is not None else ""
    return f"{percent(estimate.point)}{ends}"


def _range(values: Sequence[float]) -> str:
    return f"{microseconds(min(values))} to {microseconds(max(values))}"
