"""fio's job files as fio reads them, and its recorded JSON+ output as we read it.

The recordings in data/fio are of fio 3.39 as our image has it, without the fields that nothing here reads.
"""

from __future__ import annotations

import json
from configparser import ConfigParser
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis import METRICS, merged, percentile
from harness.analysis.metrics import QUANTILES
from harness.errors import MeasurementError
from harness.measure.fio import Target, TimedSection, add_results, fill_file, job_file, parse, reports_start
from harness.measure.platform import ScheduledFio, Start
from harness.model.job import Job

RECORDED = Path(__file__).parent / "data" / "fio"
MIB = 1024**2

RANDREAD = Job("randread", 4096, iodepth=8, ramp=0.5, seconds=1)
AT_ONCE = replace(RANDREAD, ramp=0)
SEQWRITE = Job("write", 256 * 1024, iodepth=2, ramp=0, seconds=1)
MIXED = Job("randrw", 8192, iodepth=4, ramp=0, seconds=1, numjobs=2, read_share=0.67)
FEW = Job("randread", 4096, iodepth=1, ramp=0, seconds=0.02)
JOBS = [RANDREAD, SEQWRITE, MIXED]

TARGET = Target("/dev/disk/by-id/x", offset=4 * MIB, size=24 * MIB, direct=True)


def of(*jobs: Job, target: Target = TARGET, delay: float | None = None) -> list[TimedSection]:
    """A section for each job, with the job's name, as in the recordings."""
    return [TimedSection(job.id, job, target, delay) for job in jobs]


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.json").read_text()


def entry(name: str, job: Job) -> dict[str, Any]:
    text = recorded(name)
    document = json.loads(text[text.index("{") :])
    found: dict[str, Any] = next(each for each in document["jobs"] if each["jobname"] == job.id)
    return found


def options(text: str) -> ConfigParser:
    parser = ConfigParser(allow_no_value=True, strict=True, interpolation=None)
    parser.read_string(text)
    return parser


def test_every_job_is_a_section_that_waits_for_the_previous_one() -> None:
    jobs = options(job_file(of(*JOBS), seed=7))
    assert jobs.sections()[0] == "global"
    assert jobs.sections()[1:] == [
        "randread-4k-qd8-ramp",
        "randread-4k-qd8",
        "seqwrite-256k-qd2",
        "randrw-8k-qd4-nj2-r67",
    ]
    assert all("stonewall" in jobs[job.id] for job in JOBS)


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (
            RANDREAD,
            {"rw": "randread", "bs": "4096", "iodepth": "8", "numjobs": "1", "runtime": "1000ms"},
        ),
        (SEQWRITE, {"rw": "write", "bs": "262144", "iodepth": "2", "numjobs": "1", "runtime": "1000ms"}),
        (
            MIXED,
            {"rw": "randrw", "bs": "8192", "iodepth": "4", "numjobs": "2", "runtime": "1000ms", "rwmixread": "67"},
        ),
        (FEW, {"rw": "randread", "bs": "4096", "iodepth": "1", "numjobs": "1", "runtime": "20ms"}),
    ],
    ids=lambda value: value.id if isinstance(value, Job) else "",
)
def test_a_job_says_what_it_is_in_whole_milliseconds(job: Job, expected: dict[str, str]) -> None:
    found = dict(options(job_file(of(job), seed=7))[job.id])
    assert {name: found.get(name) for name in expected} == expected
    assert ("rwmixread" in found) == ("rwmixread" in expected)


def test_a_ramp_is_the_same_job_before_it_whose_bytes_are_counted() -> None:
    jobs = options(job_file(of(RANDREAD), seed=7))
    ramp, job = dict(jobs["randread-4k-qd8-ramp"]), dict(jobs["randread-4k-qd8"])
    assert (ramp.pop("runtime"), job.pop("runtime")) == ("500ms", "1000ms")
    assert ramp == job
    (result,) = parse(recorded("three_jobs"), of(RANDREAD), "here")
    (without,) = parse(recorded("three_jobs"), of(AT_ONCE), "here")
    assert result.metrics == without.metrics
    assert result.io_bytes == without.transferred.read < result.transferred.read
    assert result.transferred.written == 0


def test_all_jobs_have_the_seed_of_the_round_and_never_create_a_file() -> None:
    common = options(job_file(of(*JOBS), seed=7))["global"]
    expected = {
        "allow_file_create": "0",
        "ioengine": "libaio",
        "randseed": "7",
        "group_reporting": "1",
    }
    assert {name: common[name] for name in expected} == expected


def test_each_job_stays_within_the_span_of_its_target() -> None:
    other = Target("/dev/disk/by-id/y", offset=0, size=8 * MIB, direct=True)
    jobs = options(job_file([*of(RANDREAD), *of(SEQWRITE, target=other)], seed=7))
    for name, target in ((f"{RANDREAD.id}-ramp", TARGET), (RANDREAD.id, TARGET), (SEQWRITE.id, other)):
        found = (jobs[name]["filename"], jobs[name]["offset"], jobs[name]["size"])
        assert found == (target.path, str(target.offset), str(target.size))
        # Each slice has its own figures.
        assert "new_group" in jobs[name]


def test_a_slice_is_created_early_and_waits_for_its_start_and_its_ramp_for_an_own_one() -> None:
    paced = [
        TimedSection(f"{number}-{job.id}", job, TARGET, 0.5 + number) for number, job in enumerate((SEQWRITE, RANDREAD))
    ]
    pacing = ScheduledFio("/directory", ("fio",), tuple(Start(at, 1) for at in (101.5, 102.504, 103)))
    jobs = options(job_file(paced, seed=7, waits=pacing.waits))
    assert jobs.sections()[1:] == ["0-seqwrite-256k-qd2", "1-randread-4k-qd8-ramp", "1-randread-4k-qd8"]
    assert not any("stonewall" in jobs[name] for name in jobs.sections())
    assert [jobs[name]["startdelay"] for name in jobs.sections()[1:]] == ["500ms", "1500ms", "1500ms"]
    own = [f"exec sh wait_until {at}" for at in (101500, 102504, 103000)]
    assert [jobs[name]["exec_prerun"] for name in jobs.sections()[1:]] == own


def test_only_a_fio_that_can_report_the_start_of_a_job_is_asked_for_it() -> None:
    assert "job_start_clock_id" not in options(job_file(of(*JOBS), seed=1, reports_start=False))["global"]
    assert options(job_file(of(*JOBS), seed=1))["global"]["job_start_clock_id"] == "7"  # CLOCK_BOOTTIME
    versions = ("fio-3.33", "fio-3.35-12-gabc", "fio-3.36", "fio-3.39", "fio-4.0", "fio-2.40", "", "3.39")
    assert [version for version in versions if reports_start(version)] == ["fio-3.36", "fio-3.39", "fio-4.0"]


def test_the_start_of_a_job_is_in_seconds_if_fio_reports_it() -> None:
    text = recorded("three_jobs")
    document = json.loads(text[text.index("{") :])
    for each in document["jobs"]:
        each.pop("job_start", None)
    (without,) = parse(json.dumps(document), of(SEQWRITE), "here")
    assert without.started is None
    for number, each in enumerate(document["jobs"]):
        each["job_start"] = 5_000_250 + number
    (ramped,) = parse(json.dumps(document), of(RANDREAD), "here")
    names = [each["jobname"] for each in document["jobs"]]
    assert ramped.started == pytest.approx(5000.25 + names.index(RANDREAD.id) / 1000)


@pytest.mark.parametrize(
    ("job", "rate"),
    [
        (replace(RANDREAD, rate=1000), "1000"),
        (replace(RANDREAD, rate=1000, numjobs=4), "250"),
        (replace(MIXED, rate=1000), "335,165"),
    ],
    ids=["one process", "four processes", "reads and writes of two processes"],
)
def test_a_fixed_rate_is_that_of_all_processes_and_directions_together(job: Job, rate: str) -> None:
    jobs = options(job_file(of(job), seed=7))
    assert jobs[job.id]["rate_iops"] == rate
    assert "rate_iops" not in options(job_file(of(replace(job, rate=None)), seed=7))[replace(job, rate=None).id]
    if job.ramp:
        assert jobs[f"{job.id}-ramp"]["rate_iops"] == rate


@pytest.mark.parametrize(
    ("job", "rate"),
    [(SEQWRITE, ",1000000"), (MIXED, ",500000")],
    ids=["one process", "two processes"],
)
def test_a_limit_of_the_bytes_written_is_that_of_all_processes_together_and_not_of_reads(job: Job, rate: str) -> None:
    (section,) = of(job)
    assert dict(options(job_file([replace(section, write_limit=1_000_000)], seed=7))[job.id])["rate"] == rate
    assert "rate" not in options(job_file([section], seed=7))[job.id]


def test_a_job_with_a_rate_of_its_own_keeps_it_because_fio_accepts_only_one() -> None:
    paced = replace(SEQWRITE, rate=1000)
    (section,) = of(paced)
    found = options(job_file([replace(section, write_limit=1_000_000)], seed=7))[paced.id]
    assert ("rate_iops" in found, "rate" in found) == (True, False)


@pytest.mark.parametrize("direct", [True, False])
def test_only_a_cached_twin_goes_through_the_page_cache_and_keeps_it_warm(direct: bool) -> None:
    jobs = options(job_file(of(*JOBS, target=Target("/f", 0, MIB, direct)), seed=1))
    for job in JOBS:
        assert (jobs[job.id]["direct"], jobs[job.id]["invalidate"]) == (str(int(direct)), str(int(direct)))


def test_filling_writes_each_span_as_often_as_requested_with_new_data() -> None:
    fill = options(fill_file([("/dev/a", MIB, 64 * MIB), ("/mnt/raw", 0, 32 * MIB)], block=MIB, times=2))
    assert (fill["global"]["bs"], fill["global"]["loops"]) == (str(MIB), "2")
    assert fill.sections() == ["global", "fill0", "fill1"]
    assert (fill["global"]["rw"], fill["global"]["refill_buffers"], fill["global"]["direct"]) == ("write", "1", "1")
    assert dict(fill["fill1"]) == {"stonewall": None, "filename": "/mnt/raw", "offset": "0", "size": str(32 * MIB)}


@pytest.mark.parametrize(("job", "side"), [(RANDREAD, "read"), (SEQWRITE, "write")])
def test_the_figures_of_a_job_are_fios_own(job: Job, side: str) -> None:
    fio = entry("three_jobs", job)[side]
    (result,) = parse(recorded("three_jobs"), of(job), "here")
    assert result.job == job.id
    assert result.seconds == fio["runtime"] / 1000
    assert result.io_bytes == fio["io_bytes"]
    assert result.metrics["iops"] == fio["iops"]
    assert result.metrics["bw"] == fio["bw_bytes"]
    assert result.metrics["lat_mean"] == pytest.approx(fio["lat_ns"]["mean"] / 1e9)
    assert result.metrics["clat_mean"] == pytest.approx(fio["clat_ns"]["mean"] / 1e9)


def test_fios_own_cpu_time_and_switches_are_those_of_all_its_threads_ramp_included() -> None:
    mixed = entry("three_jobs", MIXED)
    assert mixed["job_runtime"] == pytest.approx(2 * mixed["read"]["runtime"], rel=0.01)
    (result,) = parse(recorded("three_jobs"), of(MIXED), "here")
    assert result.user_seconds == pytest.approx(mixed["usr_cpu"] / 100 * mixed["job_runtime"] / 1000)
    assert result.system_seconds == pytest.approx(mixed["sys_cpu"] / 100 * mixed["job_runtime"] / 1000)
    assert result.switches == mixed["ctx"]
    (with_ramp,), (without,) = (parse(recorded("three_jobs"), of(job), "here") for job in (RANDREAD, AT_ONCE))
    assert with_ramp.ios > without.ios == entry("three_jobs", AT_ONCE)["read"]["total_ios"]
    assert with_ramp.system_seconds > without.system_seconds > 0


def test_a_mixed_job_is_the_sum_of_its_reads_and_writes() -> None:
    fio = entry("three_jobs", MIXED)
    read, write = fio["read"], fio["write"]
    (result,) = parse(recorded("three_jobs"), of(MIXED), "here")
    total = read["total_ios"] + write["total_ios"]
    assert read["total_ios"] / total == pytest.approx(0.67, abs=0.02)
    assert result.io_bytes == read["io_bytes"] + write["io_bytes"] == total * 8192
    assert result.metrics["iops"] == pytest.approx(total / result.seconds, rel=0.01)
    assert result.metrics["bw"] == read["bw_bytes"] + write["bw_bytes"]
    mean = (read["clat_ns"]["mean"] * read["total_ios"] + write["clat_ns"]["mean"] * write["total_ios"]) / total
    assert result.metrics["clat_mean"] == pytest.approx(mean / 1e9)
    assert min(read["clat_ns"]["mean"], write["clat_ns"]["mean"]) < mean


@pytest.mark.parametrize(("job", "side"), [(RANDREAD, "read"), (SEQWRITE, "write")])
def test_the_percentiles_of_a_job_are_fios_own(job: Job, side: str) -> None:
    of_fio = entry("three_jobs", job)[side]["clat_ns"]["percentile"]
    (result,) = parse(recorded("three_jobs"), of(job), "here")
    compared = {
        name: of_fio[f"{metric.quantile * 100:.6f}"]
        for name, metric in METRICS.items()
        if metric.of == "ios" and metric.quantile is not None and f"{metric.quantile * 100:.6f}" in of_fio
    }
    assert len(compared) == len(of_fio)
    assert {name: round(result.metrics[name] * 1e9) for name in compared} == compared


def test_fio_also_computes_the_percentiles_for_comparison() -> None:
    asked = options(job_file(of(*JOBS), seed=7))["global"]["percentile_list"]
    assert [float(percent) / 100 for percent in asked.split(":")] == pytest.approx(QUANTILES)


def test_a_mixed_job_has_the_percentiles_of_reads_and_writes_together() -> None:
    fio = entry("three_jobs", MIXED)
    both = [{int(ns): n for ns, n in fio[side]["clat_ns"]["bins"].items()} for side in ("read", "write")]
    (result,) = parse(recorded("three_jobs"), of(MIXED), "here")
    assert result.histogram == merged(both)
    assert result.metrics["clat_p99"] == percentile(merged(both), 0.99)


def test_jobs_that_ran_at_the_same_time_are_added_up_and_their_latencies_are_those_of_all_ios() -> None:
    (one, other) = parse(recorded("three_jobs"), of(SEQWRITE, MIXED), "here")
    both = add_results([one, other])
    assert both.metrics["iops"] == pytest.approx(one.metrics["iops"] + other.metrics["iops"])
    assert both.metrics["bw"] == pytest.approx(one.metrics["bw"] + other.metrics["bw"])
    mean = (one.metrics["lat_mean"] * one.ios + other.metrics["lat_mean"] * other.ios) / (one.ios + other.ios)
    assert both.metrics["lat_mean"] == pytest.approx(mean)
    assert (both.ios, both.io_bytes) == (one.ios + other.ios, one.io_bytes + other.io_bytes)
    assert sum(both.histogram.values()) == sum(one.histogram.values()) + sum(other.histogram.values())
    assert add_results([one]) == one


def test_jobs_are_returned_in_the_requested_order() -> None:
    results = parse(recorded("three_jobs"), of(*JOBS[::-1]), "here")
    assert [result.job for result in results] == [job.id for job in JOBS[::-1]]


def test_a_percentile_that_too_few_ios_support_is_left_out() -> None:
    (result,) = parse(recorded("few"), of(FEW), "here")
    assert entry("few", FEW)["read"]["total_ios"] < 1000
    assert "clat_p50" in result.metrics
    assert not {"clat_p99", "clat_p999"} & set(result.metrics)


def test_notes_before_the_json_do_not_matter() -> None:
    text = recorded("note")
    assert text.startswith("note: both iodepth >= 1 and synchronous I/O engine are selected")
    (result,) = parse(text, of(AT_ONCE), "here")
    assert result.metrics["iops"] == entry("note", AT_ONCE)["read"]["iops"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (recorded("three_jobs")[:5000], "fio's output cannot be read: "),
        ("", r"fio printed no result: \(nothing\)"),
        ("fio: engine libaio not loadable\n", "fio printed no result: fio: engine libaio not loadable"),
    ],
    ids=["cut off", "nothing", "a message alone"],
)
def test_output_without_a_result_is_quoted(text: str, said: str) -> None:
    with pytest.raises(MeasurementError, match=f"guest on lab, optane, round 2: {said}"):
        parse(text, of(RANDREAD), "guest on lab, optane, round 2")


def test_a_failed_job_is_reported_with_its_error() -> None:
    with pytest.raises(MeasurementError, match="here: fio's job seqwrite-256k-qd2 failed with error 28") as error:
        parse(recorded("failed"), of(SEQWRITE), "here")
    assert error.value.hint is not None
    assert "its raw output is stored" in error.value.hint


def test_a_job_that_fio_omitted_is_named() -> None:
    with pytest.raises(MeasurementError, match="here: fio's output lacks randread-4k-qd1"):
        parse(recorded("three_jobs"), of(RANDREAD, FEW), "here")


def test_a_job_without_any_io_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="here: fio's job randread-4k-qd8 completed no I/O"):
        parse(recorded("no_io"), of(AT_ONCE), "here")
