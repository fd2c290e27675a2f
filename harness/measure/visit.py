"""One arm in one round: fio runs the arm's jobs, its output is kept before it is read, and others' counts beside it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from harness.errors import MeasurementError
from harness.lab.counters import cpu_time
from harness.lab.cycles import CycleCount, Cycles
from harness.lab.transport.base import Completed
from harness.measure.fio import ARGV_WITH_CPU, JobResult, job_file, parse
from harness.measure.session import CountedBetween, Session
from harness.model.job import Job
from harness.model.mode import Arm
from harness.results import Measurement, RunStore
from harness.scenario.order import batches, job_order
from harness.scenario.plan import Group
from harness.untrusted import reading

START_SECONDS = 20.0
JOB_SECONDS = 10.0
"""What fio may take beyond a job's time: opening, reaping, printing on a slow machine."""


def visit(
    session: Session, store: RunStore, group: Group, arm: Arm, *, seed: int, number: int, again: int = 1
) -> list[Measurement]:
    """Run the jobs of `arm` in round `number` and append each to the journal. Raises MeasurementError or HostError.

    `again` is 2 for the second time in the same round.

    One fio process runs several jobs, at most one that reads and one that writes: so each byte that the host and
    QEMU count meanwhile belongs to one job.
    """
    jobs = [job for job in job_order(group, seed, number) if job in group.jobs_of(arm)]
    measurements: list[Measurement] = []
    with session.holding(arm):
        counted = session.counted(arm)
        for batch in batches(jobs, arm):
            before = counted
            done = _run(session, store, group, arm, batch, seed=seed, number=number)
            counted = session.counted(arm, written=any(job.writes for job in batch))
            measurements += _kept(store, done, counted.since(before), group, arm, number=number, visit=again)
        session.settle(arm)
    return measurements


@dataclass(frozen=True, slots=True)
class _Ran:
    """One fio process: its jobs with their results, where its output is, and when it ran."""

    jobs: Sequence[Job]
    results: Sequence[JobResult]
    raw: str
    started: float
    wall: float
    cpu_busy: float | None
    cycles: Cycles


def _run(
    session: Session, store: RunStore, group: Group, arm: Arm, jobs: Sequence[Job], *, seed: int, number: int
) -> _Ran:
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
    return _Ran(jobs, parse(done.stdout, jobs, where), raw, started, wall, _cpu_busy(done, where), counted.cycles)


def _counting_cycles(session: Session, jobs: Sequence[Job]) -> AbstractContextManager[CycleCount]:
    """Where fio's process has one job: what two of them used together is neither's."""
    return session.counting_cycles(_deadline(jobs)) if len(jobs) == 1 else nullcontext(CycleCount())


def _kept(
    store: RunStore, ran: _Ran, counted: CountedBetween, group: Group, arm: Arm, *, number: int, visit: int
) -> list[Measurement]:
    """The measurements of one fio process, each of them in the journal."""
    measurements = [
        Measurement(
            group=group.id,
            round=number,
            arm=arm.id,
            visit=visit,
            job=result.job,
            started=ran.started,
            seconds=result.seconds,
            wall=ran.wall * job.wall / sum(each.wall for each in ran.jobs),
            metrics=dict(result.metrics),
            io_bytes=result.io_bytes,
            raw=ran.raw,
            counters={
                **_counters(job, result, counted, ran.cpu_busy),
                **_named(job, counted, alone=len(ran.jobs) == 1),
                **ran.cycles.counts,
            },
            histogram=dict(result.histogram),
            notes=(ran.cycles.note,) if ran.cycles.note else (),
        )
        for job, result in zip(ran.jobs, ran.results, strict=True)
    ]
    for measurement in measurements:
        store.append(measurement)
    return measurements


def _counters(job: Job, result: JobResult, counted: CountedBetween, cpu_busy: float | None) -> dict[str, float]:
    """How busy the CPUs were, fio's own counts, and bytes in the job's direction by fio, the host's disk and QEMU."""
    counters: dict[str, float] = {
        "host_cpu_busy": counted.host_cpu_busy,
        "ios": result.ios,
        "fio_user_s": result.user_seconds,
        "fio_system_s": result.system_seconds,
        "fio_switches": result.switches,
    }
    if cpu_busy is not None:
        counters["cpu_busy"] = cpu_busy
    for name, transferred in (("fio", result.transferred), ("disk", counted.disk), ("qemu", counted.qemu)):
        if transferred is not None and job.reads:
            counters[f"{name}_read"] = transferred.read
        if transferred is not None and job.writes:
            counters[f"{name}_written"] = transferred.written
    return counters


def _named(job: Job, counted: CountedBetween, *, alone: bool) -> dict[str, float]:
    """Of the further counts the job's own: all where its fio process had no other, else members' by direction.

    Nobody counts CPU time by direction: what two jobs used together is neither's.
    """
    if alone:
        return dict(counted.named)
    mine = tuple(direction for direction, moves in (("_read", job.reads), ("_written", job.writes)) if moves)
    return {name: count for name, count in counted.named.items() if name.startswith("member:") and name.endswith(mine)}


def _cpu_busy(done: Completed, where: str) -> float | None:
    """The share of the time that the CPUs of fio's machine were busy: host or guest."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("cpu ")]
    with reading(f"{where}: the CPU times in /proc/stat", MeasurementError):
        return cpu_time(lines[-1]).busy_since(cpu_time(lines[0])) if len(lines) > 1 else None


def _deadline(jobs: Sequence[Job]) -> float:
    return START_SECONDS + sum(job.wall * 1.5 + JOB_SECONDS for job in jobs)


def _fio_seed(group: Group, seed: int, number: int) -> int:
    return random.Random(f"fio {seed} {group.id} {number}").getrandbits(31)
