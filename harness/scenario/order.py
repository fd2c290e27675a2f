"""The order of arms and jobs in a round, and which jobs share a fio process. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import zip_longest
from typing import TypeVar

from harness.model.base import Md
from harness.model.job import Job
from harness.model.mode import Arm
from harness.scenario.plan import Group

ALONE_SECONDS = 10.0
"""A job of at least this length has its own fio process. The start then costs little, and the CPU time is known."""

T = TypeVar("T")


def round_order(group: Group, seed: int, round_number: int) -> list[Arm]:
    """The arms in the random order of this round. The order depends only on seed, group and round.

    In a bracketed group the host is first and last. The other arms are in random order between.
    """
    seed_text = f"arms {seed} {group.id} {round_number}"
    if len(group.arm_runs) == len(group.arms):
        return _shuffled(group.arms, seed_text)
    first, *others, last = group.arm_runs
    return [first, *_shuffled(others, seed_text), last]


def job_order(group: Group, seed: int, round_number: int) -> list[Job]:
    """The jobs in the random order of this round. All arms of the round use this order."""
    return _shuffled(group.jobs, f"jobs {seed} {group.id} {round_number}")


def fio_processes(jobs: Sequence[Job], arm: Arm) -> list[tuple[Job, ...]]:
    """The jobs of an arm, in their order, in as few fio processes as possible.

    Counters outside of fio must still show what each job did. A block device counts reads and writes, but not by job.
    So a process has at most one job that reads and one job that writes.

    These jobs have their own process:
    - a job that reads and writes;
    - a job whose CPU time is reported, because no counter splits CPU time: one with a fixed rate, or one of at least
      `ALONE_SECONDS`;
    - every job of an `arm` on an array, which may read in order to write.

    The n-th reader in `jobs` shares a process with the n-th writer and runs before it, because udev probes a disk when
    a writer closes it. The processes are in the order of their first jobs.
    """
    position = {job: index for index, job in enumerate(jobs)}
    on_array = arm.mode is not None and isinstance(arm.mode.layout.base, Md)
    alone = [job for job in jobs if on_array or _alone(job)]
    readers = [job for job in jobs if job.reads and job not in alone]
    writers = [job for job in jobs if job.writes and job not in alone]
    processes = [(job,) for job in alone] + [
        tuple(job for job in pair if job is not None) for pair in zip_longest(readers, writers)
    ]
    return sorted(processes, key=lambda process: min(position[job] for job in process))


def _alone(job: Job) -> bool:
    return (job.reads and job.writes) or job.rate is not None or job.wall >= ALONE_SECONDS


def _shuffled(items: Sequence[T], seed: str) -> list[T]:
    return random.Random(seed).sample(items, len(items))
