"""The path of one I/O through the layers: from traced events to the parts of its latency, and their record. Pure.

Host and guest have different clocks. So only durations are used, and each is measured by one clock: the duration of an
inner layer is subtracted from that of the layer around it. Sums of such differences need no common clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean

from harness.analysis import Estimate, estimate_added, estimate_overhead
from harness.model.mode import Arm, Cell, Place
from harness.model.values import Amount, ArmName, Counted, Figure, Name, RecordValue

ADDS_UP = 0.10
"""How far the sum of the parts may be from the measured added latency, as a share of it."""
MOST_COST = 0.02
"""The largest cost of tracing, as a share of the latency, that needs no remark."""
_MOST = 0.9
"""The share of I/Os that a trace must show, and with an exit and an interrupt each, so that no remark is needed."""
_RARE = 0.05
"""A notification or interrupt that precedes or follows a smaller share of the I/Os belongs to another device."""


class PathPoint(StrEnum):
    """Where an I/O passes. KICK and INTERRUPT are on the host only, and only for the I/Os of a guest."""

    KICK = "kick"
    """The guest's write to the notification register has made it exit to KVM."""
    QUEUED = "queued"
    """The I/O enters the block layer."""
    ISSUED = "issued"
    """The block layer gives the request to the driver of the disk."""
    COMPLETED = "completed"
    """The driver reports the request as complete."""
    INTERRUPT = "interrupt"
    """KVM sends the interrupt of the guest's disk."""


@dataclass(frozen=True, slots=True)
class Passed:
    """Something passed `point` at `moment`, in seconds. `key` distinguishes registers and interrupts of devices."""

    moment: float
    point: PathPoint
    key: str = ""


TracedIo = Mapping[PathPoint, Passed]
"""What one I/O passed. It may lack KICK and INTERRUPT."""


def follow_ios(passed: Iterable[Passed]) -> list[TracedIo]:
    """The I/Os among these events in the order of time. Only one I/O may be in flight at a time.

    A lower device queues an I/O again, and a large I/O may be several requests: the first moment of QUEUED and ISSUED
    counts, and the last one of COMPLETED. I/Os that lack one of these three are left out.
    """
    events = list(passed)
    rough = _split_events(events)
    own = {point: _find_usual_keys(rough, point) for point in (PathPoint.KICK, PathPoint.INTERRUPT)}
    ios = _split_events(event for event in events if event.point not in own or event.key in own[event.point])
    return [io for io in ios if PathPoint.COMPLETED in io]


def _split_events(events: Iterable[Passed]) -> list[dict[PathPoint, Passed]]:
    ios: list[dict[PathPoint, Passed]] = []
    io: dict[PathPoint, Passed] = {}
    kick: Passed | None = None
    for event in events:
        is_done = PathPoint.COMPLETED in io
        match event.point:
            case PathPoint.KICK:
                kick = event
            case PathPoint.QUEUED if is_done or not io:
                io = {event.point: event} | ({PathPoint.KICK: kick} if kick else {})
                ios.append(io)
                kick = None
            case PathPoint.ISSUED if io:
                io.setdefault(event.point, event)
            case PathPoint.COMPLETED if PathPoint.ISSUED in io and PathPoint.INTERRUPT not in io:
                io[event.point] = event
            case PathPoint.INTERRUPT if is_done and PathPoint.INTERRUPT not in io:
                io[event.point] = event
                kick = None
    return ios


def _find_usual_keys(ios: Sequence[TracedIo], point: PathPoint) -> set[str]:
    counted = Counter(io[point].key for io in ios if point in io)
    return {key for key, number in counted.items() if number >= _RARE * len(ios)}


@dataclass(frozen=True, slots=True)
class PathTimes:
    """Means over the I/Os of a slice, in seconds, as one machine's kernel shows them. `ios` is their number."""

    ios: int
    block: float
    """From the block layer's queue to the driver."""
    device: float
    """From the driver's request to its completion."""
    submit: float = 0.0
    """From the exit of the guest to the block layer; 0 for I/Os without such an exit."""
    finish: float = 0.0
    """From the completion of the request to the interrupt of the guest; 0 for I/Os without an interrupt."""
    kicked: float = 0.0
    """The share of the I/Os with an exit, 0 to 1."""
    interrupted: float = 0.0
    """The share of the I/Os with an interrupt, 0 to 1."""

    @property
    def inside(self) -> float:
        """From the block layer's queue to the completion."""
        return self.block + self.device

    @property
    def whole(self) -> float:
        """From the exit of the guest to its interrupt."""
        return self.submit + self.inside + self.finish


def average_times(ios: Sequence[TracedIo]) -> PathTimes | None:
    """The means over these I/Os; None without any."""
    if not ios:
        return None

    def mean(begin: PathPoint, end: PathPoint) -> float:
        return fmean(io[end].moment - io[begin].moment if begin in io and end in io else 0.0 for io in ios)

    return PathTimes(
        len(ios),
        block=mean(PathPoint.QUEUED, PathPoint.ISSUED),
        device=mean(PathPoint.ISSUED, PathPoint.COMPLETED),
        submit=mean(PathPoint.KICK, PathPoint.QUEUED),
        finish=mean(PathPoint.COMPLETED, PathPoint.INTERRUPT),
        kicked=fmean(PathPoint.KICK in io for io in ios),
        interrupted=fmean(PathPoint.INTERRUPT in io for io in ios),
    )


class PathPart(StrEnum):
    """The parts of the latency of one I/O, from the outside to the inside."""

    FIO = "fio and its system calls"
    GUEST_BLOCK = "guest block layer"
    VIRTIO = "virtio and VM exits"
    QEMU = "QEMU"
    HOST_BLOCK = "host block layer"
    DEVICE = "device"


def split_on_host(latency: float, host: PathTimes) -> dict[PathPart, float]:
    """The parts of the mean `latency` that fio measured on the host, in seconds. They add up to it."""
    return {PathPart.FIO: latency - host.inside, PathPart.HOST_BLOCK: host.block, PathPart.DEVICE: host.device}


def split_in_guest(latency: float, guest: PathTimes, host: PathTimes) -> dict[PathPart, float]:
    """The parts of the mean `latency` that fio measured in the guest, in seconds. They add up to it.

    `guest` is what the guest's kernel shows of these I/Os, and `host` what the host's kernel shows of them.
    """
    return {
        PathPart.FIO: latency - guest.inside,
        PathPart.GUEST_BLOCK: guest.block,
        PathPart.VIRTIO: guest.device - host.whole,
        PathPart.QEMU: host.submit + host.finish,
        PathPart.HOST_BLOCK: host.block,
        PathPart.DEVICE: host.device,
    }


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
class PartTime(RecordValue):
    """One part of the latency of an I/O."""

    part: PathPart
    """Its name."""
    host: Figure | None
    """The mean on the host in seconds; null if an I/O of the host has no such part."""
    guest: Figure
    """The mean in the guest in seconds."""
    added: Estimate
    """What the guest adds in this part, in seconds. These values add up to `sum` of the breakdown."""


@dataclass(frozen=True, slots=True)
class BreakdownRecord(RecordValue):
    """Where the microseconds of an I/O go in a guest, with one I/O in flight."""

    id: str
    """Scenario, mode and job, as in the id of a cell: `optane-passthrough-blk-randread-4k-qd1`."""
    scenario: Name
    """Name of the scenario."""
    host: Name
    """Name of the host in the lab file."""
    disk: Name
    """Name of the disk under test in the lab file."""
    mode: Name
    """Name of the attach mode."""
    job: Name
    """The job's id."""
    baseline: ArmName
    """The arm on the host that the guest is compared with: the twin of the mode, or `host` without one."""
    blocks: Counted
    """The number of blocks. Each has a slice of both arms without tracing, one of both while the host is traced, and
    one of the guest while the guest is traced."""
    skipped: str | None
    """Why there is no breakdown; null if there is one."""
    parts: tuple[PartTime, ...] = ()
    """The parts, from the outside to the inside; empty if it was skipped."""
    sum: Estimate | None = None
    """The sum of what the parts add, in seconds: from the traced slices."""
    measured: Estimate | None = None
    """The added latency in the slices between them in which nothing was traced, in seconds."""
    deviation: Figure | None = None
    """The sum against the measured added latency, as a share of it: 0.05 is 5 % more."""
    adds_up: bool | None = None
    """Whether the sum is within 10 % of the measured added latency."""
    guest_cost: Estimate | None = None
    """How much tracing in the guest adds to the latency there, as a share of it."""
    below_cost: Estimate | None = None
    """How much tracing on the host adds to the latency in the guest, as a share of it."""
    host_cost: Estimate | None = None
    """How much tracing on the host adds to the latency there, as a share of it."""
    followed: Amount | None = None
    """The share of fio's I/Os in the guest that the traces show."""
    kicked: Amount | None = None
    """The share of the I/Os of the guest for which it exited to KVM. The others were found by polling."""
    interrupted: Amount | None = None
    """The share of the I/Os of the guest whose interrupt the host's trace shows."""
    notes: tuple[str, ...] = ()
    """What a reader must know, one sentence each."""


def baseline_of(cell: Cell) -> Arm:
    """The arm on the host that the guest of the cell is compared with."""
    return cell.by_role.get(Place.TWIN, cell.by_role[Place.HOST])


def skip_breakdown(cell: Cell, host: str, why: str) -> BreakdownRecord:
    """The record if there is no breakdown of this cell, which has one I/O in flight, on the host of this name."""
    names = cell.id, cell.scenario, host, cell.disk, cell.mode.name, cell.job.id, baseline_of(cell).id
    return BreakdownRecord(*names, blocks=0, skipped=why)


def break_down(cell: Cell, host: str, blocks: Sequence[TracedBlock]) -> BreakdownRecord:
    """The record of at least one block of the cell, in the order of time."""
    total = estimate_added([block.host_traced for block in blocks], [block.guest_traced for block in blocks])
    measured = estimate_added([block.host_latency for block in blocks], [block.guest_latency for block in blocks])
    deviation = total.point / measured.point - 1 if measured.point > 0 else None
    guest_cost = _estimate_cost([(block.guest_latency, block.guest_traced) for block in blocks])
    below_cost = _estimate_cost([(block.guest_latency, block.below_traced) for block in blocks])
    host_cost = _estimate_cost([(block.host_latency, block.host_traced) for block in blocks])
    followed = fmean(block.followed for block in blocks)
    kicked = fmean(block.below.kicked for block in blocks)
    interrupted = fmean(block.below.interrupted for block in blocks)
    return replace(
        skip_breakdown(cell, host, ""),
        blocks=len(blocks),
        skipped=None,
        parts=tuple(_estimate_parts(blocks)),
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
            *_describe_sum(deviation),
            *_describe_costs(guest_cost, below_cost, host_cost),
            *_describe_missed(followed, kicked, interrupted),
        ),
    )


def _estimate_parts(blocks: Sequence[TracedBlock]) -> Iterator[PartTime]:
    host = [split_on_host(block.host_traced, block.host) for block in blocks]
    guest = [split_in_guest(block.guest_traced, block.guest, block.below) for block in blocks]
    for part in PathPart:
        before = [times.get(part, 0.0) for times in host]
        after = [times[part] for times in guest]
        on_host = fmean(before) if part in host[0] else None
        yield PartTime(part, on_host, fmean(after), estimate_added(before, after))


def _estimate_cost(pairs: Sequence[tuple[float, float]]) -> Estimate:
    """How much larger the latency is in the traced slices."""
    return estimate_overhead(
        [untraced for untraced, _ in pairs], [traced for _, traced in pairs], higher_is_better=False
    )


def _describe_sum(deviation: float | None) -> Iterator[str]:
    if deviation is None:
        yield "the guest adds no latency here, so there is nothing to break down"
    elif abs(deviation) > ADDS_UP:
        yield (
            f"the parts add up to {1 + deviation:.0%} of the measured added latency, beyond {ADDS_UP:.0%}: tracing is "
            "too expensive here, or the latency changed between the slices; measure again when the host is quiet"
        )


def _describe_costs(guest: Estimate, below: Estimate, host: Estimate) -> Iterator[str]:
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


def _describe_missed(followed: float, kicked: float, interrupted: float) -> Iterator[str]:
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
