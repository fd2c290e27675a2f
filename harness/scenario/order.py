"""In which order a round arm_runs arms and jobs, and which jobs share a fio process. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import zip_longest
from typing import TypeVar

from harness.model.job import Job
from harness.model.layout import Md
from harness.model.mode import Arm
from harness.scenario.plan import Group

ALONE_SECONDS = 10.0
"""From this time on a job has a fio process of its own: starting one is little beside it, and gives it its CPU time."""

T = TypeVar("T")


def round_order(group: Group, seed: int, round_number: int) -> list[Arm]:
    """The arms in the random order of this round: the same whenever seed, group and round are.

    In a bracketed group the host is first and last, and the others are in random order between.
    """
    seed_text = f"arms {seed} {group.id} {round_number}"
    if len(group.arm_runs) == len(group.arms):
        return _shuffled(group.arms, seed_text)
    first, *others, last = group.arm_runs
    return [first, *_shuffled(others, seed_text), last]


def job_order(group: Group, seed: int, round_number: int) -> list[Job]:
    """The jobs in the random order of this round, which all its arms share."""
    return _shuffled(group.jobs, f"jobs {seed} {group.id} {round_number}")


def fio_processes(jobs: Sequence[Job], arm: Arm) -> list[tuple[Job, ...]]:
    """The jobs of an arm, in their order, as the fewest fio processes whose counts can be told apart from outside.

    A block device counts reads and writes apart, but not whose they are: a process has at most one job that reads and
    one that writes, and a job that does both has one to itself. So has one whose CPU time is worth telling, which no
    counter splits: at a fixed rate, or `ALONE_SECONDS` long. So have all of an `arm` on an array, which may read in
    order to write. The n-th reader goes with the n-th writer, in the order they have in `jobs`, and before it: a disk
    that was written to is probed by udev as it is closed. The processes are in the order of their first jobs.
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
