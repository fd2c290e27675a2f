"""The figures of a run in the words of other tools."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.features.translation.report import LINES, to_json, translate, yield_lines
from harness.model.job import Job
from harness.model.workloads import parse_workloads
from harness.report.section import Section, find_sections
from tests.build import synthetic_run
from tests.unit.pages import page


def job(workload: str, depth: int = 1) -> Job:
    (parsed,) = parse_workloads(workload)
    return parsed.job(parsed.iodepths[0] if len(parsed.iodepths) == 1 else depth, ramp=0, seconds=1)


def list_names(of: Job) -> dict[str, str]:
    """What each tool calls it; the last line of a tool counts."""
    return {line.tool: line.call(of) for line in LINES if line.fits(of)}


@pytest.mark.parametrize(
    ("of", "names"),
    [
        (
            job("seqwrite-1m"),
            {
                "CrystalDiskMark": "SEQ1M Q1T1 Write",
                "dd": "bs=1M oflag=direct",
                "diskspd": "-b1024K -o1 -t1 -w100 -Sh",
                "IOMeter": "1024 KiB; 0% Read; 0% random; 1 outstanding, 1 workers",
            },
        ),
        (
            job("randread-4k"),
            {
                "CrystalDiskMark": "RND4K Q1T1 Read",
                "pveperf": "AVERAGE SEEK TIME",
                "ioping -D": "avg request",
                "diskspd": "-b4K -o1 -t1 -r -w0 -Sh",
                "IOMeter": "4 KiB; 100% Read; 100% random; 1 outstanding, 1 workers",
            },
        ),
        (
            job("randrw-4k-nj2-r50", 64),
            {
                "YABS": "4k mixed R/W 50/50, Total",
                "diskspd": "-b4K -o64 -t2 -r -w50 -Sh",
                "IOMeter": "4 KiB; 50% Read; 100% random; 64 outstanding, 2 workers",
            },
        ),
        (
            job("iometer-workstation", 8),
            {"IOMeter": "Workstation (8 KiB; 80% Read; 80% random); 8 outstanding, 4 workers"},
        ),
        (
            job("cdm7-rnd4k-q32t16-write"),
            {
                "CrystalDiskMark": "RND4K Q32T16 Write",
                "diskspd": "-b4K -o32 -t16 -r -w100 -Sh",
                "IOMeter": "4 KiB; 0% Read; 100% random; 32 outstanding, 16 workers",
            },
        ),
        (
            job("randrw-1m-nj2-r50", 64),
            {
                "YABS": "1m mixed R/W 50/50, Total",
                "diskspd": "-b1024K -o64 -t2 -r -w50 -Sh",
                "IOMeter": "1024 KiB; 50% Read; 100% random; 64 outstanding, 2 workers",
            },
        ),
        (
            job("randrw-8k-nj2-r50", 64),
            {
                "diskspd": "-b8K -o64 -t2 -r -w50 -Sh",
                "IOMeter": "8 KiB; 50% Read; 100% random; 64 outstanding, 2 workers",
            },
        ),
        (
            job("randread-512"),
            {
                "diskspd": "-b512 -o1 -t1 -r -w0 -Sh",
                "IOMeter": "512 B; 100% Read; 100% random; 1 outstanding, 1 workers",
            },
        ),
        (job("wal"), {"etcd's fio": "fdatasync 99.00th"}),
        (job("seqread-1m-buffered"), {}),
        (job("randread-4k-i1000"), {}),
        (job("poisson"), {}),
        (job("search"), {}),
    ],
    ids=lambda value: value.id if isinstance(value, Job) else "",
)
def test_a_job_has_the_names_of_the_tools_that_do_the_same_io(of: Job, names: dict[str, str]) -> None:
    assert list_names(of) == names


@pytest.mark.parametrize("version", [7, 8])
def test_the_rows_of_crystaldiskmark_are_all_there(version: int) -> None:
    jobs = [workload.job(workload.iodepths[0], ramp=0, seconds=1) for workload in parse_workloads(f"cdm{version}")]
    names = [list_names(of)["CrystalDiskMark"] for of in jobs]
    assert len(set(names)) == len(jobs) == 8
    assert names[0] == "SEQ1M Q8T1 Read"


@pytest.fixture(scope="module")
def section() -> Section:
    run = synthetic_run(
        modes=["host", "lvm", "raw"],
        rounds=3,
        workloads=("randread-4k", "seqread-1m"),
        speed=lambda arm, _job: 500.0 if arm.in_guest else 1000.0,
    )
    (of_disk,) = find_sections(run)
    return of_disk


def test_a_megabyte_of_yabs_is_a_thousand_kibibytes() -> None:
    # It prints fio's KiB/s divided by 1000: 2000 I/Os of 4 KiB per second are 8.00 MB/s there, and 8.19 MB/s elsewhere.
    (workload,) = parse_workloads("randrw-4k-nj2-r50")
    deep = replace(workload, iodepths=(64,))
    run = synthetic_run(modes=["host", "lvm"], rounds=3, workloads=(deep,), speed=lambda _arm, _job: 2000.0)
    (of_disk,) = find_sections(run)
    (line,) = (line for line in translate(of_disk) if line.quoted.tool == "YABS")
    mean = line.mean(line.host)
    assert mean is not None
    assert mean.point == pytest.approx(8.0, rel=0.02)


def test_a_figure_is_in_the_units_of_its_tool(section: Section) -> None:
    lines = {(line.quoted.tool, line.quoted.call(line.job)): line for line in translate(section)}
    read = lines["CrystalDiskMark", "SEQ1M Q1T1 Read"]
    host, guest = read.mean(read.host), read.mean(read.find_guest("lvm"))
    assert host is not None
    assert guest is not None
    assert host.point == pytest.approx(1048.6, rel=0.05)
    assert guest.point == pytest.approx(524.3, rel=0.05)
    buffered = lines["pveperf", "BUFFERED READS"]
    assert buffered.quoted.unit == "MB/sec"
    mean = buffered.mean(buffered.host)
    assert mean is not None
    assert mean.point == pytest.approx(host.point * 1e6 / (1 << 20))


def test_the_page_has_the_lines_with_what_differs(section: Section) -> None:
    report = page(section.run)
    assert "As other tools quote it" in report.text
    (row,) = (row for row in report.rows if "RND4K Q32T1 Read" in row)
    assert row[0] == "CrystalDiskMark"
    assert "randread-4k-qd32" in row
    assert "MB/s" in row
    assert row[-1].startswith("CrystalDiskMark shows the best of its passes")


def test_programs_get_the_same(section: Section) -> None:
    (line,) = (line for line in to_json(section)["quoted"] if line["line"] == "AVERAGE SEEK TIME")
    assert line["unit"] == "ms"
    assert set(line["means"]) == {"host", "guest lvm", "guest raw"}


def test_a_run_without_such_jobs_has_no_table() -> None:
    (other,) = find_sections(synthetic_run(modes=["host", "lvm"], rounds=3, workloads=("randread-4k-i1000",)))
    assert list(yield_lines(other)) == []
    assert to_json(other) == {}
