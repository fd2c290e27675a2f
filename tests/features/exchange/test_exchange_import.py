"""`virt-overhead import`: recorded outputs of several versions of fio become a run, and bad files a clear message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import MeasurementError
from harness.features.exchange.reader import Point, read_points
from harness.model.attach import Unknown
from tests.features.exchange.exchanged import (
    BENCH_FIO,
    VERSIONS,
    document,
    fio_file,
    import_bench_fio,
    import_here,
    imported,
)
from tests.unit.transport_servers import small_filesystem

SIX_MINUTES_LATER = 360_000
LVM = "imported-lvm-randread-4k-qd4"


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def points_of(name: str) -> tuple[Point, ...]:
    return read_points(fio_file(name).read_bytes(), name)


def changed(name: str, to: str, **keys: object) -> Path:
    """A copy of a recorded file with other values of the document or, for other names, of its job's options."""
    found = document(fio_file(name))
    for key, value in keys.items():
        (found if key in found else found["jobs"][0]["job options"])[key] = value
    Path(to).write_text(json.dumps(found))
    return Path(to)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("form", ["", "-plus"])
def test_the_figures_are_those_that_fio_printed(version: str, form: str) -> None:
    (point,) = points_of(f"{version}{form}")
    side = document(fio_file(f"{version}{form}"))["jobs"][0]["read"]
    assert (point.version, point.job_id) == (f"fio-{version}", "randread-4k-qd4")
    assert point.metrics["iops"] == pytest.approx(side["iops"])
    assert point.metrics["bw"] == side["bw_bytes"]
    assert point.metrics["lat_mean"] == pytest.approx(side["lat_ns"]["mean"] / 1e9)
    assert point.seconds == side["runtime"] / 1000
    own = side["clat_ns"]["percentile"]
    percentiles = point.metrics if form else point.own_percentiles
    assert percentiles["clat_p99"] == pytest.approx(own["99.000000"] / 1e9)
    assert sum(point.histogram.values()) == (side["total_ios"] if form else 0)


@pytest.mark.parametrize("version", ["3.16", "3.41"])
def test_processes_of_a_job_are_one_result_and_stonewalled_jobs_are_several(version: str) -> None:
    reads, mixed = points_of(f"{version}-two-jobs")
    entries = document(fio_file(f"{version}-two-jobs"))["jobs"]
    assert (reads.job_id, mixed.job_id) == ("randread-4k-qd2-nj2", "randrw-8k-qd4-r70")
    assert reads.metrics["iops"] == pytest.approx(sum(each["read"]["iops"] for each in entries[:2]))
    assert mixed.metrics["iops"] == pytest.approx(sum(entries[2][side]["iops"] for side in ("read", "write")))
    assert reads.own_percentiles == {}, "the percentiles of two processes cannot be merged"


def test_a_result_is_older_than_its_file_by_the_time_that_it_took() -> None:
    (old,), (new,) = points_of("3.16"), points_of("3.41")
    first, last = document(fio_file("3.16")), document(fio_file("3.41"))
    assert old.started == pytest.approx((first["timestamp_ms"] - first["jobs"][0]["job_runtime"]) / 1000)
    assert new.started == last["jobs"][0]["job_start"] / 1000


def test_sections_that_ran_at_the_same_time_are_one_job_with_their_sum() -> None:
    (point,) = points_of("3.36-together")
    entries = document(fio_file("3.36-together"))["jobs"]
    assert point.job_id == "one-and-two"
    assert point.metrics["iops"] == pytest.approx(sum(entry["read"]["iops"] for entry in entries))
    assert point.notes == ("sections one and two ran at the same time: one job, with the sum of their I/Os",)


def test_a_tree_of_bench_fio_becomes_a_run_with_a_report() -> None:
    run = import_bench_fio()
    assert [cell.id for cell in run.cells] == [
        "imported-host-randread-4k-qd8-nj2",
        "imported-lvm-randread-4k-qd8-nj2",
        "imported-host-randrw-4k-qd8-nj2-r70",
        "imported-lvm-randrw-4k-qd8-nj2-r70",
    ]
    cell = run.cell("imported-lvm-randread-4k-qd8-nj2")
    files = [BENCH_FIO / arm / n / "test.dat/4k/randread-8-2.json" for arm in ("host", "guest") for n in ("1", "2")]
    iops = [
        sum(side["total_ios"] for side in sides) * 1000 / max(side["runtime"] for side in sides)
        for sides in ([entry["read"] for entry in document(file)["jobs"]] for file in files)
    ]
    assert [*cell.metrics["iops"].host, *cell.metrics["iops"].guest] == pytest.approx(iops)
    overhead = cell.metrics["iops"].overhead
    assert overhead is not None
    assert (overhead.n, overhead.low is None) == (2, False)
    assert cell.mode_detail.attach == Unknown()
    page = (imported().path / "index.html").read_text()
    assert "Host and guest were not measured in alternation." in page
    assert "neither the bytes nor the configuration of the guest were checked" in page


def test_results_are_paired_in_the_order_of_time_whatever_the_order_of_the_files() -> None:
    first, second = (BENCH_FIO / "host" / n / "test.dat/4k/randread-8-2.json" for n in ("1", "2"))
    assert document(first)["timestamp_ms"] < document(second)["timestamp_ms"]
    assert import_here("--host", second, first) == 0
    cell = imported().read_results().cell("imported-host-randread-4k-qd8-nj2")
    iops = [sum(each["read"]["iops"] for each in document(file)["jobs"]) for file in (first, second)]
    assert cell.metrics["iops"].host == pytest.approx(iops)


def test_the_run_has_a_copy_of_each_file_and_says_where_it_is_from() -> None:
    run = import_bench_fio()
    store = imported()
    origin = run.provenance["imported"]
    assert isinstance(origin, dict)
    assert len(origin) == 8
    for raw, about in origin.items():
        assert isinstance(about, dict)
        assert (store.path / raw).read_bytes() == Path(str(about["from"])).read_bytes()
    journal = store.read_journal()
    assert {each.raw for each in journal.measurements} == origin.keys()
    assert journal.whole(run.groups[0].id) == {1, 2}


def test_a_single_file_of_each_gives_no_interval_and_has_fios_own_percentiles() -> None:
    assert import_here("--host", fio_file("3.28"), "--guest", f"lvm={fio_file('3.33')}") == 0
    cell = imported().read_results().cell(LVM)
    overhead = cell.metrics["clat_p99"].overhead
    assert overhead is not None
    assert (overhead.n, overhead.low) == (1, None)
    own = document(fio_file("3.28"))["jobs"][0]["read"]["clat_ns"]["percentile"]
    assert cell.metrics["clat_p99"].host == pytest.approx([own["99.000000"] / 1e9])
    assert any("as fio printed, without a histogram" in note for note in cell.notes)


def test_percentiles_of_several_files_without_histograms_are_not_averaged() -> None:
    later = changed("3.36", "later.json", timestamp_ms=document(fio_file("3.36"))["timestamp_ms"] + SIX_MINUTES_LATER)
    assert import_here("--host", fio_file("3.36"), later, "--guest", f"lvm={fio_file('3.36-plus')}") == 0
    cell = imported().read_results().cell(LVM)
    assert "clat_p99" not in cell.metrics
    assert any(note.startswith("host: no percentiles, because fio's output has no histograms") for note in cell.notes)


def test_a_copy_of_a_file_is_no_further_sample(capsys: pytest.CaptureFixture[str]) -> None:
    later = changed("3.36", "later.json", timestamp_ms=document(fio_file("3.36"))["timestamp_ms"] + SIX_MINUTES_LATER)
    for name, original in (("copy.json", fio_file("3.36")), ("again.json", later)):
        Path(name).write_bytes(original.read_bytes())
    assert import_here("--host", fio_file("3.36"), "copy.json", "--guest", f"lvm={later}", "again.json") == 0
    assert (
        "left out: again.json has the content of later.json, and a copy is not another measurement"
        in capsys.readouterr().out
    )
    cell = imported().read_results().cell(LVM)
    assert len(cell.metrics["iops"].host) == len(cell.metrics["iops"].guest) == 1
    assert "copy.json" in str(imported().read_results().provenance["imported"])


def test_a_guest_with_the_result_of_its_host_has_a_note() -> None:
    Path("guest.json").write_bytes(fio_file("3.33").read_bytes())
    assert import_here("--host", fio_file("3.33"), "--guest", "lvm=guest.json") == 0
    notes = imported().read_results().cell(LVM).notes
    assert any(note.startswith("host and guest have the same result, so one is a copy") for note in notes)


def test_histograms_give_percentiles_for_any_number_of_files() -> None:
    plus = [fio_file(f"{version}-plus") for version in ("3.28", "3.33")]
    assert import_here("--host", *plus, "--guest", f"lvm={fio_file('3.36-plus')}", fio_file("3.41-plus")) == 0
    cell = imported().read_results().cell(LVM)
    assert len(cell.metrics["clat_p99"].host) == len(cell.metrics["clat_p99"].guest) == 2
    assert set(cell.metrics["clat_p99"].pooled) == {"host", "guest"}


def test_what_differs_between_host_and_guest_is_a_note() -> None:
    assert import_here("--host", fio_file("3.28"), fio_file("3.33"), "--guest", f"lvm={fio_file('3.36-warned')}") == 0
    notes = "\n".join(imported().read_results().cell(LVM).notes)
    assert "2 results of the host and 1 of the guest: only the first 1 of each, in the order of time" in notes
    assert "host and guest differ in fio version (fio-3.28 or fio-3.33 / fio-3.36), ioengine (libaio / psync)" in notes
    assert "guest:lvm: fio printed: note: both iodepth >= 1 and synchronous I/O engine are selected" in notes


def test_options_that_the_id_of_a_job_does_not_show_are_a_note() -> None:
    slow = changed("3.36", "slow.json", thinktime="100", direct="0")
    assert import_here("--host", fio_file("3.36"), "--guest", f"lvm={slow}") == 0
    notes = imported().read_results().cell(LVM).notes
    assert "guest:lvm: fio ran the job with further options: thinktime=100" in notes
    assert "guest:lvm: fio did not use direct I/O (direct=1), so a page cache may have served it" in notes


def test_latencies_that_fio_did_not_measure_are_left_out() -> None:
    found = document(fio_file("3.41"))
    for name in ("slat_ns", "clat_ns", "lat_ns"):
        found["jobs"][0]["read"][name] = {"min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0}
    Path("reduced.json").write_text(json.dumps(found))
    assert import_here("--host", fio_file("3.36"), "--guest", "lvm=reduced.json") == 0
    cell = imported().read_results().cell(LVM)
    assert cell.metrics.keys() == {"iops", "bw"}
    assert "guest:lvm: fio measured no latencies" in cell.notes
    assert all(check.ok for check in cell.validity)


def test_a_job_that_an_arm_lacks_is_skipped_with_the_reason() -> None:
    hosts = fio_file("3.41"), fio_file("3.41-two-jobs")
    assert import_here("--host", *hosts, "--guest", f"raw={fio_file('3.36')}") == 0
    cell = imported().read_results().cell("imported-raw-randrw-8k-qd4-r70")
    assert cell.skipped == "no file of guest:raw has this job"


@pytest.mark.parametrize(
    ("hardware", "why"),
    [
        ((), "virt-overhead did not examine the lab"),
        (("--hardware", "Xeon, Optane 900P"), "stated at the import: Xeon, Optane 900P"),
    ],
)
def test_the_report_says_what_is_known_of_the_hardware(hardware: tuple[str, ...], why: str) -> None:
    assert import_here("--host", fio_file("3.41"), *hardware) == 0
    assert imported().read_results().lab.representative == bool(hardware)
    assert why in (imported().path / "index.html").read_text()


BAD = {
    "truncated.json": (fio_file("3.28").read_bytes()[:2000], "Unterminated string"),
    "empty.json": (b"", "it is empty"),
    "message.json": (b"fio: pid=0, err=2/file:filesetup.c:174, func=open\n", "has no result of fio: fio: pid=0"),
    "binary.json": (b"\xff\xfd{\x00", "is not text in UTF-8 or UTF-16"),
    "more.json": (fio_file("3.28").read_bytes() + b"\n{\n", "may be a further one, and is not whole"),
    "other.json": (b'{"results": 1}', "fio version"),
    "old.json": (b'{"fio version": "fio-2.21", "timestamp_ms": 1, "jobs": [{}]}', "measure with fio 3.16 or later"),
    "client.json": (b'{"fio version": "fio-3.41", "client_stats": []}', "client_stats"),
    "failed.json": (fio_file("3.41").read_bytes().replace(b'"error" : 0', b'"error" : 5'), "failed with error 5"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_with_the_reason(name: str) -> None:
    content, reason = BAD[name]
    with pytest.raises(MeasurementError, match=name) as raised:
        read_points(content, name)
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("key", "value"), [("mean", 1e308), ("runtime", 0), ("runtime", 1 << 60), ("job_runtime", 1 << 60)]
)
def test_impossible_numbers_are_refused(key: str, value: float) -> None:
    found = document(fio_file("3.28"))
    for place in (found["jobs"][0], found["jobs"][0]["read"], found["jobs"][0]["read"]["lat_ns"]):
        if key in place:
            place[key] = value
    contradicted = r"file\.json: job randread: .*( is impossible|mean = 1e\+308, but min = )"
    with pytest.raises(MeasurementError, match=contradicted):
        read_points(json.dumps(found).encode(), "file.json")


def test_all_bad_files_are_named_at_once_and_nothing_is_imported(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("truncated.json", "empty.json"):
        Path(name).write_bytes(BAD[name][0])
    assert import_here("--host", fio_file("3.41"), "truncated.json", "empty.json") == 1
    message = capsys.readouterr().err
    assert "2 of 3 files cannot be imported, so nothing was imported" in message
    assert "truncated.json cannot be read" in message
    assert "empty.json has no result of fio: it is empty" in message
    assert not Path("reports").exists()


def test_keep_going_imports_the_other_files_and_stores_the_bad_ones_too(capsys: pytest.CaptureFixture[str]) -> None:
    Path("truncated.json").write_bytes(BAD["truncated.json"][0])
    assert import_here("--keep-going", "--host", fio_file("3.41"), "truncated.json") == 0
    assert "left out: truncated.json cannot be read" in capsys.readouterr().out
    store = imported()
    assert (store.path / "raw/left-out-host-truncated.json").read_bytes() == BAD["truncated.json"][0]
    assert "Left out, because they cannot be read: truncated.json." in (store.path / "index.html").read_text()


@pytest.mark.parametrize(
    ("option", "value", "key"),
    [
        ("rw", "trim", 'rw = "trim"'),
        ("bs", "some", 'bs = "some"'),
        ("bssplit", "4k/50:8k/50", "bssplit"),
        ("bs", "8k", "bs = 8192, but its I/Os have 4096 bytes on average"),
        ("iodepth", "many", 'iodepth = "many"'),
        ("numjobs", "4", "numjobs = 4, but there are 2 results"),
        ("rate_iops", "many", 'rate_iops = "many"'),
    ],
)
def test_a_job_that_cannot_be_imported_is_named_with_its_key(option: str, value: str, key: str) -> None:
    found = document(fio_file("3.41-two-jobs"))
    for entry in found["jobs"]:
        entry["job options"][option] = value
    with pytest.raises(MeasurementError, match="job reads") as raised:
        read_points(json.dumps(found).encode(), "file.json")
    assert key in str(raised.value)


def test_an_import_that_fails_on_a_full_disk_leaves_nothing_and_latest_on_the_last_whole_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("reports").mkdir()
    with small_filesystem(Path("reports")):
        import_here("--host", fio_file("3.41"), "--guest", f"lvm={fio_file('3.36')}")  # There is no room for its page.
        whole = imported().path
        assert imported().read_results().run.status == "complete"
        capsys.readouterr()
        with pytest.raises(OSError, match="No space left"):
            Path("reports/filler").write_bytes(bytes(1 << 20))
        assert import_here("--host", fio_file("3.28-plus"), "--guest", f"lvm={fio_file('3.33-plus')}") == 1
        assert "cannot be written: No space left on device" in capsys.readouterr().err
        assert imported().path == whole
        assert {path.name for path in Path("reports").iterdir()} == {whole.name, "latest", "filler"}


def test_an_import_that_cannot_become_the_latest_run_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("reports").mkdir()
    Path("reports/latest").write_text("a file")
    assert import_here("--host", fio_file("3.41")) == 1
    assert "reports/latest is not a link, so it cannot point to this run" in capsys.readouterr().err
    assert [path.name for path in Path("reports").iterdir()] == ["latest"]


def test_files_that_do_not_belong_together_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = fio_file("3.41"), changed("3.41", "other.json", filename="/dev/sdb")
    slow = changed("3.41", "slow.json", thinktime="100")
    Path("none").mkdir()
    for arguments, reason in (
        (("--host", one, other), "host has files of several disks: test.dat"),
        (("--host", one, slow), "with different options of fio: none and thinktime=100"),
        (("--host", one, "--guest", f"lvm={one}"), "is given twice: for host and for guest:lvm"),
        (("--host", one, "--guest", f"lvm={fio_file('3.41-two-jobs')}"), "have no job in common"),
        (("--host", "missing"), "missing does not exist"),
        (("--host", "none"), "none has no file whose name ends in .json"),
        (("--host", one, "--guest", one), "it must be NAME=PATH"),
        (("--host", one, "--guest", "host=none"), "this name is for the host itself"),
        (("--host", one, "--guest", "a/b=none"), "not a valid name"),
    ):
        assert import_here(*arguments) == 2, arguments
        assert reason in capsys.readouterr().err
    assert not Path("reports").exists()
