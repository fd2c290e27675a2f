"""Buffered jobs: through the page cache, which is empty before each slice, with a read-ahead that is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from harness.features.filesystem import annotate
from harness.features.filesystem.report import REPORT
from harness.features.filesystem.volumes import read_read_aheads, set_read_ahead
from harness.layout import BlockSource
from harness.layout.build import Layouts
from harness.measure.fio import Target, TimedSection, job_file
from harness.measure.phases import Pauses
from harness.model.attach import Attach
from harness.model.job import Job, parse_workload
from harness.model.layout import Lvm, RawFile
from harness.model.mode import Arm, Cell, Mode, Place
from harness.model.option import Effective
from harness.model.workloads import parse_workloads
from harness.report.html import render_html
from harness.report.markdown import markdown_table
from harness.report.terminal import difference_lines
from harness.results.byte_counts import ReadAhead, check_bytes
from tests.build import build_measurement, synthetic_run
from tests.unit.granted import granted
from tests.unit.loop_disks import RUNNER, loop, require, sparse
from tests.unit.test_scenario_load import complaint, load

KIB, MIB = 1024, 1024**2
READ = parse_workload("seqread-64k-buffered").job(1, ramp=0, seconds=0.25)
WRITE = parse_workloads("wal-buffered")[0].job(1, ramp=0, seconds=0.25)
FILE = """
title = "Read-ahead"
modes = ["host", "own"]
workloads = ["seqread-64k-buffered", "wal-buffered"]
write_rate = "1 GiB/s"

[mode.own]
layout = { kind = "lvm" }
attach = {}
read_ahead_kb = [128, 4096]
"""


def lines_of(job: Job, *, invalidate: bool = True, warm: bool = False) -> list[str]:
    target = Target("/dev/sdx", 0, MIB, direct=True, invalidate=invalidate, warm=warm)
    section = TimedSection("1", job, target)
    return job_file([section], 1).split("[1]")[1].splitlines()


def test_fio_goes_through_an_empty_page_cache_without_a_hint() -> None:
    lines = lines_of(READ)
    assert {"direct=0", "invalidate=1", "ioengine=psync", "fadvise_hint=0", "iodepth=1"} <= set(lines)
    assert "ioengine=libaio" not in lines
    # A cached mode elsewhere in the run does not leave it a warm cache, unless the job is to have one.
    assert "invalidate=1" in lines_of(READ, invalidate=False)
    assert "invalidate=0" in lines_of(READ, warm=True)


def test_other_jobs_have_the_same_job_file_as_before() -> None:
    lines = lines_of(parse_workload("seqread-64k").job(1, ramp=0, seconds=0.25))
    assert {"direct=1", "invalidate=1"} <= set(lines)
    assert not any(line.startswith(("ioengine", "fadvise_hint")) for line in lines)
    record = TypeAdapter(Job).dump_python(parse_workload("seqread-64k").job(1, ramp=0, seconds=0.25))
    assert "buffered" not in record
    assert "read_ahead_kb" not in TypeAdapter(Attach).dump_python(Attach())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seqwrite-1m-buffered", "buffered writes end in memory"),
        ("randrw-4k-r50-buffered", "buffered writes end in memory"),
        ("randtrim-4k-buffered", "are for reads and writes"),
        ("seqread-1m-buffered-nj2", "not a workload"),
    ],
)
def test_what_would_measure_memory_is_not_a_workload(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_workload(text)


def test_a_buffered_job_has_one_request_in_flight_and_its_name_says_what_it_is() -> None:
    assert READ.id == "seqread-64k-qd1-buffered"
    assert parse_workload("randread-4k-nj4-i1000-buffered").name == "randread-4k-nj4-i1000-buffered"
    assert (WRITE.id, WRITE.syncs, WRITE.buffered, WRITE.reads_ahead) == ("wal-buffered", True, True, False)


def ahead_of(guest: int, disk: int | None = None, host: int | None = None) -> ReadAhead:
    shown = Effective(guest_read_ahead_kb=guest, disk_read_ahead_kb=disk, host_read_ahead_kb=host)
    bare, volume = (READ.count_ahead(size) for size in shown.read_ahead)
    return ReadAhead(bare, volume, 64 * MIB)


@pytest.mark.parametrize(("ahead", "more", "ok"), [(4096, 8, True), (128, 8, False), (4096, 16, False)])
def test_the_kernel_may_have_read_two_windows_ahead_and_not_more(ahead: int, more: int, *, ok: bool) -> None:
    counts = {"fio_read": 20e6, "disk_read": 20e6 + more * MIB}
    slice_ = build_measurement("guest:own", job=READ, counts=counts)
    (check,) = check_bytes([slice_], 64 * KIB, ahead=ahead_of(ahead, host=64))
    assert check.ok is ok, check.detail


@pytest.mark.parametrize(("ahead", "ok"), [(9 * MIB, True), (0, False)])
def test_qemu_counts_what_was_read_ahead_of_all_jobs_of_the_arm(ahead: int, *, ok: bool) -> None:
    moved = {"fio_read": 1e6, "disk_read": 1e6, "qemu_read": 1e6 + 9 * MIB}
    slice_ = build_measurement("guest:own", job="randread-4k-qd1", counts=moved)
    arm = slice_.counters.arm
    assert arm is not None
    slice_ = replace(slice_, counters=replace(slice_.counters, arm=replace(arm, ahead=ahead)))
    (check,) = check_bytes([slice_], 4 * KIB)
    assert check.ok is ok, check.detail


@pytest.mark.parametrize(("more", "ok"), [(1.5, True), (4, False)])
def test_a_disk_is_read_beyond_the_region_each_time_that_a_job_begins_again(more: float, *, ok: bool) -> None:
    read = 256 * MIB
    counts = {"fio_read": read, "disk_read": read * 1.02 + more * MIB}
    slice_ = build_measurement("host", job=READ, counts=counts)
    (check,) = check_bytes([slice_], 0, ahead=ahead_of(4096, disk=128))
    assert check.ok is ok, check.detail


def test_a_guest_whose_own_cache_served_reads_is_void_whatever_its_read_ahead_is() -> None:
    slice_ = build_measurement("guest:own", job=READ, counts={"fio_read": 20e6, "disk_read": 19e6, "qemu_read": 19e6})
    (check,) = check_bytes([slice_], 64 * KIB, ahead=ahead_of(4096))
    assert not check.ok
    assert "the guest's own cache served the rest" in check.detail


def test_the_pause_after_a_buffered_read_has_time_for_what_is_read_ahead() -> None:
    direct = parse_workload("seqread-64k").job(1, ramp=0, seconds=0.25)
    reading, writing, other = (Pauses().after(job, in_guest=True, rotational=False) for job in (READ, WRITE, direct))
    assert reading == pytest.approx(other + 0.1)
    assert writing == pytest.approx(other)


def test_each_size_of_a_read_ahead_is_a_mode_that_is_compared_with_the_first(tmp_path: Path) -> None:
    host, first, other = load(tmp_path, FILE).modes
    assert [mode.name for mode in (host, first, other)] == ["host", "own-ra128", "own-ra4096"]
    assert (first.against, other.against) == (None, first)
    assert other.expected.guest_read_ahead_kb == 4096
    assert Cell("d", "d", other, READ).by_role[Place.AGAINST] == Arm(Place.GUEST, first)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("[128, 4096]", "[128]", "own.read_ahead_kb"),
        ("[128, 4096]", "[128, 130]", "own.read_ahead_kb"),
        ("[128, 4096]", "[128, 128]", "has a size twice"),
        ("attach = {}", "attach = { read_ahead_kb = 64 }", "conflicts with attach.read_ahead_kb = 64"),
        ("attach = {}", "attach = {}\nguests = 2", "conflicts with guests"),
        ('"own"]', '"own", "raw-cached"]', "which is cached: a kernel forgets what it has read of a device"),
        ("attach = {}", 'attach = {}\ncached = true\nfilesystem = "xfs"', "which is cached: each write is flushed"),
    ],
)
def test_what_a_read_ahead_cannot_have_is_refused(before: str, after: str, said: str, tmp_path: Path) -> None:
    lines = complaint(tmp_path, FILE.replace(before, after))
    assert any(said in line for line in lines), lines


def test_a_volume_of_the_twin_with_a_setting_of_its_own_reads_as_far_ahead_as_the_guest(tmp_path: Path) -> None:
    require("blockdev")
    file = sparse(tmp_path / "disk", MIB)
    with loop(file) as device, loop(sparse(tmp_path / "bare", MIB)) as bare:
        sources = [BlockSource(path, "block", 0, MIB, grant=granted(path)) for path in (bare, device)]
        mode = Mode("own", Lvm(), Attach(read_ahead_kb=512))
        set_read_ahead(Layouts(sources[0], {"own": sources[1]}, MIB, "sdx"), mode, 512)
        shown = read_read_aheads(RUNNER, [bare, device, "/proc/self"])
        assert shown[device] == 512
        assert shown[bare] == int(Path(f"/sys/class/block/{Path(bare).name}/queue/read_ahead_kb").read_text()) != 512
        assert shown["/proc/self"] is None
    in_file = BlockSource(str(file), "file", 0, MIB, grant=granted(str(file)))
    set_read_ahead(Layouts(in_file, {"own": in_file}, MIB, "sdx"), Mode("own", RawFile(), Attach()), 512)


def test_the_report_has_the_factor_with_its_interval(tmp_path: Path) -> None:
    run = synthetic_run(scenario=load(tmp_path, FILE))
    ahead = "guest_read_ahead_kb 128 -> 4096"
    cells = tuple(replace(cell, differs=(ahead,)) if cell.against else cell for cell in run.cells)
    run = replace(run, cells=cells)
    assert REPORT.subject.in_record is not None
    assert [REPORT.subject.in_record(cell) for cell in cells].count(True) == 4
    (line,) = [line for line in difference_lines(run) if "of read-ahead instead of" in line]
    assert "own-ra4096-seqread-64k-qd1-buffered: with 4096 KiB of read-ahead instead of 128 KiB, the guest is" in line
    assert "What a longer read-ahead brings" in render_html(run)
    assert "read-ahead" in markdown_table(run)


def test_a_reader_is_told_how_far_each_side_reads_ahead(tmp_path: Path) -> None:
    run = synthetic_run(scenario=load(tmp_path, FILE))
    cell = next(cell for cell in run.cells if cell.mode == "own-ra4096" and cell.job.reads)
    shown = Effective(guest_read_ahead_kb=4096, host_read_ahead_kb=4096, disk_read_ahead_kb=128)
    ((_, note),) = annotate([replace(cell, effective=shown)])
    assert note.endswith("read-ahead: the guest 4096 KiB, its twin 4096 KiB, the host on the disk 128 KiB")
