"""Guests that ran at the same time: who got what of a storage, and what a neighbour or a backup costs a guest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from harness.analysis import METRICS, Estimate
from harness.model.mode import DURING_BACKUP
from harness.report.blocks import Aside, Block, Cell, Column, Heading, Listing, Mark, On, Row, Sentence, Table
from harness.report.budgets import gravest_first, limit
from harness.report.cells import CellView
from harness.report.lines import MOST_DIFFERENCES
from harness.report.numbers import NONE, difference_words, microseconds, percent, significant
from harness.report.section import Section
from harness.results import SeveralGuests
from harness.units import format_size

_TAIL = ("clat_p99", "clat_mean")
"""The latency that shows a neighbour: the 99th percentile, or with too few I/Os the mean."""
_WORDS = {"clat_p99": "p99", "clat_mean": "mean latency"}


def neighbour_blocks(section: Section) -> Iterator[Block]:
    """What neighbours and backups cost the guests of a disk; nothing without any."""
    cells = with_neighbours(section.cells)
    if not cells:
        return
    title = "With a neighbour or a backup"
    yield Heading(title)
    yield Aside(
        "A second guest, on a volume of its own, runs its own job only during the slices of the mode with a neighbour. "
        "A backup also runs only during the slices of the mode with one. So the same blocks have the guest with and "
        "without it."
    )
    yield Sentence((Mark(f"{section.name}: {title[0].lower()}{title[1:]}.", "strong"),), on=On.MARKDOWN)
    yield Table(
        (
            Column("job", "mode"),
            Column("neighbour", "name"),
            Column("latency", "text"),
            Column("alone, us"),
            Column("with it, us"),
            Column("factor", "strong"),
            Column("throughput"),
            Column("neighbour did"),
            Column("verdict", "reason"),
        ),
        tuple(map(_neighbour_row, cells)),
        f"What a neighbour or a backup costs on {section.name}",
        style="cells neighbours",
        most=MOST_DIFFERENCES,
    )
    shown = [(difference.point, cell) for cell in cells if (difference := _tail_difference(cell)) is not None]
    if shown:
        # The neighbour that costs most.
        yield Sentence(_neighbour_sentence(max(shown, key=lambda each: each[0])[1]), on=On.BRIEF)


def shared_blocks(section: Section) -> Iterator[Block]:
    """What each of several guests got at the same time; nothing if all ran alone."""
    shared = shared_cells(section.cells)
    for cell, several in shared:
        sentence = shared_sentence(cell, several)
        yield Heading(f"{_shared_name(cell)}: {len(several.guests)} guests at the same time")
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
            tuple(Row(row) for row in (*_shared_rows(several), _shared_total(cell, several))),
            f"What each guest got at {_shared_name(cell)} on {section.name}",
            style="cells shared",
        )
    yield Listing(tuple(shared_sentence(*each) for each in shared), on=On.TERMINAL, most=MOST_DIFFERENCES)
    if usable := [each for each in shared if each[0].usable]:
        least_fair = min(usable, key=lambda each: each[1].fairness.point)
        yield Sentence(shared_sentence(*least_fair), on=On.BRIEF)


def shared_cells(cells: Sequence[CellView]) -> tuple[tuple[CellView, SeveralGuests], ...]:
    """The cells of several guests, in the order of the plan."""
    return tuple((cell, cell.record.several) for cell in cells if cell.record.several is not None)


def with_neighbours(cells: Sequence[CellView]) -> tuple[CellView, ...]:
    """The cells with a neighbour or a backup, in the order of the plan."""
    details = ((cell, cell.record.mode_detail) for cell in cells)
    return tuple(cell for cell, detail in details if detail.neighbour is not None or detail.backup)


def shared_sentence(cell: CellView, several: SeveralGuests) -> str:
    """For example "shared-randread-4k-qd8: 4 guests got 120 000 IOPS together (fio on the host 131 000), fairness
    0.998 [0.996, 0.999] (host 0.999), shares 24.1 to 26.0 %, p99 310 to 402 us (host 280 to 300)"."""
    if not cell.usable:
        return f"{_shared_name(cell)}: {cell.outcome}"
    shares = [guest.share.point for guest in several.guests]
    together, host = (_total(several, arm) for arm in ("guest", "host"))
    words = (
        f"{_shared_name(cell)}: {len(shares)} guests got {together} {METRICS[several.metric].shown.unit} together "
        f"(fio on the host {host}), fairness {_index(several.fairness)} (host {several.host_fairness.point:.3f}), "
        f"shares {percent(min(shares))} to {percent(max(shares))} %"
    )
    guests = [guest.p99.value for guest in several.guests if guest.p99 is not None]
    hosts = [guest.host_p99.value for guest in several.guests if guest.host_p99 is not None]
    if len(guests) == len(hosts) == len(shares):
        words += f", p99 {_range(guests)} us (host {_range(hosts)})"
    return words


def _shared_name(cell: CellView) -> str:
    return f"{cell.mode}-{cell.record.job.id}"


def _shared_rows(several: SeveralGuests) -> Iterator[tuple[str, ...]]:
    """For each guest, and fio on the host on the same volume: throughput, share and p99, side by side."""
    for guest in several.guests:
        tails = (microseconds(tail.value) if tail is not None else NONE for tail in (guest.p99, guest.host_p99))
        values = (_shown(several, fmean(values)) for values in (guest.guest, guest.host))
        yield (f"guest {guest.number}", *values, *map(_share, (guest.share, guest.host_share)), *tails)


def _shared_total(cell: CellView, several: SeveralGuests) -> tuple[str, ...]:
    """The same of all together, with the fairness in the place of the shares."""
    fair, host_fair = (_index(index) for index in (several.fairness, several.host_fairness))
    p99 = cell.record.metrics.get("clat_p99")
    pooled = p99.pooled if p99 is not None else {}
    tails = (microseconds(pooled[arm].value) if arm in pooled else NONE for arm in ("guest", "host"))
    totals = (_total(several, arm) for arm in ("guest", "host"))
    return ("together", *totals, f"fairness {fair}", f"fairness {host_fair}", *tails)


def _total(several: SeveralGuests, arm: str) -> str:
    return _shown(several, sum(fmean(getattr(guest, arm)) for guest in several.guests))


def _shown(several: SeveralGuests, value: float) -> str:
    return significant(value / METRICS[several.metric].shown.scale)


def _neighbour_row(cell: CellView) -> Row:
    """The job, the neighbour, the latency without and with it, both as a factor, the factor of the throughput, what
    the neighbour did, and the verdict."""
    tail = _tail(cell)
    return Row(
        (
            Cell(_name(cell), link=cell.link),
            cell.record.mode_detail.neighbour or DURING_BACKUP,
            _WORDS[tail],
            *map(microseconds, _tail_means(cell)),
            _factor(_tail_difference(cell)),
            _throughput_factor(cell),
            _neighbour_speed(cell),
            _verdict(cell),
        ),
        sentence=_neighbour_sentence(cell),
        doubtful=_tail_difference(cell) is None,
    )


def _neighbour_sentence(cell: CellView) -> str:
    """For example "lvm-randread-4k-qd1: p99 with the neighbour randwrite-4k-qd32: x 3.1 [2.8, 3.4], 120 to 372 us;
    IOPS x 0.45 [0.41, 0.49]; the neighbour did 21 300 IOPS: worse".

    Or "lvm-randread-4k-qd1: p99 during a backup: x 2.0 [1.9, 2.1], ...; the backup did 410 MiB/s: worse".
    """
    detail = cell.record.mode_detail
    when = "during a backup" if detail.backup else f"with the neighbour {detail.neighbour}"
    if _tail_difference(cell) is None:
        return f"{_name(cell)} {when}: {_verdict(cell)}"
    before, after = map(microseconds, _tail_means(cell))
    words = f"{_name(cell)}: {_WORDS[_tail(cell)]} {when}: {_factor(_tail_difference(cell))}, {before} to {after} us"
    if not METRICS[cell.headline_name].is_latency:
        words += f"; {cell.headline_unit} {_throughput_factor(cell)}"
    other = "backup" if detail.backup else "neighbour"
    return f"{words}; the {other} did {_neighbour_speed(cell)}: {_verdict(cell)}"


def _name(cell: CellView) -> str:
    """The mode without its neighbour and the job."""
    return (cell.record.against or "").removeprefix(f"{cell.record.scenario}-")


def _tail(cell: CellView) -> str:
    """The name of the latency metric that is shown."""
    return next((name for name in _TAIL if name in cell.record.metrics), _TAIL[-1])


def _tail_difference(cell: CellView) -> Estimate | None:
    """How much longer this latency is with the neighbour, as a share; None if the cell is not a result."""
    return _difference(cell, _tail(cell))


def _tail_means(cell: CellView) -> tuple[float | None, float | None]:
    """The latency without and with the neighbour, in seconds."""
    metric = cell.record.metrics.get(_tail(cell))
    return (fmean(metric.against), fmean(metric.guest)) if metric is not None and metric.against else (None, None)


def _throughput_factor(cell: CellView) -> str:
    name = cell.headline_name
    return _factor(_difference(cell, name), falls=METRICS[name].higher_is_better)


def _verdict(cell: CellView) -> str:
    """For example "exceeds 200 % in clat_p99"; without a budget, whether a difference is shown."""
    difference = _tail_difference(cell)
    if difference is None:
        return str(cell.outcome)
    budgets = gravest_first([budget for budget in cell.record.budget if budget.difference is not None])
    if not budgets:
        return difference_words(difference)
    return f"{budgets[0].verdict} {limit(budgets[0])} in {budgets[0].metric}"


def _neighbour_speed(cell: CellView) -> str:
    backup, neighbour = cell.record.backup, cell.record.neighbour
    if backup is not None and backup.bw:
        return f"{format_size(round(fmean(backup.bw)))}/s"
    return f"{significant(fmean(neighbour.iops))} IOPS" if neighbour is not None and neighbour.iops else NONE


def _difference(cell: CellView, name: str) -> Estimate | None:
    metric = cell.record.metrics.get(name)
    return metric.difference if metric is not None and cell.usable else None


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
