"""What disks of virtual machines are typically used for, and by which jobs and metric each use is judged. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.model.job import Job
from harness.model.simplicity import UserNeed

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


def _random(job: Job) -> bool:
    return job.is_random and job.is_saturating and not job.durable


def _mixed(job: Job) -> bool:
    return _random(job) and job.reads and job.writes


def _moderate(job: Job) -> bool:
    return _random(job) and job.bs <= _LARGE and 2 <= job.depth <= 16


def _single_write(job: Job) -> bool:
    return _random(job) and job.writes and job.bs <= _SMALL and job.depth == 1


def _sequential(job: Job) -> bool:
    return not job.is_random and job.is_saturating and job.bs >= _LARGE


def _single(job: Job) -> bool:
    return job.is_random and job.depth == 1 and not job.flushes and job.bursts is None


_LATENCY = ("lat_mean", "clat_mean")

USES = (
    Use(
        "general",
        "general VM storage",
        (
            Judge("mixed random reads and writes", ("iops",), _mixed),
            Judge("random I/O at 2 to 16 in flight, without a mix of reads and writes", ("iops",), _moderate),
            Judge("random I/O of every depth, without a mix of reads and writes", ("iops",), _random),
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
            Judge("small writes one at a time; no flush was measured", _LATENCY, _single_write),
        ),
        "wal",
    ),
    Use(
        "sequential",
        "sequential I/O, backup",
        (Judge("sequential I/O of large blocks", ("bw",), _sequential),),
        "seqread-1m",
    ),
    Use(
        "latency",
        "low latency",
        (
            Judge("random I/O one at a time", _LATENCY, _single),
            Judge("I/O at a fixed rate", _LATENCY, lambda job: job.rate is not None and not job.flushes),
        ),
        "qd1",
    ),
)
"""The uses, in the order of the reports. Each is declared here only."""
