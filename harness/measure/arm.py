"""Measures one arm in one round: runs its jobs with fio, stores fio's output before parsing, and reads the counters."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from harness.errors import MeasurementError
from harness.lab.counters import cpu_time
from harness.lab.cycles import CycleCount, Cycles
from harness.lab.transport.base import Completed
from harness.measure.fio import ARGV_WITH_CPU, JobResult, job_file, parse
from harness.measure.session import Session
from harness.model.counters import Counters, FioCounts
from harness.model.job import Job
from harness.model.mode import Arm
from harness.results import Measurement, RunStore
from harness.scenario.order import fio_processes, job_order
from harness.scenario.plan import Group
from harness.untrusted import reading

START_SECONDS = 20.0
JOB_SECONDS = 10.0
"""Additional time for fio to open files, to end its threads and to print, on a slow machine."""


def measure_arm(
    session: Session, store: RunStore, group: Group, arm: Arm, *, seed: int, number: int, again: int = 1
) -> list[Measurement]:
    """Run the jobs of `arm` in round `number` and append each to the journal. Raises MeasurementError or HostError.

    `again` is 2 for the second run of the arm in the same round.

    A fio process has at most one job that reads and one job that writes. So each byte that the host and QEMU count
    belongs to one job.
    """
    jobs = [job for job in job_order(group, seed, number) if job in group.jobs_of(arm)]
    measurements: list[Measurement] = []
    with session.holding(arm):
        counted = session.counted(arm)
        for process in fio_processes(jobs, arm):
            before = counted
            done = _run(session, store, group, arm, process, seed=seed, number=number)
            counted = session.counted(arm, written=any(job.writes for job in process))
            measurements += _recorded(store, done, counted.since(before), group, arm, number=number, repeat=again)
        session.settle(arm)
    return measurements


@dataclass(frozen=True, slots=True)
class _FioProcess:
    """One completed fio process: its jobs and results, the file with its output, and its times."""

    jobs: Sequence[Job]
    results: Sequence[JobResult]
    raw: str
    started: float
    wall: float
    cpu_busy: float | None
    cycles: Cycles


def _run(
    session: Session, store: RunStore, group: Group, arm: Arm, jobs: Sequence[Job], *, seed: int, number: int
) -> _FioProcess:
    runner = session.runner(arm)
    text = job_file(session.target(arm), jobs, _fio_seed(group, seed, number))
    with _counting_cycles(session, jobs) as counted:
        started = time.time()
        clock = time.monotonic()
        done = session.run(arm, ARGV_WITH_CPU, stdin=text, deadline=_deadline(jobs))
        wall = time.monotonic() - clock
    raw = store.save_raw(
        f"{group.id}-round{number}-{arm.id}.json", done.stdout, command=f"{done.command} <<'JOBS'\n{text}JOBS"
    )
    where = f"{runner.name}, {group.disk}, {arm.id}, round {number}"
    if done.status != 0:
        raise MeasurementError(
            f"{where}: fio ended with status {done.status}: {(done.stderr or done.stdout).strip()[-400:]}",
            hint=f"its output is in {store.path / raw}",
        )
    return _FioProcess(
        jobs, parse(done.stdout, jobs, where), raw, started, wall, _cpu_busy(done, where), counted.cycles
    )


def _counting_cycles(session: Session, jobs: Sequence[Job]) -> AbstractContextManager[CycleCount]:
    """Counts cycles if the process has one job. Cycles of two jobs cannot be split."""
    return session.counting_cycles(_deadline(jobs)) if len(jobs) == 1 else nullcontext(CycleCount())


def _recorded(
    store: RunStore, ran: _FioProcess, counted: Counters, group: Group, arm: Arm, *, number: int, repeat: int
) -> list[Measurement]:
    """Appends the measurements of one fio process to the journal, and returns them."""
    measurements = [
        Measurement(
            group=group.id,
            round=number,
            arm=arm.id,
            repeat=repeat,
            job=result.job,
            started=ran.started,
            seconds=result.seconds,
            wall=ran.wall * job.wall / sum(each.wall for each in ran.jobs),
            metrics=dict(result.metrics),
            io_bytes=result.io_bytes,
            raw=ran.raw,
            counters=_counters(job, result, ran, counted),
            histogram=dict(result.histogram),
            notes=(ran.cycles.note,) if ran.cycles.note else (),
        )
        for job, result in zip(ran.jobs, ran.results, strict=True)
    ]
    for measurement in measurements:
        store.append(measurement)
    return measurements


def _counters(job: Job, result: JobResult, ran: _FioProcess, counted: Counters) -> Counters:
    """The counters of one job of a process: bytes in its direction, and everything else if it was the only job.

    No counter splits CPU time by direction. So the CPU time of two jobs belongs to neither.
    """
    own = counted
    if len(ran.jobs) > 1:
        members = {name: member.of(job) for name, member in counted.members.items()}
        own = Counters(host_cpu_busy=counted.host_cpu_busy, members=members)
    moved = result.transferred.of(job)
    return replace(
        own,
        fio=FioCounts(
            read=moved.read,
            written=moved.written,
            ios=result.ios,
            user_s=result.user_seconds,
            system_s=result.system_seconds,
            switches=result.switches,
        ),
        disk=counted.disk.of(job) if counted.disk is not None else None,
        qemu=counted.qemu.of(job) if counted.qemu is not None else None,
        cpu_busy=ran.cpu_busy,
        cycles=ran.cycles.counts,
    )


def _cpu_busy(done: Completed, where: str) -> float | None:
    """How busy the CPUs of fio's machine (host or guest) were, 0 to 1."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("cpu ")]
    with reading(f"{where}: the CPU times in /proc/stat", MeasurementError):
        return cpu_time(lines[-1]).busy_since(cpu_time(lines[0])) if len(lines) > 1 else None


def _deadline(jobs: Sequence[Job]) -> float:
    return START_SECONDS + sum(job.wall * 1.5 + JOB_SECONDS for job in jobs)


def _fio_seed(group: Group, seed: int, number: int) -> int:
    return random.Random(f"fio {seed} {group.id} {number}").getrandbits(31)
