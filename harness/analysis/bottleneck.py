"""What keeps an array from the throughput that its level can give, from what was counted meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import fmean

ENOUGH = 0.9
"""The share of what is possible from which on nothing is said to be lacking."""
SATURATED = 0.95
"""The share of time above which CPUs, or a member, are busy all the time."""
UNEVEN = 1.25
"""How many times the mean of all members one of them moves where the load is not spread evenly."""
EXPLAINS = 0.75
"""The share of what a limit leaves that an array has to reach, for this limit to be the one that counts."""


@dataclass(frozen=True, slots=True)
class Member:
    """One disk of the array during the job. `moved` in bytes per second, both directions; None is not counted."""

    name: str
    moved: float
    busy: float | None = None
    """Share of the time with at least one I/O in flight. A disk that serves many at once can be busy and have room."""
    in_flight: float | None = None
    """I/Os in flight on average."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of an array's job. In flight is IOPS x mean latency (Little 1961); None is not known."""

    ideal: float
    """How many times the single disk's throughput the level can give."""
    of_ideal: float
    """The share of that which was measured."""
    in_flight: float | None
    """I/Os in flight at the array."""
    single_in_flight: float | None
    """I/Os in flight at the single disk in the same job."""
    single: Sequence[tuple[float, float]] = ()
    """The single disk at each depth of the run: I/Os in flight and throughput in any one unit, this job's included."""
    cpu_busy: float | None = None
    """Share of the host's CPU time that was busy."""
    members: Sequence[Member] = ()

    @property
    def offered(self) -> float | None:
        """I/Os in flight for each member, were all of the array's with its members."""
        # One I/O of the array keeps disks / ideal of them busy, a mirrored write two.
        return None if self.in_flight is None else self.in_flight / self.ideal

    @property
    def allowed(self) -> float | None:
        """The share of its throughput in this job that the single disk gives with as few I/Os as a member has."""
        if self.offered is None or self.single_in_flight is None:
            return None
        now = _throughput_at(self.single_in_flight, self.single)
        then = _throughput_at(self.offered, self.single)
        return None if now is None or then is None else min(1.0, then / now)


class Bottleneck(StrEnum):
    """What limits an array."""

    NONE = "none"
    CPU = "CPU"
    MEMBER = "one member"
    QUEUE = "queue not deep enough"
    PATH = "path"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class BottleneckFinding:
    """The bottleneck, and the figures that say so."""

    bottleneck: Bottleneck
    words: str


def find_bottleneck(evidence: Evidence) -> BottleneckFinding:
    """What limits the array: the first that the evidence shows, from what would hide the others to what is left.

    That the level's ideal is reached; that the host's CPUs have no time; that one member works more than the others;
    that members get too few I/Os at once; that they lack no I/Os and the CPUs have time, so that what is between, or
    what they share, holds them back. Where the evidence is missing, or shows nothing, it is not known.
    """
    looks = (
        (Bottleneck.NONE, _as_ideal),
        (Bottleneck.CPU, _cpu),
        (Bottleneck.MEMBER, _one_member),
        (Bottleneck.QUEUE, _queue),
        (Bottleneck.PATH, _path),
    )
    for bottleneck, look in looks:
        words = look(evidence)
        if words:
            return BottleneckFinding(bottleneck, words)
    return BottleneckFinding(Bottleneck.UNKNOWN, "nothing stands out in what was counted")


def _as_ideal(evidence: Evidence) -> str:
    if evidence.of_ideal < ENOUGH:
        return ""
    return f"it gives {evidence.of_ideal:.0%} of what its level can"


def _cpu(evidence: Evidence) -> str:
    if evidence.cpu_busy is None or evidence.cpu_busy <= SATURATED:
        return ""
    return f"the host's CPUs were {evidence.cpu_busy:.0%} busy"


def _one_member(evidence: Evidence) -> str:
    if len(evidence.members) < 2:
        return ""
    fullest = max(evidence.members, key=lambda member: member.moved)
    mean = fmean(member.moved for member in evidence.members)
    if fullest.moved > UNEVEN * mean:
        return f"{fullest.name} moved {fullest.moved / mean:.2f} times as much as the members on average"
    busy = sorted((member.busy, member.name) for member in evidence.members if member.busy is not None)
    if len(busy) < len(evidence.members):
        return ""
    most, name = busy[-1]
    others = fmean(share for share, _ in busy[:-1])
    if most > SATURATED and others < EXPLAINS * most:
        return f"{name} was busy {most:.0%} of the time, the others {others:.0%}"
    return ""


def _queue(evidence: Evidence) -> str:
    offered, allowed = evidence.offered, evidence.allowed
    if offered is None:
        return ""
    if offered < 1:
        return f"with {evidence.in_flight:.3g} I/Os in flight a member has {offered:.2g}: it is idle part of the time"
    if allowed is None or allowed >= ENOUGH or evidence.of_ideal < EXPLAINS * allowed:
        return ""
    return (
        f"a member has {offered:.3g} I/Os in flight, the single disk had {evidence.single_in_flight:.3g}; "
        f"with as few it gives {allowed:.0%} of its throughput"
    )


def _path(evidence: Evidence) -> str:
    """Members that lack nothing and give less than alone: what is between them and the array's user holds them back."""
    if evidence.cpu_busy is None or not evidence.members or evidence.offered is None:
        return ""
    cpu = f"the CPUs were {evidence.cpu_busy:.0%} busy"
    there = [member.in_flight for member in evidence.members if member.in_flight is not None]
    wanted = evidence.offered * len(evidence.members)
    if len(there) == len(evidence.members) and math.fsum(there) < wanted / 2:
        return (
            f"of {wanted:.3g} I/Os in flight {math.fsum(there):.3g} were with the members, others waited above; {cpu}"
        )
    busy = [member.busy for member in evidence.members if member.busy is not None]
    if len(busy) == len(evidence.members) and fmean(busy) < ENOUGH and evidence.offered >= 2:
        return f"members were busy {fmean(busy):.0%} of the time, with {evidence.offered:.3g} I/Os for each; {cpu}"
    if evidence.allowed is not None and evidence.of_ideal < EXPLAINS * evidence.allowed:
        return (
            f"each member has I/Os enough for {evidence.allowed:.0%} of what it gives alone, and gives "
            f"{evidence.of_ideal:.0%} of it; {cpu}"
        )
    return ""


def _throughput_at(in_flight: float, curve: Sequence[tuple[float, float]]) -> float | None:
    """Interpolated between the depths measured, both logarithmic; beyond the deepest it grows no more.

    Below the shallowest it is proportional where that is one I/O at a time, since a disk that waits for requests serves
    each alike; else it is not known.
    """
    points = sorted(curve)
    if not points:
        return None
    first, last = points[0], points[-1]
    if in_flight >= last[0]:
        return last[1]
    if in_flight < first[0]:
        return first[1] * in_flight / first[0] if first[0] <= 1.5 else None
    for (left, low), (right, high) in pairwise(points):
        if left <= in_flight <= right:
            along = math.log(in_flight / left) / math.log(right / left) if right > left else 0.0
            return math.exp(math.log(low) + along * (math.log(high) - math.log(low)))
    return None
