"""The workloads with names of their own: what fio is told for each, as their sources define them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from harness.analysis import METRICS
from harness.measure.fio import Target, TimedSection, job_file
from harness.model.job import Job
from harness.model.mode import Budget
from harness.model.workloads import NAMED, PROFILES, find_profile, parse_workloads
from harness.scenario.legality import find_reference_problems
from tests.build import optane
from tests.unit.test_fio import options

GIB = 1024**3
FILESERVER = "512/10:1024/5:2048/5:4096/60:8192/2:16384/4:32768/4:65536/10"
WEBSERVER = "512/22:1024/15:2048/8:4096/23:8192/15:16384/2:32768/6:65536/7:131072/1:524288/1"
CRYSTALDISKMARK = {
    f"{test}-{direction}": {
        "rw": f"{random}{direction}",
        "bs": str(bs),
        "iodepth": str(depth),
        "numjobs": str(threads),
        "size": str(GIB),
    }
    for test, random, bs, depth, threads in (
        ("cdm3-seq", "", 1 << 20, 1, 1),
        ("cdm3-512k", "rand", 512 << 10, 1, 1),
        ("cdm3-4k", "rand", 4096, 1, 1),
        ("cdm3-4k-qd32", "rand", 4096, 32, 1),
        ("cdm7-seq1m-q8t1", "", 1 << 20, 8, 1),
        ("cdm7-seq1m-q1t1", "", 1 << 20, 1, 1),
        ("cdm7-rnd4k-q32t16", "rand", 4096, 32, 16),
        ("cdm7-rnd4k-q1t1", "rand", 4096, 1, 1),
        ("cdm8-seq1m-q8t1", "", 1 << 20, 8, 1),
        ("cdm8-seq1m-q1t1", "", 1 << 20, 1, 1),
        ("cdm8-rnd4k-q32t1", "rand", 4096, 32, 1),
        ("cdm8-rnd4k-q1t1", "rand", 4096, 1, 1),
    )
    for direction in ("read", "write")
}
GOLDEN: Mapping[str, Mapping[str, str]] = {
    **CRYSTALDISKMARK,
    "iometer-database": {"rw": "randrw", "bs": "8192", "rwmixread": "67", "numjobs": "4", "iodepth": "32"},
    "iometer-workstation": {"rw": "randrw", "bs": "8192", "rwmixread": "80", "percentage_random": "80", "numjobs": "4"},
    "iometer-fileserver": {"rw": "randrw", "bssplit": FILESERVER, "rwmixread": "80", "numjobs": "4"},
    "iometer-webserver": {"rw": "randread", "bssplit": WEBSERVER, "numjobs": "4"},
    "wal": {"rw": "write", "bs": "4096", "fdatasync": "1", "iodepth": "1", "numjobs": "1"},
    "wal-buffered": {"rw": "write", "bs": "4096", "fdatasync": "1", "direct": "0", "iodepth": "1", "numjobs": "1"},
    "search": {"rw": "randrw", "bs": "16384", "rwmixread": "90", "sync": "dsync", "iodepth": "4", "numjobs": "8"},
    "qd1-read": {"rw": "randread", "bs": "4096", "iodepth": "1"},
    "qd1-write": {"rw": "randwrite", "bs": "4096", "iodepth": "1"},
    "thinktime": {"rw": "randread", "bs": "4096", "iodepth": "1", "thinktime": "20000", "thinktime_blocks": "4"},
    "poisson": {"rw": "randread", "bs": "4096", "iodepth": "64", "rate_iops": "200", "rate_process": "poisson"},
}
BEHAVIOUR = {"bssplit", "fdatasync", "sync", "percentage_random", "rate_iops", "rate_process", "rwmixread", "thinktime"}


def a_job(name: str, profile: str = "standard") -> Job:
    """The workload's job at its deepest depth in the profile."""
    (workload,) = parse_workloads(name)
    return workload.job(workload.depths(find_profile(PROFILES, profile).iodepth)[-1], ramp=0, seconds=1)


def told(job: Job, *, block: int = 512) -> Mapping[str, str]:
    """What fio is told for the job on a large disk with logical blocks of this size."""
    target = Target("/dev/x", 0, 4 * GIB, direct=True, block=block)
    return dict(options(job_file([TimedSection("job", job, target)], seed=1))["job"])


@pytest.mark.parametrize("name", GOLDEN)
def test_fio_is_told_what_the_source_says(name: str) -> None:
    found = told(a_job(name))
    assert {key: found.get(key) for key in GOLDEN[name]} == GOLDEN[name]
    assert BEHAVIOUR & found.keys() == BEHAVIOUR & GOLDEN[name].keys()
    assert ("bs" in found) != ("bssplit" in found)


def test_every_named_workload_has_a_golden_invocation() -> None:
    assert {workload.name for each in NAMED.values() for workload in each.workloads} == GOLDEN.keys()


def test_the_shares_of_the_block_sizes_add_up_to_all_ios() -> None:
    with_sizes = [workload for each in NAMED.values() for workload in each.workloads if workload.sizes]
    assert len(with_sizes) == 2
    for workload in with_sizes:
        assert sum(each.percent for each in workload.sizes) == 100
        assert workload.bs == max(each.bs for each in workload.sizes)


def test_blocks_below_the_logical_block_size_are_rounded_up_and_not_dropped() -> None:
    assert told(a_job("iometer-fileserver"), block=4096)["bssplit"] == "4096/80:8192/2:16384/4:32768/4:65536/10"


def test_megabytes_per_second_are_those_of_crystaldiskmark() -> None:
    """The study of SSD arrays prints both figures for one test: 2,874.27 IOPS with 4 KiB, and 11.77 MB/s."""
    assert METRICS["bw"].shown.unit == "MB/s"
    assert f"{2874.27 * 4096 / METRICS['bw'].shown.scale:.2f}" == "11.77"


def test_a_set_stands_for_its_workloads_and_each_of_them_has_a_name() -> None:
    assert [each.name for each in parse_workloads("cdm8")] == [
        f"cdm8-{test}-{direction}"
        for test in ("seq1m-q8t1", "seq1m-q1t1", "rnd4k-q32t1", "rnd4k-q1t1")
        for direction in ("read", "write")
    ]
    for each in NAMED.values():
        for workload in each.workloads:
            assert parse_workloads(workload.name) == (workload,)


def test_a_workload_with_one_depth_has_its_name_as_id_and_others_have_the_depth_too() -> None:
    assert a_job("cdm7-seq1m-q8t1-read").id == "cdm7-seq1m-q8t1-read"
    assert a_job("wal").id == "wal"
    assert a_job("iometer-database").id == "iometer-database-qd32"


def test_own_depths_replace_those_of_the_profile() -> None:
    (database,), (sequential,) = parse_workloads("iometer-database"), parse_workloads("cdm8-seq1m-q8t1-read")
    assert database.depths((32,)) == (32,)
    assert database.depths((1, 2, 4, 8, 16, 32, 64, 128, 256)) == (1, 2, 4, 8, 16, 32)
    assert sequential.depths((32,)) == (8,)


def test_the_metric_of_a_workload_is_what_it_is_for() -> None:
    names = ("wal", "thinktime", "poisson", "search", "cdm8-seq1m-q8t1-read", "cdm8-rnd4k-q1t1-read")
    assert [a_job(name).headline for name in names] == ["sync_mean", "clat_mean", "lat_mean", "iops", "bw", "iops"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cdm9", 'no such workload; allowed: .*did you mean "cdm'),
        ("iometer-databse", 'did you mean "iometer-database"'),
        ("wall", 'did you mean "wal"'),
        ("randraed-4k", 'no such pattern; .*did you mean "randread"'),
    ],
)
def test_a_wrong_name_is_refused_with_a_proposal(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_workloads(text)


@pytest.mark.parametrize(("workload", "problems"), [("wal", 0), ("search", 1), ("randwrite-4k", 1)])
def test_a_budget_for_fdatasync_needs_a_workload_that_calls_it(workload: str, problems: int) -> None:
    scenario = replace(
        optane(), workloads=parse_workloads(workload), budgets=(Budget("sync_p99", 0.5, lab=("emulated",)),)
    )
    found = [each for each in find_reference_problems(scenario) if "fdatasync" in each]
    assert len(found) == problems


def test_only_workloads_that_keep_the_queue_full_are_compared_with_the_depth() -> None:
    names = ("randread-4k", "wal", "thinktime", "poisson", "cdm8-seq1m-q8t1-read")
    assert [a_job(name).is_saturating for name in names] == [True, False, False, False, True]
