"""One arm in one round: fio runs the arm's jobs in one process, and its output is kept before it is read."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from harness.errors import MeasurementError
from harness.measure.fio import ARGV, job_file, parse
from harness.measure.session import Session
from harness.results import Measurement, RunStore
from harness.scenario.model import Arm, Job
from harness.scenario.plan import Group, job_order

START_SECONDS = 30.0
JOB_SECONDS = 10.0
"""What fio may take beyond a job's time: opening, reaping, printing on a slow machine."""


def visit(session: Session, store: RunStore, group: Group, arm: Arm, *, seed: int, number: int) -> list[Measurement]:
    """Run the jobs of `arm` in round `number` and append each to the journal. Raises MeasurementError or HostError."""
    jobs = [job for job in job_order(group, seed, number) if job in group.jobs_of(arm)]
    runner = session.runner(arm)
    text = job_file(session.target(arm), jobs, _fio_seed(group, seed, number))
    started = time.time()
    clock = time.monotonic()
    done = runner.run(list(ARGV), stdin=text, deadline=_deadline(jobs), check=False)
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
    measurements = [
        Measurement(
            group=group.id,
            round=number,
            arm=arm.id,
            job=result.job,
            started=started,
            seconds=result.seconds,
            wall=wall * job.wall / sum(each.wall for each in jobs),
            metrics=dict(result.metrics),
            io_bytes=result.io_bytes,
            raw=raw,
        )
        for job, result in zip(jobs, parse(done.stdout, jobs, where), strict=True)
    ]
    for measurement in measurements:
        store.append(measurement)
    return measurements


def _deadline(jobs: Sequence[Job]) -> float:
    return START_SECONDS + sum(job.wall * 1.5 + JOB_SECONDS for job in jobs)


def _fio_seed(group: Group, seed: int, number: int) -> int:
    return random.Random(f"fio {seed} {group.id} {number}").getrandbits(31)
