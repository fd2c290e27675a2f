"""Guests that ran at the same time: who got what of a storage, and what a neighbour or a backup costs a guest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.analysis import METRICS, Estimate
from harness.feature import FeatureReport, ReportPlace, Subject
from harness.features.neighbours import DURING_BACKUP
from harness.report.blocks import (
    MOST_DIFFERENCES,
    Aside,
    Block,
    Column,
    Heading,
    Listing,
    Mark,
    On,
    Row,
    Sentence,
    Table,
    TableCell,
    make_table,
)
from harness.report.numbers import NONE, microseconds, percent, percent_with_interval, significant, with_interval
from harness.report.section import Section
from harness.report.verdicts import judge_difference, link_cell
from harness.results import CellRecord, SeveralGuests
from harness.units import format_size

_TAIL = ("clat_p99", "clat_mean")
"""The latency that shows a neighbour: the 99th percentile, or with too few I/Os the mean."""
_WORDS = {"clat_p99": "p99", "clat_mean": "mean latency"}


def neighbour_blocks(section: Section) -> Iterator[Block]:
    """What neighbours and backups cost the guests of a disk; nothing without any."""
    details = ((cell, cell.mode_detail) for cell in section.all_cells)
    examined = [(_examine(cell), cell) for cell, detail in details if detail.neighbour is not None or detail.backup]
    if not examined:
        return
    title = "With a neighbour or a backup"
    yield Heading(title)
    yield Aside(
        "A second guest, on a volume of its own, runs its own job only during the slices of the mode with a neighbour. "
        "A backup also runs only during the slices of the mode with one. So the same blocks have the guest with and "
        "without it."
    )
    yield Sentence((Mark(f"{section.name}: {title[0].lower()}{title[1:]}.", "strong"),), on=On.MARKDOWN)
    yield make_table(
        examined,
        f"What a neighbour or a backup costs on {section.name}",
        (Column("job", "mode"), lambda pair: TableCell(pair[0].job, link=link_cell(pair[1]))),
        (Column("neighbour", "name"), lambda pair: pair[0].name),
        (Column("latency", "text"), lambda pair: pair[0].tail),
        (Column("alone, us"), lambda pair: pair[0].before),
        (Column("with it, us"), lambda pair: pair[0].after),
        (Column("factor", "strong"), lambda pair: pair[0].factor),
        (Column("throughput"), lambda pair: pair[0].throughput),
        (Column("neighbour did"), lambda pair: pair[0].did),
        (Column("verdict", "reason"), lambda pair: pair[0].verdict),
        row=lambda pair: Row((), sentence=pair[0].describe(pair[1]), doubtful=pair[0].difference is None),
        style="cells neighbours",
        most=MOST_DIFFERENCES,
    )
    shown = [
        (neighbour.difference.point, neighbour.describe(cell))
        for neighbour, cell in examined
        if neighbour.difference is not None and not cell.is_cached
    ]
    if shown:
        # The neighbour that costs most.
        yield Sentence(max(shown)[1], on=On.BRIEF)


def shared_blocks(section: Section) -> Iterator[Block]:
    """What each of several guests got at the same time; nothing if all ran alone."""
    shared = [(cell, cell.several) for cell in section.all_cells if cell.several is not None]
    for cell, several in shared:
        sentence = describe_shared(cell, several)
        yield Heading(f"{_name_shared(cell)}: {len(several.guests)} guests at the same time")
        yield Aside(
            f"{sentence}. Throughput in {METRICS[several.metric].shown.unit}. The host columns are fio on the host on "
            "the same volumes, also at the same time. Fairness is Jain's index: 1 if all got the same."
        )
        yield Sentence((Mark(f"{section.name}: {sentence}", "strong"),), on=On.MARKDOWN)
        yield Table(
            (
                Column("guest", "head"),
                *map(Column, ("got", "host", "share, %", "host's share, %", "p99, us", "host's p99, us")),
            ),
            tuple(Row(row) for row in (*_yield_shared_rows(several), _make_total_row(cell, several))),
            f"What each guest got at {_name_shared(cell)} on {section.name}",
            style="cells shared",
        )
    yield Listing(
        tuple(describe_shared(cell, several) for cell, several in shared), on=On.TERMINAL, most=MOST_DIFFERENCES
    )
    if usable := [(cell, several) for cell, several in shared if cell.usable and not cell.is_cached]:
        least_fair = min(usable, key=lambda pair: pair[1].fairness.point)
        yield Sentence(describe_shared(*least_fair), on=On.BRIEF)


def describe_shared(cell: CellRecord, several: SeveralGuests) -> str:
    """For example "shared-randread-4k-qd8: 4 guests got 120 000 IOPS together (fio on the host 131 000), fairness
    0.998 [0.996, 0.999] (host 0.999), shares 24.1 to 26.0 %, p99 310 to 402 us (host 280 to 300)"."""
    if not cell.usable:
        return f"{_name_shared(cell)}: {cell.outcome}"
    shares = [guest.share.point for guest in several.guests]
    together, host = (_format_total(several, arm) for arm in ("guest", "host"))
    words = (
        f"{_name_shared(cell)}: {len(shares)} guests got {together} {METRICS[several.metric].shown.unit} together "
        f"(fio on the host {host}), fairness {_format_index(several.fairness)} (host "
        f"{several.host_fairness.point:.3f}), shares {percent(min(shares))} to {percent(max(shares))} %"
    )
    guests = [guest.p99.value for guest in several.guests if guest.p99 is not None]
    hosts = [guest.host_p99.value for guest in several.guests if guest.host_p99 is not None]
    if len(guests) == len(hosts) == len(shares):
        words += f", p99 {_format_range(guests)} us (host {_format_range(hosts)})"
    return words


def _name_shared(cell: CellRecord) -> str:
    return f"{cell.mode}-{cell.job.id}"


def _yield_shared_rows(several: SeveralGuests) -> Iterator[tuple[str, ...]]:
    """For each guest, and fio on the host on the same volume: throughput, share and p99, side by side."""
    for guest in several.guests:
        tails = (microseconds(tail.value) if tail is not None else NONE for tail in (guest.p99, guest.host_p99))
        values = (_format_value(several, fmean(values)) for values in (guest.guest, guest.host))
        yield (f"guest {guest.number}", *values, *map(percent_with_interval, (guest.share, guest.host_share)), *tails)


def _make_total_row(cell: CellRecord, several: SeveralGuests) -> tuple[str, ...]:
    """The same of all together, with the fairness in the place of the shares."""
    fair, host_fair = (_format_index(index) for index in (several.fairness, several.host_fairness))
    p99 = cell.metrics.get("clat_p99")
    pooled = p99.pooled if p99 is not None else {}
    tails = (microseconds(pooled[arm].value) if arm in pooled else NONE for arm in ("guest", "host"))
    totals = (_format_total(several, arm) for arm in ("guest", "host"))
    return ("together", *totals, f"fairness {fair}", f"fairness {host_fair}", *tails)


def _format_total(several: SeveralGuests, arm: str) -> str:
    return _format_value(several, sum(fmean(getattr(guest, arm)) for guest in several.guests))


def _format_value(several: SeveralGuests, value: float) -> str:
    return significant(value / METRICS[several.metric].shown.scale)


@dataclass(frozen=True, slots=True)
class _Neighbour:
    """A cell with a neighbour or a backup in words, beside the same cell without."""

    job: str
    """The mode without its neighbour and the job."""
    name: str
    """The job of the neighbour, or `backup`."""
    tail: str
    """The latency that is shown."""
    difference: Estimate | None
    """How much longer it is, as a share; None if the cell is not a result."""
    before: str
    after: str
    throughput: str
    """The factor of the throughput."""
    did: str
    """What the neighbour or the backup did."""
    verdict: str

    @property
    def factor(self) -> str:
        return _format_factor(self.difference)

    def describe(self, cell: CellRecord) -> str:
        """For example "lvm-randread-4k-qd1: p99 with the neighbour randwrite-4k-qd32: x 3.1 [2.8, 3.4], 120 to 372 us;
        IOPS x 0.45 [0.41, 0.49]; the neighbour did 21 300 IOPS: worse".

        Or "lvm-randread-4k-qd1: p99 during a backup: x 2.0 [1.9, 2.1], ...; the backup did 410 MiB/s: worse".
        """
        backup = cell.mode_detail.backup
        when = "during a backup" if backup else f"with the neighbour {self.name}"
        if self.difference is None:
            return f"{self.job} {when}: {self.verdict}"
        words = f"{self.job}: {self.tail} {when}: {self.factor}, {self.before} to {self.after} us"
        if not METRICS[cell.headline_name].is_latency:
            words += f"; {cell.headline_unit} {self.throughput}"
        return f"{words}; the {'backup' if backup else 'neighbour'} did {self.did}: {self.verdict}"


def _examine(cell: CellRecord) -> _Neighbour:
    metrics, headline = cell.metrics, cell.headline_name
    tail = next((name for name in _TAIL if name in metrics), _TAIL[-1])
    metric = metrics.get(tail)
    before = cell.mean(metric, "against")
    after = cell.mean(metric, "guest") if before is not None else None
    differences = {name: metric.difference for name, metric in metrics.items() if cell.usable}
    difference = differences.get(tail)
    return _Neighbour(
        job=(cell.against or "").removeprefix(f"{cell.scenario}-"),
        name=cell.mode_detail.neighbour or DURING_BACKUP,
        tail=_WORDS[tail],
        difference=difference,
        before=microseconds(before.point if before is not None else None),
        after=microseconds(after.point if after is not None else None),
        throughput=_format_factor(differences.get(headline), falls=METRICS[headline].higher_is_better),
        did=_format_speed(cell),
        verdict=str(cell.outcome) if difference is None else judge_difference(cell, difference),
    )


def _format_speed(cell: CellRecord) -> str:
    backup, neighbour = cell.backup, cell.neighbour
    if backup is not None and backup.bw:
        return f"{format_size(round(fmean(backup.bw)))}/s"
    return f"{significant(fmean(neighbour.iops))} IOPS" if neighbour is not None and neighbour.iops else NONE


def _format_factor(difference: Estimate | None, *, falls: bool = False) -> str:
    """A difference as a factor: "x 3.1 [2.8, 3.4]". `falls`: the difference is what is lost."""
    if difference is None:
        return NONE
    sign = -1 if falls else 1
    point = 1 + sign * difference.point
    if difference.low is None or difference.high is None:
        return f"x {_round_to_two(point)}"
    low, high = sorted(1 + sign * end for end in (difference.low, difference.high))
    return f"x {_round_to_two(point)} [{_round_to_two(low)}, {_round_to_two(high)}]"


def _round_to_two(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 2 else f"{value:.1f}"


def _format_index(estimate: Estimate) -> str:
    return with_interval(estimate, "{:.3f}".format)


def _format_range(values: Sequence[float]) -> str:
    return f"{microseconds(min(values))} to {microseconds(max(values))}"


def _difference_blocks(section: Section) -> Iterator[Block]:
    yield from neighbour_blocks(section)
    yield from shared_blocks(section)


REPORT = FeatureReport(
    subject=Subject(in_record=lambda cell: cell.mode_detail.runs_with_others),
    contents={ReportPlace.DIFFERENCES: _difference_blocks},
)
