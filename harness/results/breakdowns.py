"""From traced slices to the breakdown of the latency that a guest adds to one I/O. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from harness.analysis import (
    Estimate,
    Part,
    PathTimes,
    estimate_added,
    estimate_overhead,
    parts_in_guest,
    parts_on_host,
)
from harness.model.cell import Arm
from harness.results.breakdown_records import BreakdownRecord, PartTime

ADDS_UP = 0.10
"""How far the sum of the parts may be from the measured added latency, as a share of it."""
MOST_COST = 0.02
"""The largest cost of tracing, as a share of the latency, that needs no remark."""
_MOST = 0.9
"""The share of I/Os that a trace must show, and with an exit and an interrupt each, so that no remark is needed."""


@dataclass(frozen=True, slots=True)
class TracedBlock:
    """Five slices, seconds apart: of each arm without tracing, of the host traced, and of the guest twice more.

    Latencies are fio's means, in seconds. `host` is what the host's kernel shows of its own traced slice. For the
    guest, its own kernel is traced in one slice (`guest`), and the host's kernel in another one (`below`).
    """

    host_latency: float
    guest_latency: float
    host_traced: float
    guest_traced: float
    """The guest's latency while its own kernel was traced."""
    below_traced: float
    """The guest's latency while the host's kernel was traced."""
    host: PathTimes
    guest: PathTimes
    below: PathTimes
    followed: float
    """The I/Os of the guest that a trace shows, as a share of those that fio counted: the smaller share of both."""


@dataclass(frozen=True, slots=True)
class TracedJob:
    """What a breakdown is about: the guest's arm, the arm on the host, and the job."""

    id: str
    scenario: str
    host: str
    disk: str
    job: str
    baseline: Arm
    guest: Arm

    def skipped(self, why: str) -> BreakdownRecord:
        """The record if there is no breakdown."""
        mode = self.guest.mode.name if self.guest.mode else ""
        return BreakdownRecord(
            self.id, self.scenario, self.host, self.disk, mode, self.job, self.baseline.id, blocks=0, skipped=why
        )

    def record(self, blocks: Sequence[TracedBlock]) -> BreakdownRecord:
        """The record of at least one block, in the order of time."""
        parts = tuple(_parts(blocks))
        total = estimate_added([block.host_traced for block in blocks], [block.guest_traced for block in blocks])
        measured = estimate_added([block.host_latency for block in blocks], [block.guest_latency for block in blocks])
        deviation = total.point / measured.point - 1 if measured.point > 0 else None
        guest_cost = _cost([(block.guest_latency, block.guest_traced) for block in blocks])
        host_cost = _cost([(block.host_latency, block.host_traced) for block in blocks])
        followed = fmean(block.followed for block in blocks)
        kicked = fmean(block.below.kicked for block in blocks)
        interrupted = fmean(block.below.interrupted for block in blocks)
        below_cost = _cost([(block.guest_latency, block.below_traced) for block in blocks])
        return replace(
            self.skipped(""),
            blocks=len(blocks),
            skipped=None,
            parts=parts,
            sum=total,
            measured=measured,
            deviation=deviation,
            adds_up=deviation is not None and abs(deviation) <= ADDS_UP,
            guest_cost=guest_cost,
            below_cost=below_cost,
            host_cost=host_cost,
            followed=followed,
            kicked=kicked,
            interrupted=interrupted,
            notes=(
                *_sums(deviation),
                *_costs(guest_cost, below_cost, host_cost),
                *_missed(followed, kicked, interrupted),
            ),
        )


def _parts(blocks: Sequence[TracedBlock]) -> Iterator[PartTime]:
    host = [parts_on_host(block.host_traced, block.host) for block in blocks]
    guest = [parts_in_guest(block.guest_traced, block.guest, block.below) for block in blocks]
    for part in Part:
        before = [each.get(part, 0.0) for each in host]
        after = [each[part] for each in guest]
        on_host = fmean(before) if part in host[0] else None
        yield PartTime(part, on_host, fmean(after), estimate_added(before, after))


def _cost(pairs: Sequence[tuple[float, float]]) -> Estimate:
    """How much larger the latency is in the traced slices."""
    return estimate_overhead(
        [untraced for untraced, _ in pairs], [traced for _, traced in pairs], higher_is_better=False
    )


def _sums(deviation: float | None) -> Iterator[str]:
    if deviation is None:
        yield "the guest adds no latency here, so there is nothing to break down"
    elif abs(deviation) > ADDS_UP:
        yield (
            f"the parts add up to {1 + deviation:.0%} of the measured added latency, beyond {ADDS_UP:.0%}: tracing is "
            "too expensive here, or the latency changed between the slices; measure again when the host is quiet"
        )


def _costs(guest: Estimate, below: Estimate, host: Estimate) -> Iterator[str]:
    costs = (
        ("the guest adds {} to its latency", guest, "its parts are that much too large together"),
        (
            "the host adds {} to the latency of the guest",
            below,
            "the parts below virtio and VM exits are that much too large together, and that one too small",
        ),
        ("the host adds {} to the latency on the host", host, "its parts are that much too large together"),
    )
    for what, cost, so in costs:
        if cost.point > MOST_COST:
            proven = " (not beyond chance)" if cost.low is not None and cost.low <= 0 else ""
            yield f"tracing {what.format(f'{cost.point:.1%}')}{proven}, so {so}"


def _missed(followed: float, kicked: float, interrupted: float) -> Iterator[str]:
    if followed < _MOST:
        yield f"the traces show {followed:.0%} of the I/Os that fio counted"
    if kicked < _MOST:
        yield (
            f"the guest exited to KVM for {kicked:.0%} of its I/Os; QEMU found the others by polling, and the time "
            "until it submitted those is in virtio and VM exits"
        )
    if interrupted < _MOST:
        yield (
            f"the host's trace shows the interrupt of {interrupted:.0%} of the I/Os; the time in which QEMU completed "
            "the others is in virtio and VM exits"
        )
