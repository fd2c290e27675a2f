"""Follows I/Os through the layers by the moments at which they pass them, and splits a latency into parts.

Host and guest have different clocks. So only durations are used, and each is measured by one clock: the duration of an
inner layer is subtracted from that of the layer around it. Sums of such differences need no common clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

_RARE = 0.05
"""A notification or interrupt that precedes or follows a smaller share of the I/Os belongs to another device."""


class Point(StrEnum):
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
    point: Point
    key: str = ""


@dataclass(frozen=True, slots=True)
class Io:
    """The moments of one I/O, in seconds. `kick` and `interrupt` are None if there were none."""

    queued: float
    issued: float
    completed: float
    kick: float | None = None
    interrupt: float | None = None


def follow(passed: Iterable[Passed]) -> list[Io]:
    """The I/Os among these events in the order of time. Only one I/O may be in flight at a time.

    A lower device queues an I/O again, and a large I/O may be several requests: the first moment of QUEUED and ISSUED
    counts, and the last one of COMPLETED. I/Os that lack one of these three are left out.
    """
    events = list(passed)
    rough = _chains(events)
    own = {
        Point.KICK: _usual([chain.kick for chain in rough]),
        Point.INTERRUPT: _usual([chain.interrupt for chain in rough]),
    }
    chains = _chains([event for event in events if event.point not in own or event.key in own[event.point]])
    return [chain.io for chain in chains if chain.io is not None]


@dataclass(slots=True)
class _Chain:
    queued: Passed
    kick: Passed | None
    issued: Passed | None = None
    completed: Passed | None = None
    interrupt: Passed | None = None

    @property
    def io(self) -> Io | None:
        if self.issued is None or self.completed is None:
            return None
        return Io(
            self.queued.moment,
            self.issued.moment,
            self.completed.moment,
            self.kick.moment if self.kick else None,
            self.interrupt.moment if self.interrupt else None,
        )


def _chains(events: Sequence[Passed]) -> list[_Chain]:
    chains: list[_Chain] = []
    chain: _Chain | None = None
    kick: Passed | None = None
    for event in events:
        match event.point:
            case Point.KICK:
                kick = event
            case Point.QUEUED:
                if chain is None or chain.completed is not None:
                    chain = _Chain(event, kick)
                    chains.append(chain)
                    kick = None
            case Point.ISSUED:
                if chain is not None and chain.issued is None:
                    chain.issued = event
            case Point.COMPLETED:
                if chain is not None and chain.issued is not None and chain.interrupt is None:
                    chain.completed = event
            case Point.INTERRUPT:
                if chain is not None and chain.completed is not None and chain.interrupt is None:
                    chain.interrupt = event
                    kick = None
    return chains


def _usual(events: Sequence[Passed | None]) -> set[str]:
    counted = Counter(event.key for event in events if event is not None)
    return {key for key, number in counted.items() if number >= _RARE * len(events)}


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


def path_times(ios: Sequence[Io]) -> PathTimes | None:
    """The means over these I/Os; None without any."""
    if not ios:
        return None

    def mean(duration: Callable[[Io], float]) -> float:
        return fmean(duration(io) for io in ios)

    return PathTimes(
        len(ios),
        block=mean(lambda io: io.issued - io.queued),
        device=mean(lambda io: io.completed - io.issued),
        submit=mean(lambda io: io.queued - io.kick if io.kick is not None else 0.0),
        finish=mean(lambda io: io.interrupt - io.completed if io.interrupt is not None else 0.0),
        kicked=mean(lambda io: float(io.kick is not None)),
        interrupted=mean(lambda io: float(io.interrupt is not None)),
    )


class Part(StrEnum):
    """The parts of the latency of one I/O, from the outside to the inside."""

    FIO = "fio and its system calls"
    GUEST_BLOCK = "guest block layer"
    VIRTIO = "virtio and VM exits"
    QEMU = "QEMU"
    HOST_BLOCK = "host block layer"
    DEVICE = "device"


def parts_on_host(latency: float, host: PathTimes) -> dict[Part, float]:
    """The parts of the mean `latency` that fio measured on the host, in seconds. They add up to it."""
    return {Part.FIO: latency - host.inside, Part.HOST_BLOCK: host.block, Part.DEVICE: host.device}


def parts_in_guest(latency: float, guest: PathTimes, host: PathTimes) -> dict[Part, float]:
    """The parts of the mean `latency` that fio measured in the guest, in seconds. They add up to it.

    `guest` is what the guest's kernel shows of these I/Os, and `host` what the host's kernel shows of them.
    """
    return {
        Part.FIO: latency - guest.inside,
        Part.GUEST_BLOCK: guest.block,
        Part.VIRTIO: guest.device - host.whole,
        Part.QEMU: host.submit + host.finish,
        Part.HOST_BLOCK: host.block,
        Part.DEVICE: host.device,
    }
