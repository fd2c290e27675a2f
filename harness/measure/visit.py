"""One arm in one round: fio runs the arm's jobs, its output is kept before it is read, and others' counts beside it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from harness.errors import MeasurementError
from harness.lab.counters import cpu_time
from harness.lab.transport.base import Completed
from harness.measure.fio import ARGV_WITH_CPU, JobResult, job_file, parse
from harness.measure.session import CountedBetween, Session
from harness.results import Measurement, RunStore
from harness.scenario.model import Arm, Job
from harness.scenario.plan import Group, batches, job_order

START_SECONDS = 30.0
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
    measurements = []
    for batch in batches(jobs):
        measurements += _run(session, store, group, arm, batch, seed=seed, number=number, again=again)
    session.settle(arm)
    return measurements


def _run(
    session: Session,
    store: RunStore,
    group: Group,
    arm: Arm,
    jobs: Sequence[Job],
    *,
    seed: int,
    number: int,
    again: int,
) -> list[Measurement]:
    runner = session.runner(arm)
    text = job_file(session.target(arm), jobs, _fio_seed(group, seed, number))
    before = session.counted(arm)
    started = time.time()
    clock = time.monotonic()
    done = runner.run(list(ARGV_WITH_CPU), stdin=text, deadline=_deadline(jobs), check=False)
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
    counted = session.counted(arm).since(before)
    measurements = [
        Measurement(
            group=group.id,
            round=number,
            arm=arm.id,
            visit=again,
            job=result.job,
            started=started,
            seconds=result.seconds,
            wall=wall * job.wall / sum(each.wall for each in jobs),
            metrics=dict(result.metrics),
            io_bytes=result.io_bytes,
            raw=raw,
            counters=_counters(job, result, counted) | _cpu_busy(done),
            histogram=dict(result.histogram),
        )
        for job, result in zip(jobs, parse(done.stdout, jobs, where), strict=True)
    ]
    for measurement in measurements:
        store.append(measurement)
    return measurements


def _counters(job: Job, result: JobResult, counted: CountedBetween) -> dict[str, float]:
    """What fio, the host's disk and QEMU counted in the job's own direction, in bytes."""
    counters: dict[str, float] = {"host_cpu_busy": counted.host_cpu_busy}
    sources = {"fio": result.transferred, "disk": counted.disk, "qemu": counted.qemu}
    for name, transferred in sources.items():
        if transferred is not None and job.reads:
            counters[f"{name}_read"] = transferred.read
        if transferred is not None and job.writes:
            counters[f"{name}_written"] = transferred.written
    return counters


def _cpu_busy(done: Completed) -> dict[str, float]:
    """The share of the time that the CPUs of fio's machine were busy: host or guest."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("cpu ")]
    return {"cpu_busy": cpu_time(lines[-1]).busy_since(cpu_time(lines[0]))} if len(lines) > 1 else {}


def _deadline(jobs: Sequence[Job]) -> float:
    return START_SECONDS + sum(job.wall * 1.5 + JOB_SECONDS for job in jobs)


def _fio_seed(group: Group, seed: int, number: int) -> int:
    return random.Random(f"fio {seed} {group.id} {number}").getrandbits(31)
