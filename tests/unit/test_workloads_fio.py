"""The named workloads as this machine's fio runs them, and their results against fio's own totals."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from harness.measure.fio import JobResult, Target, TimedSection, job_file, parse
from harness.measure.platform import fio_command
from harness.model.job import Job
from harness.model.workloads import NAMED

pytestmark = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")

MIB = 1024**2
SECONDS = 0.1
JOBS = [
    workload.job(workload.iodepths[-1], ramp=0, seconds=SECONDS)
    for each in NAMED.values()
    for workload in each.workloads
]


@dataclass(frozen=True)
class Ran:
    """Every named workload, one after the other: as parsed, and as fio printed it."""

    results: Mapping[str, JobResult]
    printed: Mapping[str, Any]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    disk = tmp_path_factory.mktemp("named") / "disk"
    with disk.open("wb") as file:
        file.truncate(64 * MIB)
    sections = [TimedSection(job.id, job, Target(str(disk), 0, 64 * MIB, direct=False)) for job in JOBS]
    text = job_file(sections, seed=1, reports_start=False)
    done = subprocess.run(fio_command(), input=text, capture_output=True, text=True, check=True, timeout=600)
    results = parse(done.stdout, sections, "here")
    document = json.loads(done.stdout[done.stdout.index("{") :])
    return Ran({each.job: each for each in results}, {each["jobname"]: each for each in document["jobs"]})


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.id)
def test_the_result_is_fios_own_totals(ran: Ran, job: Job) -> None:
    found, printed = ran.results[job.id], ran.printed[job.id]
    sides = [printed[side] for side in ("read", "write") if printed[side]["total_ios"]]
    assert found.transferred.read == printed["read"]["io_bytes"]
    assert found.transferred.written == printed["write"]["io_bytes"]
    assert found.io_bytes == sum(side["io_bytes"] for side in sides)
    assert found.ios == sum(side["total_ios"] for side in sides)
    assert found.metrics["bw"] == sum(side["bw_bytes"] for side in sides)
    assert found.metrics["iops"] == pytest.approx(sum(side["iops"] for side in sides))
    assert (job.reads, job.writes) == (bool(printed["read"]["total_ios"]), bool(printed["write"]["total_ios"]))
    assert ("sync_mean" in found.metrics) == job.syncs


@pytest.mark.parametrize("job", [job for job in JOBS if job.read_share is not None], ids=lambda job: job.id)
def test_the_share_of_reads_is_that_of_the_workload(ran: Ran, job: Job) -> None:
    reads, writes = (ran.printed[job.id][side]["total_ios"] for side in ("read", "write"))
    assert reads / (reads + writes) == pytest.approx(job.share_of_reads, abs=0.05)


@pytest.mark.parametrize("job", [job for job in JOBS if job.sizes], ids=lambda job: job.id)
def test_the_bytes_of_an_io_are_the_mean_of_the_block_sizes(ran: Ran, job: Job) -> None:
    mean = sum(each.bs * each.percent / 100 for each in job.sizes)
    found = ran.results[job.id]
    assert found.io_bytes / found.ios == pytest.approx(mean, rel=0.15)


@pytest.mark.parametrize("job", [job for job in JOBS if job.syncs], ids=lambda job: job.id)
def test_each_write_is_followed_by_fdatasync(ran: Ran, job: Job) -> None:
    syncs, writes = ran.printed[job.id]["sync"]["lat_ns"], ran.printed[job.id]["write"]["total_ios"]
    assert syncs["N"] == pytest.approx(writes, abs=job.depth)
    assert ran.results[job.id].metrics["sync_mean"] == pytest.approx(syncs["mean"] / 1e9)
    assert sum(ran.results[job.id].sync_histogram.values()) == syncs["N"]


def test_bursts_and_random_arrivals_have_their_rate(ran: Ran) -> None:
    # Four reads in 20 ms and the time of the reads; 200 per second, with a standard deviation of 4.5 in 0.1 s. A busy
    # machine completes fewer.
    assert 4 <= ran.results["thinktime"].ios <= 24
    assert 1 <= ran.results["poisson"].ios <= 20 + 4 * 4.5
