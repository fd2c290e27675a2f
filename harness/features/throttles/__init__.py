"""Limits of a disk's I/O: whether those of a mode hold, and whether figures look like a limit that nobody requested.

The limits themselves (`iops`, `bw` and their bursts) are options of an attachment, rows of the option table. A check
per limit compares what the guest got with what QEMU lets through. Notes say why a figure is above its limit, and where
the same round number of IOPS at several depths looks like the limit of others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from harness.feature import Feature
from harness.model.attach import Attach
from harness.model.job import Job
from harness.model.mode import Arm, Cell, Place
from harness.model.values import Limited, LimitKind, RateLimit
from harness.scenario.scenario import Scenario
from harness.units import format_size

if TYPE_CHECKING:
    from harness.results import CellRecord, Measurement, ValidityCheck

HOLDS = 0.02
"""The most by which a guest may exceed a limit, as a share of it."""
_METRICS: dict[LimitKind, str] = {"iops": "iops", "bps": "bw"}

_SAME = 0.02
"""Depths between which IOPS differ by no more than this share are on one plateau."""
_STEADY = 0.005
"""The largest standard deviation of all blocks on a plateau, as a share of their mean. A busy CPU varies more."""
_HOST_IS_FASTER = 1.25
"""On a plateau of the guest only, the host has at least this many times its IOPS."""
_ROUND = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.5, 8.0)
_NEAR = 0.005
"""How near to a round number a plateau must be, as a share of it."""


def check_limits(measurements: Iterable[Measurement], cell: Cell) -> list[ValidityCheck]:
    """One check per limit of the cell's guest: all its slices together, against what QEMU lets through in them.

    I/Os per second are checked for random access only: the guest may merge sequential I/Os into larger ones.
    """
    attach = cell.mode.attach
    limits = attach.limits if isinstance(attach, Attach) else {}
    guest = Arm(Place.GUEST, cell.mode).id
    of_guest = [measurement for measurement in measurements if measurement.arm == guest]
    return [
        _check_limit(limited, limit, of_guest, cell.mode.guests)
        for limited, limit in limits.items()
        if of_guest
        and _shows(cell.job, limited)
        and all(_METRICS[limited.kind] in measurement.metrics for measurement in of_guest)
    ]


def _shows(job: Job, limited: Limited) -> bool:
    """Whether the figures of the job show this limit. Those of reads and writes together show no limit of one way."""
    ways = {"read"} if not job.writes else {"write"} if not job.reads else set()
    return (limited.kind == "bps" or job.is_random) and limited.way in {"total", *ways}


def _check_limit(limited: Limited, limit: RateLimit, slices: Sequence[Measurement], guests: int) -> ValidityCheck:
    name = _METRICS[limited.kind]
    amount = sum(slice_.metrics[name] * slice_.seconds for slice_ in slices)
    seconds = sum(slice_.seconds for slice_ in slices)
    used = amount / guests / sum(limit.allowed(slice_.seconds) for slice_ in slices)
    for_each = f" for each of {guests} guests" if guests > 1 else ""
    detail = (
        f"{limited.format_rate(amount / seconds)} with a limit of {limited.format_rate(limit.rate)}{for_each}: "
        f"{used:.1%} of what QEMU lets through in slices of {seconds / len(slices):.3g} s, with "
        f"{_format_amount(limited.kind, limit.at_once())} at once"
    )
    from harness.results import ValidityCheck

    return ValidityCheck(f"throttle {limited.option}", ok=used <= 1 + HOLDS, detail=detail)


def _format_amount(kind: LimitKind, amount: float) -> str:
    return f"{amount:.0f} I/Os" if kind == "iops" else format_size(amount)


def yield_excess_notes(records: Iterable[CellRecord]) -> Iterator[tuple[str, str]]:
    """Cell id and note, for cells whose guest has more than its limit on average, as QEMU allows.

    Each slice begins after a pause, so QEMU lets some of its I/O through at once. The shorter the slices are, the
    further above the limit is the figure.
    """
    for record in records:
        if note := "; ".join(_explain_excess(record)):
            yield record.id, note


def _explain_excess(record: CellRecord) -> Iterator[str]:
    attach = record.mode_detail.attach
    for limited, limit in (attach.limits if isinstance(attach, Attach) else {}).items():
        metric = record.metrics.get(_METRICS[limited.kind])
        values = [value / record.mode_detail.guests for value in metric.guest] if metric else []
        if values and fmean(values) > (1 + HOLDS) * limit.rate and _shows(record.job, limited):
            yield (
                f"the guest's {limited.format_rate(fmean(values))} are above the limit of "
                f"{limited.format_rate(limit.rate)}, because QEMU lets {_format_amount(limited.kind, limit.at_once())} "
                "through at once at the beginning of each slice: longer slices (a heavier profile) come closer to the "
                "limit"
            )


def find_plateaus(records: Iterable[CellRecord]) -> dict[str, str]:
    """A note by cell id, for cells of one mode and workload whose guest has the same round number of IOPS at several
    depths, while the host has more.

    Nothing is noted if the mode requests a limit. The limits of QEMU and of the host's kernel are read back. This is
    for the limits of others, for example of a storage network.
    """
    alike: dict[tuple[object, ...], list[CellRecord]] = defaultdict(list)
    for record in records:
        attach = record.mode_detail.attach
        if isinstance(attach, Attach) and not attach.limits and record.job.is_saturating and "iops" in record.metrics:
            job = record.job
            alike[record.scenario, record.host, record.disk, record.mode, job.name, job.bs].append(record)
    notes: dict[str, str] = {}
    for cells in alike.values():
        plateau = _find_plateau(sorted(cells, key=lambda cell: cell.job.depth))
        values = [value for cell in plateau for value in cell.metrics["iops"].guest]
        level = fmean(values) if values else 0.0
        number = _find_round_number(level)
        if number is not None and pstdev(values) <= _STEADY * level:
            depths = " and ".join(str(cell.job.depth) for cell in plateau)
            note = (
                f"the guest has {level:.0f} IOPS at the depths {depths}, and the host more: this looks like a limit of "
                f"{number:.0f} IOPS that nobody requested, for example of a volume or a storage network"
            )
            notes |= dict.fromkeys((cell.id for cell in plateau), note)
    return notes


def _find_plateau(by_depth: Sequence[CellRecord]) -> list[CellRecord]:
    """The cells of the largest depths, if the guest of all of them has the same IOPS; empty if fewer than two have."""
    if not by_depth:
        return []
    top = _read_iops(by_depth[-1])
    cells = [
        cell
        for cell in by_depth
        if abs(_read_iops(cell) - top) <= _SAME * top
        and fmean(cell.metrics["iops"].host) >= _HOST_IS_FASTER * _read_iops(cell)
    ]
    return cells if len({cell.job.depth for cell in cells}) > 1 and by_depth[-1] in cells else []


def _read_iops(record: CellRecord) -> float:
    values = record.metrics["iops"].guest
    return fmean(values) if values else 0.0


def _find_round_number(level: float) -> float | None:
    """The round number of I/Os per second that this is close to; None if there is none."""
    if level < 1:
        return None
    for scale in (math.floor(math.log10(level)), math.ceil(math.log10(level))):
        for digits in _ROUND:
            if abs(level / (digits * 10**scale) - 1) <= _NEAR:
                return digits * 10.0**scale
    return None


def annotate_limits(records: Sequence[CellRecord]) -> Iterator[tuple[str, str]]:
    """Cell id and note, for cells that look like another limit, or have more than theirs."""
    yield from find_plateaus(records).items()
    yield from yield_excess_notes(records)


def find_group_conflicts(scenario: Scenario) -> Iterator[str]:
    """Modes of one throttle group: QEMU gives all its disks the limits of the last one."""
    first: dict[str, tuple[str, Attach]] = {}
    # Variants of a mode have guests of their own, whose groups share nothing.
    for mode in scenario.declared_modes:
        if isinstance(attach := mode.attach, Attach) and (group := attach.throttle_group) is not None:
            name, other = first.setdefault(group, (mode.name, attach))
            if other.limits != attach.limits:
                yield (
                    f'mode.{mode.name}.attach.throttle_group = "{group}": conflicts with mode.{name}, which has other '
                    "limits in the same group; allowed: the same limits and bursts, or another group"
                )


FEATURE = Feature(
    name="throttles", find_problems=find_group_conflicts, find_checks=check_limits, annotate=annotate_limits
)
