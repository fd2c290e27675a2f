"""Jobs that trim: where they run, what they leave alone, what fio does on a real device, and what is checked."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from harness.features.answers.uses import USES
from harness.features.fio_files.reading import Line, make_workloads
from harness.features.steady.measuring import choose_job
from harness.features.trims import FEATURE, find_notes, refuse_trims
from harness.lab.counters import CounterFiles
from harness.layout.build import Layouts
from harness.measure.fio import Target, TimedSection, job_file, parse
from harness.measure.session import Session
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.job import REFILL_SECONDS, Job
from harness.model.layout import Layout, Lvm, LvmThin, RawFile, amplification
from harness.model.mode import Arm, Cell, Mode, Place
from harness.model.option import Effective
from harness.model.workloads import parse_workloads
from harness.report.modes import compare_modes
from harness.results.byte_counts import check_bytes
from tests.build import build_cell, build_measurement, synthetic_run
from tests.unit.loop_disks import loop, require, sparse
from tests.unit.test_fio import options
from tests.unit.test_measure_blocks import session
from tests.unit.test_scenario_load import complaint, good_but

MIB = 1024**2
UNMAP = Attach(discard="unmap")
TARGET = Target("/dev/disk/by-id/x", offset=4 * MIB, size=24 * MIB, direct=True, apart=True)


def prepared(directory: Path) -> Session:
    (directory / "disk").touch()
    return session(str(directory / "disk"), "sda", counted=False, version="fio-3.39")


def job(text: str, *, ramp: float = 0.0, seconds: float = 0.5) -> Job:
    (workload,) = parse_workloads(text)
    (depth,) = workload.depths((32,))
    return workload.job(depth, ramp=ramp, seconds=seconds)


def file_of(*jobs: Job, target: Target = TARGET) -> str:
    return job_file([TimedSection(job.id, job, target) for job in jobs], seed=1)


def test_a_trim_waits_for_the_one_before_so_the_depth_of_the_profile_does_not_apply() -> None:
    trims = job("randtrim-64k-nj4")
    assert (trims.id, trims.depth, trims.trims, trims.reads) == ("randtrim-64k-qd1-nj4", 4, True, False)
    with pytest.raises(ValueError, match="a rate"):
        parse_workloads("randtrim-64k-i100")


def test_what_is_trimmed_is_used_by_no_other_job_and_is_written_before() -> None:
    trims, both, reads = job("randtrim-64k-nj2"), job("seqtrimwrite-64k"), job("randread-4k")
    written = options(file_of(trims, both, reads))
    places = {name: (part["offset"], part["size"]) for name, part in written.items() if "offset" in part}
    last = (str(22 * MIB), str(6 * MIB))
    assert places == {
        f"{trims.id}-ramp": last,
        trims.id: last,
        both.id: last,
        reads.id: (str(4 * MIB), str(18 * MIB)),
    }
    ramp = written[f"{trims.id}-ramp"]
    assert (ramp["rw"], ramp["numjobs"], ramp["runtime"]) == ("write", "2", f"{round(REFILL_SECONDS * 1000)}ms")
    assert (written[trims.id]["rw"], written[both.id]["rw"]) == ("randtrim", "trimwrite")


def test_without_trims_a_job_has_the_whole_region() -> None:
    part = options(file_of(job("randread-4k"), target=replace(TARGET, apart=False)))["randread-4k-qd32"]
    assert (part["offset"], part["size"]) == (str(4 * MIB), str(24 * MIB))


@pytest.mark.parametrize(
    ("layout", "text", "twin"),
    [(Lvm(), "randtrim-4k", True), (RawFile(), "randtrim-4k", False), (RawFile(), "randwrite-4k", True)],
)
def test_fio_trims_devices_only_so_a_file_has_no_twin(layout: Layout, text: str, *, twin: bool) -> None:
    cell = Cell("s", "d", Mode("m", layout, UNMAP), job(text))
    assert (Place.TWIN in cell.by_role) is twin


def test_a_region_is_conditioned_with_writes() -> None:
    assert choose_job([job("randtrim-4k"), job("randread-64k")]).rw == "randread"
    assert choose_job([job("randtrim-4k")]).rw == "randwrite"


@pytest.mark.parametrize(
    ("discard", "workload", "refused"),
    [("ignore", "randtrim-4k", True), ("unmap", "randtrim-4k", False), ("ignore", "seqtrimwrite-4k", False)],
)
def test_trims_alone_need_a_mode_that_passes_them_on(
    tmp_path: Path, discard: str, workload: str, *, refused: bool
) -> None:
    mode = f'[mode.own]\nlayout = {{ kind = "lvm" }}\nattach = {{ discard = "{discard}" }}\n'
    text = good_but('"lvm"', '"own"').replace('"randread-4k"', f'"{workload}"', 1) + mode
    lines = complaint(tmp_path, text) if refused else []
    assert [line.partition(" conflicts")[0] for line in lines] == (
        ['mode.own.attach.discard = "ignore":'] if refused else []
    )


@pytest.mark.parametrize("size", [0, 1 << 30, None])
def test_a_guest_whose_disk_has_no_discard_is_skipped(tmp_path: Path, size: int | None) -> None:
    mode = Mode("lvm", Lvm(), UNMAP)
    at = prepared(tmp_path)
    at = replace(at, effective={"lvm": Effective(guest_discard_max_bytes=size)})
    why = refuse_trims(at, Arm(Place.GUEST, mode), job("randtrim-4k"))
    assert (why is not None) is (size == 0)
    assert refuse_trims(at, Arm(Place.GUEST, mode), job("randread-4k")) is None


def test_a_host_whose_baseline_is_a_file_is_skipped(tmp_path: Path) -> None:
    at = prepared(tmp_path)
    assert "fio trims devices only" in (refuse_trims(at, Arm(Place.HOST), job("randtrim-4k")) or "")


def on_device(at: Session, device: str) -> Session:
    source = replace(at.layouts.device, path=device, kind="block")
    return replace(at, layouts=Layouts(source, {}, source.size, "loop0"))


@pytest.mark.parametrize("text", ["seqtrim-1m", "seqtrimwrite-64k", "randtrim-64k-nj2"])
def test_fio_trims_a_device_and_its_kernel_counts_it(tmp_path: Path, text: str) -> None:
    require()
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed here")
    with loop(sparse(tmp_path / "disk", 64 * MIB)) as device:
        at = prepared(tmp_path)
        assert refuse_trims(on_device(at, device), Arm(Place.HOST), job(text)) is None
        target = Target(device, 0, 64 * MIB, direct=True, apart=True)
        section = TimedSection("trims", job(text), target)
        stat = Path(f"/sys/block/{device.removeprefix('/dev/')}/stat")
        before = stat.read_text()
        command = ["fio", "--output-format=json+", "-"]
        done = subprocess.run(
            command, input=job_file([section], 1, reports_start=False), capture_output=True, text=True, check=True
        )
        after = stat.read_text()
    (result,) = parse(done.stdout, [section], "host here")
    assert result.metrics["iops"] > 0
    assert result.transferred.trimmed > 0
    assert result.transferred.written > 0
    counted = [_trimmed(device.removeprefix("/dev/"), text) for text in (before, after)]
    assert counted[1] - counted[0] == result.transferred.trimmed


def _trimmed(disk: str, stat: str) -> int:
    stats = [f"/sys/class/block/{disk}/stat:{stat.strip()}"]
    others = ["/proc/stat:cpu 1 1 1 1 1 1 1 1 1 1", "/proc/stat:ctxt 1", "/proc/uptime:1.0 1.0"]
    return CounterFiles((disk,)).parse([*stats, *others], "host here").disks[disk].trimmed


@pytest.mark.parametrize(
    ("layout", "reached", "ok"),
    [
        *((Device(), 1.0, True), (Device(), 0.5, False), (Device(), 1.5, False), (Lvm(), 0.5, False)),
        *((LvmThin(), 0.0, True), (LvmThin(), 1.5, False), (RawFile(), 0.0, True)),
    ],
)
def test_the_bytes_that_the_disk_trimmed_are_compared_with_those_of_fio(
    layout: Layout, reached: float, *, ok: bool
) -> None:
    trims = job("seqtrimwrite-64k")
    counts = {"fio_trimmed": 1e9, "fio_written": 1e9, "disk_written": 1e9, "disk_trimmed": reached * 1e9}
    slices = [build_measurement("twin:m", job=trims, counts=counts)]
    (check,) = check_bytes(slices, 0, amplification(layout, trims))
    assert check.ok is ok
    assert ok or "trimmed" in check.detail


def test_qemu_must_have_seen_the_trims_of_the_guest() -> None:
    trims = job("randtrim-64k")
    counts = {"fio_trimmed": 1e9, "qemu_trimmed": 5e8}
    (check,) = check_bytes([build_measurement("guest:m", job=trims, counts=counts)], 0)
    assert not check.ok
    assert "a layer did not pass the rest on" in check.detail


def test_the_notes_say_what_became_of_the_trims() -> None:
    cell = build_cell(Mode("m", RawFile(), Attach()), "seqtrimwrite-64k", 1)
    counts = {"fio_trimmed": 1e9, "fio_written": 1e9, "disk_written": 1e9, "disk_trimmed": 2.5e8}
    notes = list(find_notes([build_measurement("guest:m", counts=counts)], cell))
    assert "discard" in notes[0]
    assert notes[1:] == [
        "no twin: fio on the host trims devices only, and not files",
        "guest:m: 25% of the trimmed bytes reached the disk, the rest ended in the layers above it",
    ]


def read(text: str) -> list[Job]:
    lines = [Line("f.fio", number, line) for number, line in enumerate(text.splitlines(), start=1)]
    return [workload.job(1, ramp=0.0, seconds=1.0) for workload in make_workloads("f.fio", lines)]


def test_a_fio_file_may_trim() -> None:
    (trims,) = read("[a]\nioengine=libaio\nrw=randtrim\nbs=64k\n[b]\nrw=write\nbs=4k\n")
    assert (trims.rw, trims.trims, trims.only_trims, trims.numjobs) == ("randtrim", True, True, 2)
    written = options(file_of(trims))
    assert written[f"{trims.id}-ramp"]["rw"] == "write"
    assert [written[name]["rw"] for name in (trims.id, f"{trims.id}+1")] == ["randtrim", "write"]
    (both,) = read("[a]\nrw=trimwrite\nbs=64k\n")
    assert (both.rw, both.only_trims) == ("trimwrite", False)


def test_a_section_of_a_fio_file_does_not_read_what_another_one_trims() -> None:
    with pytest.raises(ValueError, match=r"f.fio, line 3: \[b\] reads while another section trims"):
        read("[a]\nrw=trim\n[b]\nrw=read\n")
    assert len(read("[a]\nrw=trim\n[b]\nstonewall\nrw=read\n")) == 2
    with pytest.raises(ValueError, match=r"no such pattern that writes \(fio only trims then\)"):
        read("[a]\nrw=randtrimwrite\n")


def test_trims_do_not_count_for_what_a_mode_loses_because_it_may_drop_them() -> None:
    stored = synthetic_run(workloads=["randwrite-64k", "randwrite-4k"]).cells
    trims = job("seqtrimwrite-64k")
    cells = [replace(cell, job=trims) if cell.job.bs == 4096 else cell for cell in stored]
    compared = compare_modes(cells)
    assert (compared.jobs, compared.planned) == (2, 2), "the writes at two depths"
    assert not any(cell.ranked for cell in cells if cell.job.trims)
    assert any(cell.ranked for cell in cells)
    assert {use.name for use in USES if use.judge_of([job("randtrim-4k")])} == set()


def test_a_guest_whose_trims_are_dropped_is_faster_for_a_reason() -> None:
    cells = synthetic_run().cells
    (stored, *_) = [cell for cell in cells if cell.mode_detail.attach is not None]
    assert FEATURE.explain_faster(stored) is None
    assert "QEMU drops its trims" in (FEATURE.explain_faster(replace(stored, job=job("seqtrimwrite-64k"))) or "")
