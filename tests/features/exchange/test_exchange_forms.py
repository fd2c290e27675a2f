"""The forms in which fio's output is found: encodings, quoting, several documents, and text instead of JSON.

`forms/fio-3.33-all.txt` is one call of fio with --output-format=normal,terse,json: all forms have the same results.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.errors import MeasurementError
from harness.features.exchange.reader import Point, read_points
from tests.features.exchange.exchanged import RECORDED, document, fio_file, import_here, imported

ALL_FORMS = (RECORDED / "forms" / "fio-3.33-all.txt").read_text()
_TERSE = "".join(line for line in ALL_FORMS.splitlines(keepends=True) if line.startswith("3;"))
_JSON = ALL_FORMS[ALL_FORMS.index("{") : ALL_FORMS.rindex("\n}") + 2]
_NORMAL = ALL_FORMS.replace(_TERSE, "").replace(_JSON, "")
_ONE = fio_file("3.33").read_text()


def points_of(text: str | bytes, name: str = "file") -> tuple[Point, ...]:
    return read_points(text.encode() if isinstance(text, str) else text, name)


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("text", [_ONE, _NORMAL])
def test_files_of_windows_are_read(text: str, ends: str, encoding: str) -> None:
    (first, *_) = points_of(text.replace("\n", ends).encode(encoding))
    assert first.metrics == points_of(text)[0].metrics


@pytest.mark.parametrize(
    "data", [_ONE.encode("utf-32"), b"\xff\xfe{\x00\x00", '{ "fio version": "\xe9"'.encode("latin-1")]
)
def test_an_encoding_that_is_not_known_is_an_error(data: bytes) -> None:
    with pytest.raises(MeasurementError, match=r"a\.json"):
        read_points(data, "a.json")


@pytest.mark.parametrize(
    "around",
    [
        lambda text: f"root@pve:~# fio --output-format=json x.fio\n{text}\nroot@pve:~# ",
        lambda text: f"Hello,\n\n```json\n{text}\n```\n",
        lambda text: re.sub("^", "> ", f"My disk:\n{text}\n", flags=re.MULTILINE),
        lambda text: re.sub("^", ">> ", text, flags=re.MULTILINE),
        lambda text: re.sub("^", "    ", text, flags=re.MULTILINE),
        lambda text: text.replace("  ", "\u00a0 "),
        lambda text: f"\x1b[32m{text}\x1b[0m",
    ],
)
@pytest.mark.parametrize("text", [_ONE, _NORMAL])
def test_what_a_terminal_or_a_forum_adds_does_not_matter(text: str, around: Callable[[str], str]) -> None:
    assert [point.metrics for point in points_of(around(text))] == [point.metrics for point in points_of(text)]


@pytest.mark.parametrize("formats", ["json,normal", "normal,json+", "json+,terse", "terse,json,normal"])
def test_further_formats_beside_the_json_are_noted_and_not_used(formats: str) -> None:
    arguments = ["--name=x", "--ioengine=null", "--size=4m", "--rw=randread", "--direct=1"]
    printed = subprocess.run(
        ["fio", f"--output-format={formats}", *arguments], check=True, capture_output=True, text=True
    ).stdout
    (point,) = points_of(printed)
    assert point.transferred.read == 4 << 20
    assert point.notes == ("the file also has fio's text output of the same jobs (--output-format), which is not used",)


def test_text_of_another_job_beside_the_json_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="text output of another job: sync"):
        points_of(_ONE + "\n" + _NORMAL.replace("small:", "randread:").replace("mix:", "randread:"))


@pytest.mark.parametrize("formats", ["terse,normal", "normal,terse"])
def test_of_normal_text_and_terse_lines_the_normal_text_is_used(formats: str) -> None:
    arguments = ["--name=x", "--ioengine=null", "--size=4m", "--rw=randread", "--iodepth=2"]
    printed = subprocess.run(
        ["fio", f"--output-format={formats}", *arguments], check=True, capture_output=True, text=True
    ).stdout
    (point,) = points_of(printed)
    assert (point.workload.rw, point.transferred.read) == ("randread", 4 << 20)
    assert any("terse output of the same jobs" in note for note in point.notes)
    with pytest.raises(MeasurementError, match="normal text and terse lines, but not of the same jobs: mix"):
        points_of(_NORMAL + "\n" + printed[printed.index("3;fio-") :].partition("\n")[0])


def test_a_status_interval_of_less_than_a_second_has_one_result_also_in_text() -> None:
    job = ["--name=x", "--ioengine=null", "--size=1g", "--rw=randread", "--time_based", "--rate_iops=1000"]
    printed = subprocess.run(
        ["fio", "--status-interval=500ms", "--runtime=2", *job], check=True, capture_output=True, text=True
    ).stdout
    (point,) = points_of(printed)
    assert point.seconds == pytest.approx(2, abs=0.1)
    assert any("results that fio printed during one call (--status-interval)" in note for note in point.notes)


def test_of_a_status_interval_the_last_result_counts_once() -> None:
    job = ["--name=x", "--ioengine=null", "--size=1g", "--rw=randread", "--time_based", "--rate_iops=1000"]
    printed = subprocess.run(
        ["fio", "--output-format=json", "--status-interval=1", "--ramp_time=1", "--runtime=3", *job],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    (point,) = points_of(printed)
    last = json.JSONDecoder().raw_decode(printed[printed.rindex('{\n  "fio version"') :])[0]["jobs"][0]["read"]
    assert (point.seconds, point.transferred.read) == (last["runtime"] / 1000, last["io_bytes"])
    assert any("results that fio printed during one call (--status-interval)" in note for note in point.notes)
    twice = points_of(printed + later(printed, 60_000))
    assert [each.transferred for each in twice] == [point.transferred] * 2


def later(printed: str, milliseconds: int) -> str:
    """The same output of fio at a later time."""
    return re.sub(r'("timestamp_ms"\s*:\s*)(\d+)', lambda found: f"{found[1]}{int(found[2]) + milliseconds}", printed)


def test_results_of_several_calls_in_a_file_are_several_in_their_order() -> None:
    found = document(fio_file("3.33"))
    more = json.loads(later(json.dumps(found), round(found["jobs"][0]["job_runtime"] * 1.1)))
    more["jobs"][0]["read"]["total_ios"] += 100
    more["jobs"][0]["read"]["io_bytes"] += 100 * 4096
    first, second = points_of(json.dumps(found) + "\n" + json.dumps(more))
    assert second.transferred.read == first.transferred.read + 100 * 4096
    assert first.started < second.started
    assert [each.transferred for each in points_of(json.dumps([found, more]))] == [
        first.transferred,
        second.transferred,
    ]


def test_the_same_result_twice_in_a_file_counts_once() -> None:
    (point,) = points_of(_ONE + _ONE)
    assert "the file has this result 2 times; it is used once" in point.notes


@pytest.mark.parametrize("end", range(3, 1000, 83))
def test_a_further_result_that_is_not_whole_is_an_error(end: int) -> None:
    with pytest.raises(MeasurementError, match=r"a\.json"):
        read_points((_ONE + _ONE[:end]).encode(), "a.json")


@pytest.mark.parametrize("version", ["fio-2.2.10", "fio-2.21", "fio-2.99"])
@pytest.mark.parametrize(
    "text",
    [
        '{{"fio version": "{}", "jobs": [{{"jobname": "a"}}]}}',
        "a: (g=0): rw=randread, bs=4K-4K/4K-4K/4K-4K, \n{}\n  read : io=39.1MB, bw=4000.4KB/s, iops=1000, runt=9\n",
        "3;{};a;0;0;" + "0;" * 130,
    ],
)
def test_an_old_version_is_named_with_the_ones_that_can_be_read(text: str, version: str) -> None:
    with pytest.raises(MeasurementError, match=version) as raised:
        points_of(text.format(version))
    assert "fio 3.16 or later (the output of 3.0 to 3.15 can also be read)" in str(raised.value)


@pytest.mark.parametrize(("version", "lacks"), [("3.1", ("bw_bytes", "job_runtime")), ("3.7", ("job_runtime",))])
def test_fields_that_early_versions_lack_are_computed(version: str, lacks: tuple[str, ...]) -> None:
    found: dict[str, Any] = document(fio_file("3.16")) | {"fio version": f"fio-{version}"}
    for part in (found["jobs"][0], found["jobs"][0]["read"], found["jobs"][0]["write"]):
        for name in lacks:
            part.pop(name, None)
    found["jobs"][0].pop("sync", None)
    (point,), (whole,) = points_of(json.dumps(found)), points_of(fio_file("3.16").read_bytes())
    assert point.version == f"fio-{version}"
    assert point.metrics == pytest.approx(whole.metrics, rel=1e-4)


def test_normal_text_has_the_figures_of_the_json_of_the_same_call() -> None:
    texts, wholes = points_of(_NORMAL), points_of(_JSON)
    assert [point.job_id for point in texts] == [point.job_id for point in wholes]
    for text, whole in zip(texts, wholes, strict=True):
        assert text.metrics["iops"] == pytest.approx(whole.metrics["iops"])
        assert text.transferred == whole.transferred
        assert text.metrics == pytest.approx({name: whole.metrics[name] for name in text.metrics}, rel=1e-3)
        assert text.metrics.keys() == whole.metrics.keys()
        assert text.own_percentiles == pytest.approx(whole.own_percentiles, rel=0.02)
        assert text.options["ioengine"] == whole.options["ioengine"]


def test_percentiles_of_normal_text_may_be_whole_numbers() -> None:
    # With percentile_list=50:99, fio prints " 50th=[ 2343]", and else " 50.00th=[ 2343]".
    whole = re.sub(r"(?<=[0-9])\.00th=", "th=", _NORMAL)
    assert whole != _NORMAL
    for with_fraction, without in zip(points_of(_NORMAL), points_of(whole), strict=True):
        assert without.own_percentiles == with_fraction.own_percentiles
    assert any(point.own_percentiles for point in points_of(whole))


def test_terse_output_has_the_figures_of_the_json_of_the_same_call() -> None:
    named = _TERSE.replace(";mix;", ";randrw;")
    reads, mixed = named.splitlines(keepends=True)[:1], named.splitlines(keepends=True)[1:3]
    texts, wholes = points_of("".join((*reads, *mixed))), points_of(_JSON)
    assert [point.job_id for point in texts] == [point.job_id for point in wholes[:2]]
    for text, whole in zip(texts, wholes[:2], strict=True):
        assert text.transferred.read == pytest.approx(whole.transferred.read, rel=0.01)
        assert text.metrics == pytest.approx({name: whole.metrics[name] for name in text.metrics}, rel=0.01)


@pytest.mark.parametrize("version", [4, 5])
def test_terse_versions_have_their_fields_at_other_places(version: int) -> None:
    data = (RECORDED / "forms" / f"terse-{version}.txt").read_bytes()
    assert [point.job_id for point in points_of(data)] == ["randread-4k-qd8", "randrw-64k-qd4-nj2-r70"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("randread", "job1"), "whether I/O was random or sequential"),
        (("100.0%;0.0%;0.0%;0.0%", "40.0%;60.0%;0.0%;0.0%"), "iodepth and numjobs are not in terse output"),
        ((";fio-3.33;randread;0;0;", ";fio-3.33;rand;read;0;0;"), "a name with `;` shifts them"),
    ],
)
def test_terse_output_that_does_not_tell_the_job_is_an_error(change: tuple[str, str], reason: str) -> None:
    line = (RECORDED / "forms" / "terse-5.txt").read_text().splitlines()[0]
    with pytest.raises(MeasurementError, match=r"job|line") as raised:
        points_of(line.replace(*change))
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("places", "same"),
    [
        (("/mnt/t/fio-randread", "/mnt/t/fio-randwrite"), True),
        (("D\\:\\fio\\read.dat", "D\\:\\fio\\write.dat"), True),
        (("D\\:\\read.dat", "E\\:\\read.dat"), False),
        (("/mnt/t/", "/mnt/t/file"), True),
        (("/mnt/a/file", "/mnt/b/file"), False),
        (("/mnt/a/", "/mnt/b/"), False),
        (("/dev/sda", "/dev/sdb"), False),
        (("/dev/mapper/vg-a", "/dev/mapper/vg-b"), False),
        (("/dev/sda:/dev/sdb", "/dev/sdb:/dev/sda"), True),
        (("/dev/shm/a", "/dev/shm/b"), True),
        (("\\\\.\\PhysicalDrive1", "\\\\.\\PhysicalDrive2"), False),
        (("one", "./two"), True),
    ],
)
def test_files_of_one_directory_are_on_one_disk_and_devices_are_not(places: tuple[str, str], same: bool) -> None:
    found = document(fio_file("3.33"))
    for name, place in zip(("first.json", "second.json"), places, strict=True):
        found["jobs"][0]["job options"]["filename"] = place
        found["timestamp_ms"] += 60_000
        Path(name).write_text(json.dumps(found))
    assert import_here("--host", "first.json", "second.json") == (0 if same else 2)


def test_results_of_text_say_what_they_lack() -> None:
    Path("host.txt").write_text(_NORMAL)
    Path("guest.txt").write_text(_NORMAL.replace("\n", "\r\n"))
    assert import_here("--host", "host.txt", "--guest", "vm=guest.txt") == 0
    notes = "\n".join(imported().read_results().cell("imported-vm-randread-4k-qd8").notes)
    assert "guest:vm: read from fio's normal text: there are no histograms; whether I/O was direct" in notes
    assert "fio did not use direct I/O" not in notes, "it is not known"
    assert "host and guest differ in" not in notes


def test_digits_of_iops_are_used_only_without_the_number_of_ios() -> None:
    short = "\n".join(line for line in _NORMAL.splitlines() if "issued rwts" not in line)
    first, whole = points_of(short)[0], points_of(_NORMAL)[0]
    assert first.metrics["iops"] == pytest.approx(whole.metrics["iops"], rel=0.01)
    assert any("`issued rwts` is missing" in note for note in first.notes)
    assert not any("`issued rwts` is missing" in note for note in whole.notes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("randread: (g=0)", "other: (g=0)"), "its line with rw=, bs= and iodepth= is missing"),
        (("  write: IOPS", "  IOPS"), "the result of job mix is not whole"),
        (("ioengine=libaio, iodepth=8", "ioengine=libaio"), "its line with rw=, bs= and iodepth= is missing"),
        (("err= 0", "err= 5 (file:io_u.c:1803, error=Input/output error)"), "failed with error 5"),
        (("  read: IOPS", "  mixed: IOPS"), "unified_rw_reporting"),
        (("bs=(R) 4096B-4096B", "bs=(R) 4096B-64.0KiB"), "only jobs with one block size"),
        (("small: (g=3)", "second: (g=3)"), "its line with rw=, bs= and iodepth= is missing"),
        (("sync: (g=2)", "small: (g=3): rw=read, bs=(R) 4096B-4096B, ioengine=sync, iodepth=1\nsync: (g=2)"), "name"),
        (("sync: (g=2)", "two: (g=3): rw=read, bs=(R) 4096B-4096B, ioengine=sync, iodepth=1\nsync: (g=2)"), "together"),
    ],
)
def test_text_that_is_not_a_whole_result_of_a_job_is_an_error(change: tuple[str, str], reason: str) -> None:
    with pytest.raises(MeasurementError, match="file") as raised:
        points_of(_NORMAL.replace(*change))
    assert reason in str(raised.value)


@pytest.mark.parametrize("text", [_NORMAL, _TERSE.replace(";mix;", ";randrw;"), _ONE])
def test_damaged_text_is_an_error_and_never_a_traceback(text: str) -> None:
    changes = random.Random(32)
    for _ in range(150):
        data = bytearray(text.encode())
        for _ in range(changes.choice((1, 5, 50))):
            at = changes.randrange(len(data))
            if changes.random() < 0.5:
                data[at] = changes.choice(b"0123456789.;:%=-,()[]{}\n\r |kMei\x00\xff")
            else:
                del data[at : at + changes.randrange(200)]
                data = data or bytearray(b"x")
        with suppress(MeasurementError):
            points_of(bytes(data))


def test_text_may_end_after_the_number_of_ios_but_not_before() -> None:
    begin, number, end = _NORMAL.rpartition("     issued rwts")
    assert len(points_of(begin + number + end.partition("\n")[0])) == 4
    for text in (begin, begin[: begin.index("     issued rwts")]):
        with pytest.raises(MeasurementError, match=r"the result of job \w+ is not whole"):
            points_of(text)


@pytest.mark.parametrize("version", ["fio-3.1", "fio-3.41-12-gabcdef"])
def test_early_versions_print_three_numbers_of_ios(version: str) -> None:
    issued = re.compile(r"issued rwts: total=([0-9]+,[0-9]+,[0-9]+),.*")
    text = issued.sub(r"issued rwt: total=\1, short=0,0,0, dropped=0,0,0", _NORMAL).replace("fio-3.33", version)
    text = text.replace("  read: IOPS", "   read: IOPS").replace("; 0 zone resets", "")
    assert [point.metrics for point in points_of(text)] == [point.metrics for point in points_of(_NORMAL)]
    assert points_of(text)[0].version == version


def test_several_outputs_in_one_log_are_several_results() -> None:
    second = _NORMAL.replace(" 2026\n", " 2027\n")
    log = f"# fio small.fio\n{_NORMAL}\n# fio small.fio\n{second}"
    assert [point.job_id for point in points_of(log)] == [point.job_id for point in points_of(_NORMAL)] * 2


def test_reads_of_a_job_that_writes_are_not_added_to_its_writes() -> None:
    reads = re.search(r"^  read: IOPS.*$", _NORMAL, re.MULTILINE)
    assert reads is not None
    at = _NORMAL.index("  write: IOPS", _NORMAL.index("sync: (groupid=2"))
    with pytest.raises(MeasurementError, match="job sync"):
        points_of(f"{_NORMAL[:at]}{reads[0]}\n{_NORMAL[at:]}")


def test_documents_whose_keys_another_program_sorted_are_read() -> None:
    found = document(fio_file("3.33"))
    more = json.loads(later(json.dumps(found), 3_600_000))
    text = "\n".join(json.dumps(each, sort_keys=True, indent=2) for each in (found, more))
    assert [point.metrics for point in points_of(text)] == [points_of(_ONE)[0].metrics] * 2


def test_a_field_that_an_early_version_lacks_is_named_with_the_version() -> None:
    found = document(fio_file("3.16")) | {"fio version": "fio-3.1"}
    del found["jobs"][0]["read"]["clat_ns"]
    with pytest.raises(MeasurementError, match=r"fio-3\.1\) cannot be read: read\.clat_ns") as raised:
        points_of(json.dumps(found))
    assert raised.value.hint == "measure with fio 3.16 or later (the output of 3.0 to 3.15 can also be read)"
