"""Which attach modes are simple, safe and useful, to choose among modes of equal speed. Declared here only. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.model.attach import Attach, Vfio
from harness.model.base import Md
from harness.model.job import Job
from harness.model.mode import ModeDetail
from harness.model.values import names_of

_DEFAULT = Attach()


class UserNeed(StrEnum):
    """What the users of a disk may need besides speed."""

    HOST_KEEPS_DISK = "the host keeps the disk, so the guest can be moved and its disk be copied"
    SHARED = "it leaves the rest of the disk to other guests"
    SNAPSHOTS = "it has efficient snapshots"

    def is_met_by(self, mode: ModeDetail) -> bool:
        if self is UserNeed.HOST_KEEPS_DISK:
            return not isinstance(mode.attach, Vfio)
        if self is UserNeed.SHARED:
            return not mode.layout.is_base and not isinstance(mode.attach, Vfio)
        return mode.layout.has_snapshots


_HOST_MEMORY = "It takes memory of the host, and live migration needs QEMU 4.0 or later, which empties that cache"
_CAUTIONS = {
    "writeback": "cache writeback honours the guest's flushes. A power failure loses only what the guest has not "
    f"flushed, as on a disk with a volatile write cache. {_HOST_MEMORY}",
    "writethrough": f"cache writethrough loses no completed write, but each one waits for the disk. {_HOST_MEMORY}",
}


def unfit(mode: ModeDetail) -> str | None:
    """Why a mode is never recommended, however fast it is; None if it may be."""
    attach, base = mode.attach, mode.layout.base
    if isinstance(base, Md) and not base.is_optimal:
        return "its array lacks a member"
    if not isinstance(attach, Attach):
        return None
    if attach.cache == "unsafe":
        return "cache unsafe ignores the guest's flushes: a power failure damages its file systems"
    if attach.read_only:
        return "the guest cannot write"
    return None


def find_caution(mode: ModeDetail) -> str | None:
    """What to know about a mode before using it, in sentences without the last point; None if there is nothing."""
    return _CAUTIONS.get(mode.attach.cache) if isinstance(mode.attach, Attach) else None


def rank_by_needs(mode: ModeDetail, needs: Sequence[UserNeed]) -> tuple[int, ...]:
    """Sorts modes of equal speed for a user with these needs, the most important first; then by `simplicity`."""
    return (*(int(not need.is_met_by(mode)) for need in needs), *rank_by_simplicity(mode))


def explain_preference(mode: ModeDetail, other: ModeDetail, needs: Sequence[UserNeed]) -> str:
    """Why a user with these needs takes a mode and not another one of equal speed; empty if there is no reason."""
    for need in needs:
        if need.is_met_by(mode) != need.is_met_by(other):
            return str(need) if need.is_met_by(mode) else ""
    return explain_simpler(mode, other)


def rank_by_simplicity(mode: ModeDetail) -> tuple[int, int, int]:
    """Sorts modes, the simplest first: VFIO last, then by layers, then by options that differ from the default."""
    return int(isinstance(mode.attach, Vfio)), mode.layout.effort, len(_list_departures(mode))


def explain_simpler(mode: ModeDetail, other: ModeDetail) -> str:
    """What makes a mode simpler than another, in words; empty if neither is simpler."""
    first, second = rank_by_simplicity(mode), rank_by_simplicity(other)
    if first >= second:
        return ""
    if first[0] < second[0]:
        return "the host keeps the disk, so the guest can be moved and its disk be copied"
    if first[1] < second[1]:
        return f"{mode.layout.words} has fewer layers to look after than {other.layout.words}"
    return f"it keeps the default of {', '.join(_list_departures(other)[:3])}"


def _list_departures(mode: ModeDetail) -> list[str]:
    """The options of the attachment that differ from the default."""
    attach = mode.attach
    if not isinstance(attach, Attach):
        return []
    return [name for name in names_of(attach) if getattr(attach, name) != getattr(_DEFAULT, name)]


KIB = 1024
_SMALL = 16 * KIB
"""Blocks of a database or a file system's metadata are at most this large."""
_LARGE = 64 * KIB
"""The smallest blocks of a backup."""


@dataclass(frozen=True, slots=True)
class Judge:
    """One way to judge a use: the jobs that represent it, and the metric by which modes are compared in them."""

    words: str
    """The jobs, for "judged by ..."."""
    metrics: tuple[str, ...]
    """The first of these that every mode has counts."""
    fits: Callable[[Job], bool]


@dataclass(frozen=True, slots=True)
class Use:
    """A typical use of a disk. `judges` begin with the best one: the first with measured jobs counts."""

    name: str
    title: str
    judges: tuple[Judge, ...]
    to_measure: str
    """A workload that represents it, for a scenario without one."""
    needs: tuple[UserNeed, ...] = (UserNeed.HOST_KEEPS_DISK, UserNeed.SHARED)
    """What decides between modes of equal speed, the most important first."""

    def judge_of(self, jobs: Sequence[Job]) -> tuple[Judge, tuple[Job, ...]] | None:
        """How to judge the use by these jobs, and which of them represent it; None if none does."""
        for judge in self.judges:
            if fitting := tuple(job for job in jobs if judge.fits(job)):
                return judge, fitting
        return None


def _is_random(job: Job) -> bool:
    return job.is_random and job.is_saturating and not job.durable


def _is_mixed(job: Job) -> bool:
    return _is_random(job) and job.reads and job.writes


def _is_moderate(job: Job) -> bool:
    return _is_random(job) and job.bs <= _LARGE and 2 <= job.depth <= 16


def _is_single_write(job: Job) -> bool:
    return _is_random(job) and job.writes and job.bs <= _SMALL and job.depth == 1


def _is_sequential(job: Job) -> bool:
    return not job.is_random and job.is_saturating and job.bs >= _LARGE


def _is_single(job: Job) -> bool:
    return job.is_random and job.depth == 1 and not job.flushes and job.bursts is None and not job.trims


_LATENCY = ("lat_mean", "clat_mean")

USES = (
    Use(
        "general",
        "general VM storage",
        (
            Judge("mixed random reads and writes", ("iops",), _is_mixed),
            Judge("random I/O at 2 to 16 in flight, without a mix of reads and writes", ("iops",), _is_moderate),
            Judge("random I/O of every depth, without a mix of reads and writes", ("iops",), _is_random),
        ),
        "iometer-fileserver",
        (UserNeed.HOST_KEEPS_DISK, UserNeed.SHARED, UserNeed.SNAPSHOTS),
    ),
    Use(
        "database",
        "database with fsync",
        (
            Judge("flushes after writes", ("sync_p99", "sync_mean"), lambda job: job.flushes),
            Judge("writes that are durable when they complete (O_DSYNC)", _LATENCY, lambda job: job.durable),
            Judge("small writes one at a time; no flush was measured", _LATENCY, _is_single_write),
        ),
        "wal",
    ),
    Use(
        "sequential",
        "sequential I/O, backup",
        (Judge("sequential I/O of large blocks", ("bw",), _is_sequential),),
        "seqread-1m",
    ),
    Use(
        "latency",
        "low latency",
        (
            Judge("random I/O one at a time", _LATENCY, _is_single),
            Judge("I/O at a fixed rate", _LATENCY, lambda job: job.rate is not None and not job.flushes),
        ),
        "qd1",
    ),
)
"""The uses, in the order of the reports. Each is declared here only."""
