"""What several guests, or a guest and its neighbour, did at the same time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from harness.analysis import METRICS, Estimate, Samples, estimate_mean, fairness, merged, percentile_interval
from harness.model.cell import Cell, Place
from harness.results.blocks import Blocks
from harness.results.cells import (
    GuestShare,
    NeighbourRecord,
    PooledPercentile,
    SeveralGuests,
    ValidityCheck,
)
from harness.results.journal_records import Measurement, PartRecord

LEAST_TOGETHER = 0.9
"""The share of the measured time in which all jobs of an arm must run at the same time, over all its slices."""
_P99 = METRICS["clat_p99"]

_ByGuest = Mapping[int, Sequence[PartRecord]]
"""The jobs of each guest by its number, in the order of the blocks."""


def together_checks(measurements: Iterable[Measurement]) -> list[ValidityCheck]:
    """One check per arm with several jobs: whether they ran at the same time, by fio's clocks."""
    by_arm: dict[str, list[float]] = {}
    for measurement in measurements:
        if measurement.together is not None:
            by_arm.setdefault(measurement.arm, []).append(measurement.together)
    return [
        ValidityCheck(
            f"together {arm}",
            ok=fmean(shares) >= LEAST_TOGETHER,
            detail=f"all jobs ran at the same time for {fmean(shares):.1%} of the measured time, at least "
            f"{LEAST_TOGETHER:.0%} needed"
            + ("" if fmean(shares) >= LEAST_TOGETHER else ": set a longer runtime in the profile"),
        )
        for arm, shares in by_arm.items()
    ]


def several_guests(cell: Cell, blocks: Blocks, samples: Samples, confidence: float) -> SeveralGuests | None:
    """What each of several guests got in these blocks; None for one guest, or without blocks."""
    if cell.mode.guests == 1 or not blocks.keys:
        return None
    guest, host = (_by_guest(blocks.arms[arm]) for arm in (Place.GUEST, Place.HOST))
    metric = "iops" if cell.job.is_random else "bw"
    of_guest, of_host = (_values(parts, metric) for parts in (guest, host))
    shares, host_shares = (_shares(found, samples, confidence) for found in (of_guest, of_host))
    return SeveralGuests(
        metric,
        tuple(
            GuestShare(
                number,
                guest=of_guest[number],
                host=of_host[number],
                share=shares[number],
                host_share=host_shares[number],
                p99=_p99(guest[number], confidence),
                host_p99=_p99(host[number], confidence),
            )
            for number in guest
        ),
        fairness=fairness(list(zip(*of_guest.values(), strict=True)), confidence=confidence),
        host_fairness=fairness(list(zip(*of_host.values(), strict=True)), confidence=confidence),
    )


def neighbour_record(cell: Cell, blocks: Blocks) -> NeighbourRecord | None:
    """What the neighbour did in these blocks; None without one, or without blocks."""
    if cell.mode.neighbour is None or not blocks.keys:
        return None
    neighbours = [slice_.neighbour for slice_ in blocks.arms[Place.GUEST] if slice_.neighbour is not None]
    iops, bw = (tuple(neighbour.metrics[name] for neighbour in neighbours) for name in ("iops", "bw"))
    return NeighbourRecord(cell.mode.neighbour.id, iops, bw)


def _by_guest(slices: Iterable[Measurement]) -> _ByGuest:
    parts: dict[int, list[PartRecord]] = {}
    for slice_ in slices:
        for part in slice_.parts:
            parts.setdefault(part.number, []).append(part)
    return parts


def _values(parts: _ByGuest, metric: str) -> dict[int, tuple[float, ...]]:
    return {number: tuple(part.metrics[metric] for part in own) for number, own in parts.items()}


def _shares(values: Mapping[int, Sequence[float]], samples: Samples, confidence: float) -> dict[int, Estimate]:
    """The share of each guest, as the mean of its shares of the blocks."""
    totals = [sum(block) for block in zip(*values.values(), strict=True)]
    return {
        number: estimate_mean(
            [each / total for each, total in zip(own, totals, strict=True)], confidence=confidence, samples=samples
        )
        for number, own in values.items()
    }


def _p99(parts: Sequence[PartRecord], confidence: float) -> PooledPercentile | None:
    assert _P99.quantile is not None
    found = percentile_interval(merged(part.histogram for part in parts), _P99.quantile, confidence=confidence)
    return PooledPercentile(found.point, found.low, found.high, found.ios) if found is not None else None
