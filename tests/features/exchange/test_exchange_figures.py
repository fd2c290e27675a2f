"""Which figures `virt-overhead import` makes of fio's entries, which it refuses, and which have a note."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.errors import MeasurementError
from harness.features.exchange.reader import Point, read_points
from tests.features.exchange.exchanged import import_here, imported

WRITTEN = 1_700_000_000
NO_CALLS = {"min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0}


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def side(
    ios: int = 0, seconds: float = 10, *, bs: int = 4096, latency_us: float = 100, io_bytes: int = 0
) -> dict[str, Any]:
    """A direction as fio prints it, with its own percentiles."""
    total, milliseconds, mean = io_bytes or ios * bs, round(seconds * 1000), latency_us * 1000
    percentile = {"50.000000": mean * 0.9, "99.000000": mean * 3, "99.900000": mean * 4} if ios else {}
    latency = {"min": mean / 2, "max": mean * 5, "mean": mean, "stddev": mean / 10, "N": ios}
    return {
        "io_bytes": total,
        "bw_bytes": total * 1000 // milliseconds if ios else 0,
        "iops": ios * 1000 / milliseconds if ios else 0.0,
        "runtime": milliseconds if ios else 0,
        "total_ios": ios,
        "slat_ns": latency,
        "clat_ns": latency | {"percentile": percentile},
        "lat_ns": latency,
    }


def entry(
    name: str = "a", *, group: int = 0, job_runtime: float = 10, elapsed: int = 11, **more: Any
) -> dict[str, Any]:
    """An entry of fio's jobs. `read`, `write` and others replace its directions; the rest are its options."""
    options = {
        "rw": "randread",
        "bs": "4k",
        "iodepth": "32",
        "ioengine": "libaio",
        "direct": "1",
        "filename": "/dev/sdz",
    }
    own: dict[str, Any] = {
        key: more.pop(key) for key in ("read", "write", "mixed", "trim", "sync", "job_start") if key in more
    }
    options |= {key: str(value) for key, value in more.items()}
    sides = {} if "mixed" in own and "read" not in own else {"read": side(), "write": side()}
    return {
        "jobname": name,
        "groupid": group,
        "error": 0,
        "elapsed": elapsed,
        "job options": options,
        **sides,
        "sync": {"total_ios": 0, "lat_ns": NO_CALLS},
        "job_runtime": round(job_runtime * 1000),
        "usr_cpu": 1.0,
        "sys_cpu": 1.0,
        "ctx": 1,
        **own,
    }


def document(*entries: dict[str, Any], version: str = "3.33", written: int = WRITTEN) -> bytes:
    found = {"fio version": f"fio-{version}", "timestamp": written, "timestamp_ms": written * 1000, "jobs": entries}
    return json.dumps(found).encode()


def points_of(*entries: dict[str, Any]) -> tuple[Point, ...]:
    return read_points(document(*entries), "file.json")


def refusal(*entries: dict[str, Any]) -> str:
    with pytest.raises(MeasurementError, match=r"file\.json") as raised:
        points_of(*entries)
    return str(raised.value)


def file(name: str, *entries: dict[str, Any], written: int = WRITTEN) -> Path:
    Path(name).write_bytes(document(*entries, written=written))
    return Path(name)


def test_processes_that_ended_at_different_times_count_by_the_time_of_the_longest() -> None:
    short = [entry(numjobs=4, read=side(10_000, 10)) for _ in range(3)]
    (point,) = points_of(*short, entry(numjobs=4, read=side(40_000, 40), job_runtime=40))
    assert point.metrics["iops"] == pytest.approx(70_000 / 40)
    assert point.metrics["bw"] == pytest.approx(70_000 * 4096 / 40)
    assert point.seconds == 40
    assert any("did not run for the same time: 10.0 to 40.0 s" in note for note in point.notes)


def test_processes_that_ran_for_almost_the_same_time_count_by_the_same_time() -> None:
    """fio's own rates of the processes, each by its time, would add up to 0.6 % more."""
    seconds = [10, 9.95, 9.9, 9.9]
    (point,) = points_of(*(entry(numjobs=4, read=side(10_000, run), job_runtime=run) for run in seconds))
    assert point.metrics["iops"] == pytest.approx(40_000 / 10)
    assert point.metrics["bw"] == pytest.approx(40_000 * 4096 / 10)
    assert point.notes == ()
    (mixed,) = points_of(entry(rw="randrw", read=side(5000, 10), write=side(5000, 9.85)))
    assert mixed.metrics["iops"] == pytest.approx(10_000 / 10)


def test_processes_that_started_at_different_times_count_from_the_first_start_to_the_last_end() -> None:
    starts = [(WRITTEN - 60) * 1000, (WRITTEN - 40) * 1000]
    (point,) = points_of(*(entry(numjobs=2, read=side(10_000, 10), job_start=start) for start in starts))
    assert point.metrics["iops"] == pytest.approx(20_000 / 30)
    assert (point.started, point.seconds) == (WRITTEN - 60, 30)


def test_starts_that_the_output_does_not_have_are_refused() -> None:
    apart = [entry(numjobs=2, read=side(10_000, 10), startdelay="0-30") for _ in range(2)]
    assert "startdelay with a range" in refusal(*apart)
    assert "startdelay with a range" in refusal(
        entry(numjobs=2, read=side(20_000, 10), job_runtime=20, startdelay="0-30")
    )


@pytest.mark.parametrize(
    ("merged", "sign"),
    [
        (entry(read=side(9000, 10), write=side(7000, 10), rw="randread"), "rw = randread, but it has writes"),
        (entry(read=side(9000, 10), write=side(7000, 10), rw="randwrite"), "rw = randwrite, but it has reads"),
        (entry(read=side(30_000, 10), job_runtime=30), "job_runtime is that of 3.0 processes"),
        (entry(read=side(30_000, 10), job_runtime=30, numjobs=2), "job_runtime is that of 3.0 processes"),
        (entry(read=side(75_000), write=side(390_000), rw="rw"), "16% of its I/Os are reads, but rwmixread = 50"),
        (entry(read=side(450_000, 10, latency_us=2000), iodepth=16), "90 I/Os were in flight by its latency and IOPS"),
        (entry(read=side(9000, 10), trim=side(7000, 10)), "it has trims"),
        (entry(read=side(40_000, 40), numjobs=4, runtime=10, job_runtime=70), "but a process ran for 40.0 s"),
    ],
)
def test_sections_that_fio_reported_as_one_are_refused_by_the_sign(merged: dict[str, Any], sign: str) -> None:
    said = refusal(merged)
    assert "several sections together (group_reporting)" in said
    assert sign in said
    assert "measure without group_reporting" in said


def test_doubtful_entries_have_a_note() -> None:
    (mix,) = points_of(entry(read=side(56_000), write=side(44_000), rw="randrw"))
    (time,) = points_of(entry(read=side(30_000, 10), job_runtime=10.5))
    (deep,) = points_of(entry(read=side(450_000, 10, latency_us=500), iodepth=16))
    (unequal,) = points_of(entry(read=side(30_000, 10), job_runtime=30, numjobs=4))
    for point, note in (
        (mix, "56% of its I/Os are reads, but rwmixread = 50"),
        (time, "job_runtime is 1.05 times the time of the longest process"),
        (deep, "22 I/Os were in flight"),
        (unequal, "its 4 processes did not run for the same time"),
    ):
        assert note in point.notes[0]


def test_rates_of_reads_and_writes_set_their_mix() -> None:
    (point,) = points_of(entry(read=side(90_000), write=side(10_000), rw="randrw", rate_iops="9000,1000"))
    assert (point.job_id, point.notes) == ("randrw-4k-qd32-r50-i10000", ())


def test_groups_without_stonewall_ran_at_the_same_time() -> None:
    together = [entry(name, group=number, read=side(10_000, 10), new_group=1) for number, name in enumerate("abc")]
    assert "jobs a and b and c ran at the same time" in refusal(*together)
    started = [(WRITTEN - 20) * 1000, (WRITTEN - 15) * 1000]
    overlapping = [entry(name, group=n, read=side(9, 10), job_start=started[n]) for n, name in enumerate("ab")]
    assert "jobs a and b ran at the same time" in refusal(*overlapping)
    after = [entry(name, group=number, read=side(10_000, 10), elapsed=31) for number, name in enumerate("abc")]
    assert len(points_of(*after)) == 3, "fio before 3.37 does not print stonewall, but it took three times 10 s"


def test_jobs_of_which_the_file_does_not_show_whether_they_waited_have_a_note() -> None:
    brief = [
        entry(name, group=number, read=side(100, 0.5), job_runtime=0.5, elapsed=2) for number, name in enumerate("ab")
    ]
    for point in points_of(*brief):
        assert "does not show whether its jobs ran one after the other" in point.notes[0]


def test_results_of_a_file_are_in_the_order_in_which_they_ran() -> None:
    first = entry("a", read=side(10_000, 10), stonewall="", elapsed=41)
    second = entry("b", group=1, read=side(60_000, 30), job_runtime=30, stonewall="", elapsed=41)
    points = points_of(first, second)
    assert [point.started for point in points] == [WRITTEN - 40, WRITTEN - 30]
    assert import_here("--host", file("a.json", first, second)) == 0
    cell = imported().read_results().cell("imported-host-randread-4k-qd32")
    assert cell.metrics["iops"].host == pytest.approx([1000, 2000])


def test_the_start_of_processes_that_fio_reports_together_is_that_of_the_longest() -> None:
    (point,) = points_of(entry(numjobs=16, read=side(1_200_000, 60), job_runtime=960, elapsed=61))
    assert point.started == WRITTEN - 60


def test_reads_that_verify_are_not_counted() -> None:
    options: dict[str, Any] = {"rw": "randwrite", "verify": "crc32c"}
    (point,) = points_of(entry(read=side(10_000, 2.5), write=side(10_000, 10), job_runtime=12.5, **options))
    assert (point.metrics["iops"], point.seconds) == (1000, 10)
    assert point.transferred.read == 0
    assert point.notes == ("fio read what it wrote to verify it; these reads are not counted",)
    blended: dict[str, Any] = {"read": side(10_000), "write": side(10_000), "verify": "crc32c"}
    assert 'verify = "crc32c" cannot be imported' in refusal(entry(rw="randrw", **blended))
    assert 'verify_backlog = "64"' in refusal(entry(rw="randwrite", verify_backlog=64, **blended))
    assert 'verify = "crc32c"' in refusal(entry(mixed=side(10_000), **options))
    assert "it read more than it wrote" in refusal(entry(read=side(30_000, 2.5), write=side(10_000), **options))
    assert points_of(entry(rw="randrw", do_verify=0, **blended))[0].metrics["iops"] == 2000


def test_a_limit_of_bandwidth_or_pauses_make_the_latency_the_figure_of_a_job() -> None:
    (rate,) = points_of(entry(read=side(10_240), rate="4m"))
    assert (rate.job_id, rate.workload.headline) == ("randread-4k-qd32-i1024", "clat_mean")
    (writes,) = points_of(entry(write=side(5120), rw="write", rate="9m,1m", numjobs=2, job_runtime=20))
    assert writes.workload.rate == 512
    (other,) = points_of(entry(read=side(10_240), rate=",4m"))
    assert (other.workload.rate, other.workload.headline) == (None, "iops")
    (pauses,) = points_of(entry(read=side(10_240), thinktime="10ms", thinktime_blocks=8))
    assert pauses.workload.bursts is not None
    assert (pauses.workload.bursts.ios, pauses.workload.bursts.pause) == (8, 0.01)
    assert pauses.workload.headline == "clat_mean"


@pytest.mark.parametrize("limit", [{"rate": "4m"}, {"thinktime": "1000"}, {"rate_iops": "1024"}])
def test_no_headline_says_what_a_limited_job_loses(limit: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    host = file("host.json", entry(read=side(10_240, latency_us=100), **limit))
    guest = file("guest.json", entry(read=side(10_240, latency_us=200), **limit), written=WRITTEN + 60)
    assert import_here("--host", host, "--guest", f"vm={guest}") == 0
    assert "its jobs compare latencies, not throughput" in capsys.readouterr().out
    (cell,) = (cell for cell in imported().read_results().cells if cell.mode == "vm")
    overhead = cell.metrics["clat_mean"].overhead
    assert overhead is not None
    assert overhead.point == pytest.approx(1.0)


def test_percentiles_of_fdatasync_are_those_that_fio_printed() -> None:
    calls = {"min": 1, "max": 9e6, "mean": 2e6, "stddev": 1.0, "N": 5000, "percentile": {"99.000000": 6_000_000}}
    log = entry(write=side(5000), rw="write", fdatasync=1, sync={"total_ios": 0, "lat_ns": calls})
    assert import_here("--host", file("a.json", log)) == 0
    (cell,) = imported().read_results().cells
    assert cell.job.headline == "sync_mean"
    assert cell.metrics["sync_p99"].host == pytest.approx([0.006])
    old = {key: value for key, value in calls.items() if key != "N"}
    (point,) = points_of(log | {"sync": {"total_ios": 5000, "lat_ns": old}})
    assert point.own_percentiles["sync_p99"] == pytest.approx(0.006), "fio before 3.20 counts the calls elsewhere"


def test_bytes_in_flight_at_the_end_of_the_ramp_are_a_note_or_an_error_that_says_so() -> None:
    bs = 1 << 20
    more: dict[str, Any] = {"bs": "1m", "rw": "read", "ramp_time": 10, "iodepth": 64}
    (point,) = points_of(entry(read=side(580, bs=bs, io_bytes=660 * bs), **more))
    assert "in flight at the end of ramp_time" in point.notes[0]
    assert "at the end of ramp_time" in refusal(entry(read=side(580, bs=bs, io_bytes=900 * bs), **more))


def test_reads_and_writes_that_fio_reported_together_are_one_direction() -> None:
    mixed = entry(mixed=side(10_000), rw="randrw", rwmixread=70, unified_rw_reporting=1)
    (point,) = points_of(mixed)
    assert (point.job_id, point.metrics["iops"]) == ("randrw-4k-qd32-r70", 1000)
    assert "clat_p99" in point.own_percentiles
    both = entry(
        read=side(7000), write=side(3000), mixed=side(10_000), rw="randrw", rwmixread=70, unified_rw_reporting=2
    )
    (point,) = points_of(both)
    assert (point.metrics["iops"], len(point.sides)) == (1000, 2)


def test_the_later_of_two_options_for_a_mix_counts() -> None:
    (point,) = points_of(entry(read=side(20_000), write=side(80_000), rw="randrw", rwmixread=50, rwmixwrite=80))
    assert point.workload.read_share == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"ioengine": "mmap"}, "libaio, direct and mmap, buffered"),
        ({"direct": "0"}, "libaio, direct and libaio, buffered"),
        ({"buffered": "1"}, "libaio, direct and libaio, buffered"),
        ({"thinktime": "5"}, "none and thinktime=5"),
        ({"filename": "/mnt/xfs/file"}, "files of several disks"),
    ],
)
def test_different_ways_to_do_io_do_not_belong_in_one_arm(
    other: dict[str, Any], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (
        file("1.json", entry(read=side(90_000))),
        file("2.json", entry(read=side(15_000), **other), written=WRITTEN + 60),
    )
    assert import_here("--host", one, two) == 2
    assert named in capsys.readouterr().err


def test_what_varies_within_an_arm_is_a_note() -> None:
    one = file("1.json", entry(read=side(90_000), size="1g"))
    two = file("2.json", entry(read=side(15_000), size="90g"), written=WRITTEN + 60)
    assert import_here("--host", one, two) == 0
    assert "host: its results differ in size (1g or 90g)" in imported().read_results().cells[0].notes


def test_sections_of_one_job_on_purpose_are_imported_under_their_names() -> None:
    reader, log = entry("Reader", read=side(50_000), iodepth=8), entry("log", write=side(3000), rw="write", iodepth=1)
    (point,) = points_of(reader, log)
    assert (point.job_id, point.metrics["iops"]) == ("reader-and-log", 5300)
    assert point.workload.from_file is not None
    assert point.workload.from_file.depth == 9
    assert "several disks" in refusal(reader, entry("log", write=side(3000), rw="write", filename="/dev/sdy"))
    assert "options may have delayed" in refusal(reader, entry("log", write=side(3000), rw="write", startdelay="5"))
    assert "wait_for" in refusal(reader, entry("log", write=side(3000), rw="write", wait_for="Reader"))


def test_claims_that_contradict_ios_and_time_are_refused() -> None:
    claims = side(10_000)
    assert "iops = 100000, but its I/Os and its time make 1000" in refusal(entry(read=claims | {"iops": 100_000.0}))
    assert "bw_bytes = 1, but" in refusal(entry(read=claims | {"bw_bytes": 1}))


def test_latencies_that_cannot_be_true_together_are_refused() -> None:
    plain = side(10_000)
    clat, lat = plain["clat_ns"], plain["lat_ns"]

    def refuse(**changed: Any) -> str:
        return refusal(entry(read=plain | changed))

    overflowed = clat | {"percentile": clat["percentile"] | {"99.000000": (1 << 32) - 1}}
    assert "clat_ns percentile 99.000000 = 4.29497e+09, but min = 50000 and max = 500000" in refuse(clat_ns=overflowed)
    assert "lat_ns mean = 4e+09, but min = 50000" in refuse(lat_ns=lat | {"mean": 4e9})
    assert "lat_ns mean = 60000, but clat_ns mean, a part of it, = 100000" in refuse(lat_ns=lat | {"mean": 6e4})
    assert "clat_p50 is impossible" in refuse(clat_ns=clat | {"max": 0, "percentile": {"50.000000": 1e300}})
    filled = clat | {"percentile": clat["percentile"] | {"0.00": 0}}
    (point,) = points_of(entry(read=plain | {"clat_ns": filled}))
    assert point.own_percentiles["clat_p99"] == pytest.approx(300e-6), "fio 3.0 to 3.14 fill the list with zeros"


def test_latencies_of_fdatasync_that_contradict_the_other_figures_are_refused() -> None:
    def refuse(**of_calls: Any) -> str:
        calls = NO_CALLS | {"mean": 1e6, "N": 5000} | of_calls
        return refusal(entry(write=side(5000), rw="write", fdatasync=1, sync={"total_ios": 0, "lat_ns": calls}))

    assert "its calls of fdatasync took 21474.8 s together, but it ran for 10 s" in refuse(mean=1 << 32)
    assert "its calls of fdatasync took inf s together" in refuse(mean=1e308)
    assert "the histogram of fdatasync has 7 calls, but there were 5000" in refuse(bins={"1000000": 7})


def test_a_histogram_that_contradicts_the_other_figures_is_refused() -> None:
    bins = {"50000": 5000, "150000": 5000}
    plain = side(10_000)
    (point,) = points_of(entry(read=plain | {"clat_ns": plain["clat_ns"] | {"bins": bins}}))
    assert point.metrics["clat_p99"] == pytest.approx(150e-6)
    few = {"bins": {"50000": 500, "150000": 500}}
    assert "its histogram has 1000 I/Os, but it completed 10000" in refusal(
        entry(read=plain | {"clat_ns": plain["clat_ns"] | few})
    )
    slow = {"bins": {"50000000": 5000, "150000000": 5000}}
    assert "clat_ns mean = 100000, but its histogram has 1e+08" in refusal(
        entry(read=plain | {"clat_ns": plain["clat_ns"] | slow})
    )


@pytest.mark.parametrize("delay", ["3600", "3600s", "60m", "1h", "1hour", "60min"])
def test_a_section_that_was_delayed_for_hours_ran_alone(delay: str) -> None:
    first, later = points_of(
        entry("a", read=side(10_000), elapsed=3611),
        entry("b", write=side(5_000), rw="randwrite", startdelay=delay, elapsed=3611),
    )
    assert (first.job_id, first.metrics["iops"]) == ("randread-4k-qd32", 1000)
    assert (later.job_id, later.metrics["iops"]) == ("randwrite-4k-qd32", 500)
    assert later.started - first.started == 3600


def test_figures_that_differ_from_fios_own_are_found_again_by_the_export_for_fio_plot() -> None:
    verified = entry(read=side(5000, 2.5), write=side(10_000), rw="randwrite", verify="crc32c", job_runtime=12.5)
    starts = [(WRITTEN - 60) * 1000, (WRITTEN - 40) * 1000]
    apart = [entry(numjobs=2, read=side(10_000, 10), job_start=start) for start in starts]
    assert import_here("--host", file("1.json", verified), file("2.json", *apart)) == 0
    assert main(["export", "--fio-plot", "tree"]) == 0
    assert len(list(Path("tree").rglob("*.json"))) == 2


@pytest.mark.parametrize(
    ("options", "job_id"),
    [
        ({"rate_iops": "1k"}, "randread-4k-qd32-i1024"),
        ({"rate_iops": "500,"}, "randread-4k-qd32-i500"),
        ({"rate_iops": "500,200,100"}, "randread-4k-qd32-i500"),
        ({"rate_iops": ",200"}, "randread-4k-qd32"),
        ({"rate_iops": "1000", "rate": "2m,1m,1m"}, "randread-4k-qd32-i512"),
        ({"bs": "4k,64k"}, "randread-4k-qd32"),
        ({"bs": ",64k"}, "randread-4k-qd32"),
        ({"bs": "4k,,1m"}, "randread-4k-qd32"),
        ({"rw": "randread:8"}, "randread-4k-qd32"),
        ({"rw": "read:64k"}, "seqread-4k-qd32"),
    ],
)
def test_values_of_options_are_read_as_fio_reads_them(options: dict[str, Any], job_id: str) -> None:
    (point,) = points_of(entry(read=side(10_240), **options))
    assert point.job_id == job_id


def test_a_limit_and_a_block_size_are_those_of_the_direction() -> None:
    (writes,) = points_of(entry(write=side(2000, bs=8192), rw="randwrite", bs="4k,8k", rate_iops="500,200"))
    assert writes.job_id == "randwrite-8k-qd32-i200"
    assert "only jobs with one block size" in refusal(
        entry(read=side(10), write=side(10, bs=8192), rw="randrw", bs="4k,8k")
    )


def test_a_pattern_with_a_part_that_the_id_does_not_show_belongs_to_no_other_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain, runs = (entry(read=side(10_240), rw=rw) for rw in ("randread", "randread:8"))
    assert import_here("--host", file("a.json", plain), file("b.json", runs, written=WRITTEN + 60)) == 2
    assert "with different options of fio: none and rw=randread:8" in capsys.readouterr().err
