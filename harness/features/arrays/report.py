"""Arrays: how they scale against their disks, what limits them, and what they deliver against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.analysis import Estimate
from harness.feature import FeatureReport, ReportPlace
from harness.features.arrays.records import ArrayStateMetric, ArrayStateRecord, ScalingMetric, ScalingRecord
from harness.model.base import Device
from harness.model.mode import Place
from harness.report.blocks import (
    MOST_LISTED,
    Aside,
    Block,
    Column,
    Heading,
    Listing,
    Mark,
    On,
    Row,
    TableCell,
    join_words,
    make_table,
)
from harness.report.modes import Comparison, Headline
from harness.report.numbers import (
    confidence_words,
    count,
    difference_words,
    percent,
    percent_with_interval,
    sample_count,
    significant,
    with_interval,
)
from harness.report.section import Section
from harness.results import ArmName, CellRecord
from harness.results.contrasts import average_over_jobs, contrast, loss_over_jobs, most_comparable

_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class StateCell:
    """One array with a missing member in one job, and the cell on the optimal array."""

    record: ArrayStateRecord
    cell: CellRecord
    optimal: CellRecord

    @property
    def array(self) -> str:
        """For example "RAID 5 over 6 disks, degraded"."""
        return self.cell.mode_detail.layout.base.words

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
        return "" if metric is None else difference_words(metric.guest or metric.twin, "slower", "faster")

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
    yield make_table(
        states,
        f"Arrays with a missing member on {section.name}",
        (Column("array", "head"), lambda state: state.array),
        (Column("cell", "mode"), lambda state: state.cell.id),
        (Column("guest loses, %", "strong"), lambda state: state.values[0]),
        (Column("host loses, %"), lambda state: state.values[1]),
        (Column("guest's latency, +%"), lambda state: state.values[2]),
        (Column("host's latency, +%"), lambda state: state.values[3]),
        (Column("result", "reason"), lambda state: state.outcome),
        row=lambda state: Row((), sentence=state.sentence, doubtful=bool(state.record.doubt)),
        style="cells states",
        most=MOST_LISTED,
    )


def state_cells(records: Sequence[ArrayStateRecord], cells: Sequence[CellRecord]) -> tuple[StateCell, ...]:
    """The records of these cells with the cells on the optimal arrays, in the order of the cells."""
    by_id = {cell.id: cell for cell in cells}
    by_cell = {record.cell: record for record in records}
    return tuple(
        StateCell(by_cell[cell.id], cell, by_id[by_cell[cell.id].optimal])
        for cell in cells
        if cell.id in by_cell and by_cell[cell.id].optimal in by_id
    )


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
    costs = [f"the array on the host {percent_with_interval(host, ' %')}"] if host else []
    if guest:
        costs.insert(0, f"the VM {percent_with_interval(guest, ' %')} of its throughput")
    basis = guest or host
    number = count(len(views), "job")
    samples = sample_count(basis.n, basis.boots) if basis else ""
    words = f"`{mode}` costs {' and '.join(costs)}, against the optimal `{views[0].optimal.mode}` ({number}, {samples})"
    if basis and (shown := difference_words(basis, "slower", "faster")) != "slower":
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


def _pooled(views: Sequence[StateCell], arm: Place) -> Estimate | None:
    """The loss of the geometric mean over the jobs. A sample is a block of each of them that both arrays have."""
    contrasts = []
    for view in views:
        name = view.cell.throughput_name
        left, right = (cell.series(name, arm) for cell in (view.optimal, view.cell))
        contrasts.append(contrast(left, right))
    jobs = [one for one in contrasts if one is not None]
    if len(jobs) < len(views):
        return None
    left, right = (average_over_jobs(side) for side in ([one.left for one in jobs], [one.right for one in jobs]))
    over_jobs = contrast(left, right, confidence=max(view.record.confidence for view in views))
    return None if over_jobs is None else over_jobs.loss


MOST_IN_SENTENCE = 4
"""Arrays that the headline lists. Of more, it has the one that delivers most and the one that delivers least."""


@dataclass(frozen=True, slots=True)
class ArrayCell:
    """One array in one job."""

    record: ScalingRecord
    cell: CellRecord

    @property
    def array(self) -> str:
        """For example "RAID 5 over 4"."""
        legs = f" in {self.record.legs} legs" if self.record.legs > 1 else ""
        return f"RAID {self.record.level} over {self.record.disks}{legs}"

    @property
    def single(self) -> str:
        """The disk that it is compared with: "one disk", or "one disk (spare)" with the name of the reference."""
        return f"one disk ({self.record.reference})" if self.record.reference else "one disk"

    @property
    def arms(self) -> tuple[ArmName, ArmName]:
        """The arms of the cell that are compared: the array on the host, and the single disk."""
        if not self.record.reference:
            return "twin", "host"
        return "host" if isinstance(self.cell.mode_detail.layout, Device) else "twin", "reference"

    @property
    def metric(self) -> ScalingMetric:
        """IOPS for random jobs, bandwidth for sequential ones."""
        return self.record.metrics[self.cell.throughput_name]

    @property
    def speedup(self) -> str:
        """The array divided by the single disk: "2.87 [2.71, 3.04]"."""
        return with_interval(self.metric.speedup)

    @property
    def ideal(self) -> str:
        """What the level can deliver, divided by the single disk."""
        return f"{self.record.ideal:.3g}"

    @property
    def why(self) -> str:
        """What the level can deliver in this job, and why."""
        return f"{self.array}, {self.cell.workload}: {self.ideal} times one disk ({self.record.why_ideal})"

    @property
    def limit(self) -> str:
        """The bottleneck with its evidence, and the limit of a path."""
        words = f"{self.record.bottleneck}: {self.record.evidence}"
        return f"{words}; the path does {self.path_figure}" if self.path_figure else words

    @property
    def path_rate(self) -> float:
        """The limit of the path, in I/Os or bytes per second; 0 without one."""
        limit = self._path_limit
        return limit.point if limit is not None else 0.0

    @property
    def path_figure(self) -> str:
        """The limit of the path: "33.5 MB/s [33.1, 33.9]", or "803 IOPS [798, 808]" for random jobs; empty without."""
        limit = self._path_limit
        if limit is None:
            return ""
        per, unit = (1e6, "MB/s") if self.cell.throughput_name == "bw" else (1.0, "IOPS")
        return with_interval(limit, lambda value: significant(value / per), f" {unit}")

    @property
    def _path_limit(self) -> Estimate | None:
        limit = self.record.path_limit
        if limit is None:
            return None
        return limit.bw if self.cell.throughput_name == "bw" else limit.iops

    @property
    def outcome(self) -> str:
        """The limit, or why the figures are not a result."""
        return f"not a result: {self.record.doubt}" if self.record.doubt else f"{self.limit}{self.in_guest}"

    @property
    def in_guest(self) -> str:
        """The thread that limits the guest, as the end of a sentence; empty if none does."""
        return f"; in the guest, {self.record.guest_limit}" if self.record.guest_limit else ""

    @property
    def sentence(self) -> str:
        """For a line of text."""
        outcome = self.outcome if self.record.doubt else f"limit: {self.outcome}"
        return (
            f"{self.cell.id}: {self.array} delivers {self.speedup} x {self.single}, "
            f"{percent_with_interval(self.metric.efficiency)} % of {self.record.disks} disks and "
            f"{percent_with_interval(self.metric.of_ideal)} % of what the level can deliver ({self.ideal} x); {outcome}"
        )


def scaling_blocks(section: Section) -> Iterator[Block]:
    """How the arrays of a disk scale; nothing without arrays."""
    arrays = array_cells(section.run.of(ScalingRecord), section.cells)
    if not arrays:
        return
    yield Heading("Arrays against their disks")
    yield Aside(
        join_words(
            f"The array on the host against {arrays[0].single} in the same blocks. ",
            Mark("Of all disks"),
            " is the throughput divided by that of the single disk and by the number of disks. ",
            Mark("Of that"),
            " is the throughput divided by what the RAID level can deliver in this job if disks are the only limit. "
            "The last column names the limit, if the counters show it.",
        )
    )
    yield make_table(
        arrays,
        f"Arrays on {section.name}",
        (Column("array", "head"), lambda array: array.array),
        (Column("cell", "mode"), lambda array: array.cell.id),
        (Column("times one disk", "strong"), lambda array: array.speedup),
        (Column("of all disks, %"), lambda array: percent_with_interval(array.metric.efficiency)),
        (
            Column("the level can deliver"),
            lambda array: TableCell(f"{array.ideal}\N{MULTIPLICATION SIGN}", title=array.record.why_ideal),
        ),
        (Column("of that, %"), lambda array: percent_with_interval(array.metric.of_ideal)),
        (Column("limit", "reason"), lambda array: array.outcome),
        row=lambda array: Row((), sentence=array.sentence, doubtful=bool(array.record.doubt)),
        style="cells scaling",
        most=MOST_LISTED,
    )
    yield Listing(tuple(dict.fromkeys(array.why for array in arrays)), on=On.PAGE)


def array_cells(records: Sequence[ScalingRecord], cells: Sequence[CellRecord]) -> tuple[ArrayCell, ...]:
    """The scalings of these cells, in their order."""
    by_cell = {record.cell: record for record in records}
    return tuple(ArrayCell(by_cell[cell.id], cell) for cell in cells if cell.id in by_cell)


@dataclass(frozen=True, slots=True)
class ArraySummary:
    """One array over its jobs: the geometric mean of its throughput, as a multiple of the single disk's."""

    mode: str
    disks: int
    jobs: int
    speedup: Estimate
    single: str = "one disk"

    @property
    def words(self) -> str:
        """For example "`raid0-8` delivers 4.01 times one disk [3.97, 4.05], 50 % of 8 disks"."""
        times = with_interval(self.speedup, unit=f" times {self.single}")
        share = f"{self.speedup.point / self.disks:.0%}".replace("%", " %")
        return f"`{self.mode}` delivers {times}, {share} of {self.disks} disks"


def special_headline(section: Section) -> Headline | None:
    """How the arrays scale that the run built on a disk; None if it built none."""
    built = _built(section)
    return array_headline(section.name, built, section.comparison) if built else None


def array_headline(disk: str, views: Sequence[ArrayCell], comparison: Comparison) -> Headline:
    """For example "ssd1: `raid0` delivers 3.9 times one disk [3.8, 4.0], 98 % of 4 disks; `raid5` delivers ..."."""
    usable = [view for view in views if not view.record.doubt]
    if not usable:
        sentence = f"{disk}: no array has a figure that can be trusted"
        return Headline(sentence, _not_usable(views))
    arrays = _summaries(usable)
    shown = arrays if len(arrays) <= MOST_IN_SENTENCE else [arrays[0], arrays[-1]]
    sentence = f"{disk}: " + "; ".join(array.words for array in shown)
    details = [_basis(arrays, usable), *_paths(usable), _limits(usable), *_guests(comparison), *_not_usable(views)]
    if len(arrays) > len(shown):
        details.insert(1, f"These deliver most and least of {len(arrays)} arrays.")
    return Headline(sentence, tuple(details))


def _built(section: Section) -> list[ArrayCell]:
    """The arrays that the run built. One that was there before has a single disk to compare with, as a reference."""
    return [array for array in array_cells(section.run.of(ScalingRecord), section.cells) if not array.record.reference]


def existing_array_sentences(views: Sequence[ArrayCell]) -> tuple[str, ...]:
    """How an array scales that was there before the run. Its section is about what a guest loses of it.

    For example "RAID 5 over 6 on the host: `host` delivers 4.1 times one disk (spare) [4.0, 4.2], 68 % of 6 disks."
    """
    usable = [view for view in views if not view.record.doubt]
    if not usable:
        return _not_usable(views)
    arrays = _summaries(usable)
    words = "; ".join(array.words for array in arrays[:MOST_IN_SENTENCE])
    return (f"{usable[0].array} on the host: {words}.", _basis(arrays, usable), _limits(usable), *_not_usable(views))


def _summaries(views: Sequence[ArrayCell]) -> list[ArraySummary]:
    """The arrays over the jobs that they have in common, the one that delivers most first."""
    by_mode: dict[str, dict[str, ArrayCell]] = {}
    for view in views:
        by_mode.setdefault(view.cell.mode, {})[view.cell.job.id] = view
    chosen, jobs = most_comparable({mode: set(of_job) for mode, of_job in by_mode.items()})
    found = []
    for mode in chosen:
        own = [by_mode[mode][job] for job in sorted(jobs)]
        speedup = _speedup(loss_over_jobs([view.cell for view in own], *map(Place, own[0].arms)))
        found.append(ArraySummary(mode, own[0].record.disks, len(own), speedup, own[0].single))
    return sorted(found, key=lambda array: -array.speedup.point)


def _speedup(overhead: Estimate) -> Estimate:
    """1 minus a loss of throughput is the ratio."""
    low = None if overhead.high is None else 1 - overhead.high
    high = None if overhead.low is None else 1 - overhead.low
    return Estimate(1 - overhead.point, low, high, overhead.n, boots=overhead.boots)


def _basis(arrays: Sequence[ArraySummary], views: Sequence[ArrayCell]) -> str:
    first, last = arrays[0], arrays[-1]
    samples = sample_count(first.speedup.n, first.speedup.boots)
    basis = f"Geometric mean over {count(first.jobs, 'job')} in {samples}"
    if first.speedup.low is None:
        return f"{basis}; one block gives no interval."
    basis += f", with its interval ({confidence_words([view.cell for view in views])})."
    if len(arrays) > 1 and _overlap(last.speedup, first.speedup):
        basis += " The intervals of the first and the last overlap: this run cannot distinguish them."
    return basis


def _paths(views: Sequence[ArrayCell]) -> list[str]:
    """The limit of each path, the most that it let through: MB/s in sequential jobs, IOPS in random ones."""
    found = []
    for path in dict.fromkeys(view.record.path_limit.path for view in views if view.record.path_limit):
        limited = [view for view in views if view.record.path_limit and view.record.path_limit.path == path]
        figures = [view for view in limited if view.path_figure]
        by_quantity = ([view for view in figures if view.cell.throughput_name == name] for name in ("bw", "iops"))
        best = [max(same, key=lambda view: view.path_rate) for same in by_quantity if same]
        words = " and ".join(f"{view.path_figure} ({view.cell.job.id})" for view in best)
        modes = ", ".join(f"`{mode}`" for mode in dict.fromkeys(view.cell.mode for view in limited))
        found.append(f"Path {path} limits {modes} in {count(len(limited), 'cell')}: at most {words}.")
    return found


def _limits(views: Sequence[ArrayCell]) -> str:
    counted = Counter(str(view.record.bottleneck) for view in views)
    words = ", ".join(f"{limit} in {count(number, 'cell')}" for limit, number in counted.most_common())
    return f"What limits the arrays: {words}."


def _guests(comparison: Comparison) -> list[str]:
    """What a guest loses of the array. The share of the single disk would say nothing."""
    losses = [
        f"`{mode.mode}` {percent_with_interval(mode.virtualisation, ' %')}"
        for mode in comparison.modes
        if mode.layer is not None
    ]
    return [f"A guest loses, of the throughput of its array on the host: {', '.join(losses)}."] if losses else []


def _not_usable(views: Sequence[ArrayCell]) -> tuple[str, ...]:
    doubtful = sum(bool(view.record.doubt) for view in views)
    return (f"A check failed in {count(doubtful, 'cell')}: these figures are left out.",) if doubtful else ()


def _array_blocks(section: Section) -> Iterator[Block]:
    yield from scaling_blocks(section)
    yield from array_state_blocks(section)


def _detail_arrays(section: Section) -> Iterator[str]:
    arrays = array_cells(section.run.of(ScalingRecord), section.cells)
    if arrays and not _built(section):
        yield from existing_array_sentences(arrays)
    yield from state_sentences(state_cells(section.run.of(ArrayStateRecord), section.cells))


def _overlap(one: Estimate, other: Estimate) -> bool:
    """Whether the interval of `one`, the smaller, reaches that of the other. False without intervals."""
    if one.high is None or other.low is None:
        return False
    return one.high >= other.low


REPORT = FeatureReport(
    records=(ScalingRecord, ArrayStateRecord),
    contents={ReportPlace.PARTS: _array_blocks},
    headline=special_headline,
    details=_detail_arrays,
)
