"""All regions are prepared in the same way: written in full, and used by the hardest job until steady (real fio)."""

from __future__ import annotations

import os
import stat
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import MeasurementError, SafetyError
from harness.events import Event, Events, Note, StepAdvanced
from harness.features.steady.measuring import SECONDS, choose_job
from harness.image import Cache, Missing, choose_cache
from harness.image.build import load_recipes
from harness.lab.transport.local import LocalRunner
from harness.layout import BlockSource
from harness.layout.build import Layouts
from harness.measure.prepare import condition
from harness.model.job import Job, parse_workload
from harness.model.workloads import Conditioning
from tests.unit.granted import granted

MIB = 1024**2
SPAN = 2 * MIB
FEW_ROUNDS = 5, 8
"""At least and at most, instead of the 25 that a disk may need: each takes half a second to start fio."""


def job(workload: str, iodepth: int = 1) -> Job:
    return parse_workload(workload).job(iodepth, ramp=0, seconds=0.02)


@pytest.mark.parametrize(
    ("workloads", "chosen"),
    [
        (["seqread-256k", "seqwrite-256k", "randread-4k", "randwrite-4k"], "randwrite-4k"),
        (["randread-4k", "seqwrite-1m"], "seqwrite-1m"),
        (["seqwrite-4k", "randwrite-64k"], "randwrite-64k"),
        (["randwrite-8k", "randrw-4k-r70"], "randrw-4k-r70"),
        (["seqread-4k", "randread-64k"], "randread-64k"),
    ],
)
def test_the_job_with_the_highest_load_is_repeated(workloads: list[str], chosen: str) -> None:
    assert choose_job([job(workload) for workload in workloads]).workload.name == chosen


def test_of_one_workload_at_several_depths_the_deepest_is_repeated() -> None:
    assert choose_job([job("randwrite-4k", depth) for depth in (1, 64, 8)]).iodepth == 64


def test_a_job_at_a_fixed_rate_is_repeated_at_full_speed() -> None:
    found = choose_job([job("seqwrite-256k"), job("randwrite-4k-i1000")])
    assert found == replace(job("randwrite-4k"), seconds=SECONDS)


def test_a_round_of_conditioning_is_longer_than_a_slice_and_has_no_ramp() -> None:
    found = choose_job([replace(job("randwrite-4k"), ramp=0.5, seconds=0.5)])
    assert (found.ramp, found.seconds) == (0.0, SECONDS)


@pytest.fixture(scope="module")
def fio(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the image's fio as a program."""
    recipe = load_recipes("")[0]
    found = Cache(choose_cache()).find(recipe, {})
    if isinstance(found, Missing):
        pytest.skip("the fio image is not built: virt-overhead images")
    directory = tmp_path_factory.mktemp("fio")
    with tarfile.open(found.path / "fio.tar") as archive:
        archive.extractall(directory, filter="data")
    libraries = directory / "fio" / "lib"
    program = directory / "bin" / "fio"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nexec {libraries}/ld-linux-x86-64.so.2 --library-path {libraries} {directory}/fio/fio "$@"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (libraries / "ld-linux-x86-64.so.2").chmod(0o755)
    return program.parent


@pytest.fixture
def runner(fio: Path, monkeypatch: pytest.MonkeyPatch) -> LocalRunner:
    monkeypatch.setenv("PATH", str(fio), prepend=":")
    monkeypatch.setattr("harness.features.steady.measuring.SECONDS", 0.02)
    monkeypatch.setattr("harness.features.steady.measuring.ROUNDS", FEW_ROUNDS)
    return LocalRunner("host here")


@pytest.fixture
def layouts(tmp_path: Path) -> Layouts:
    """Two regions in a file each, with an untouched stretch before and after the device's."""
    device, lvm = tmp_path / "device", tmp_path / "lvm"
    device.write_bytes(bytes(MIB + SPAN + MIB))
    lvm.write_bytes(bytes(SPAN))
    bare = BlockSource(str(device), "block", MIB, SPAN, grant=granted(str(device)))
    volume = BlockSource(str(lvm), "file", 0, SPAN, grant=granted(str(lvm)))
    return Layouts(bare, {"passthrough": bare, "lvm": volume}, SPAN, "device")


def untouched(data: bytes) -> int:
    """How many blocks of 4 KiB are still zeros."""
    return sum(not any(data[at : at + 4096]) for at in range(0, len(data), 4096))


def test_filling_writes_every_block_of_every_region_and_nothing_else(runner: LocalRunner, layouts: Layouts) -> None:
    record = condition(runner, layouts, "fill", [job("randwrite-4k")], seed=1, events=Events())
    assert (record.method, record.job, record.regions, record.steady) == ("fill", None, (), None)
    device = Path(layouts.device.path).read_bytes()
    assert untouched(device[MIB : MIB + SPAN]) == 0
    assert untouched(Path(layouts.by_mode["lvm"].path).read_bytes()) == 0
    assert untouched(device[:MIB]) == untouched(device[MIB + SPAN :]) == MIB // 4096


def test_conditioning_until_steady_reports_the_rounds_of_each_region_once(
    runner: LocalRunner, layouts: Layouts
) -> None:
    seen: list[Event] = []
    jobs = [job("randread-4k", 4), job("randwrite-4k", 4)]
    record = condition(runner, layouts, "steady", jobs, seed=1, events=Events(seen.append))
    assert (record.method, record.job) == ("steady", "randwrite-4k-qd4")
    assert [region.region for region in record.regions] == ["device", "lvm"]
    fewest, most = FEW_ROUNDS
    (rounds,) = {len(region.values) for region in record.regions}
    assert fewest <= rounds <= most
    assert record.steady is all(region.steady for region in record.regions)
    assert rounds == most or record.steady, "only the last round may end without a steady state"
    notes = [each.text for each in seen if isinstance(each, Note)]
    assert len(notes) == sum(not region.steady for region in record.regions)
    assert sum(isinstance(each, StepAdvanced) for each in seen) == rounds - bool(record.steady)
    assert untouched(Path(layouts.by_mode["lvm"].path).read_bytes()) == 0


@pytest.mark.parametrize("method", ["fill", "steady"])
def test_a_region_that_was_replaced_is_not_written_to(
    runner: LocalRunner, layouts: Layouts, method: Conditioning
) -> None:
    device = Path(layouts.device.path)
    device.rename(device.with_name("moved"))
    device.write_bytes(bytes(MIB + SPAN + MIB))
    with pytest.raises(SafetyError, match=f"host here: a command that writes was not started: {device} was"):
        condition(runner, layouts, method, [job("randwrite-4k")], seed=1, events=Events())
    assert untouched(device.read_bytes()) == (MIB + SPAN + MIB) // 4096


def test_a_source_that_the_guard_has_not_checked_is_not_written_to(runner: LocalRunner, layouts: Layouts) -> None:
    unchecked = replace(layouts, device=replace(layouts.device, grant=None), by_mode={})
    with pytest.raises(SafetyError, match="the guard has not checked it"):
        condition(runner, unchecked, "fill", [job("randwrite-4k")], seed=1, events=Events())


def test_a_region_that_is_too_small_is_an_error_that_names_it(runner: LocalRunner, layouts: Layouts) -> None:
    short = replace(layouts, device=replace(layouts.device, offset=100 * MIB, kind="file"), by_mode={})
    Path(layouts.device.path).chmod(0o400)
    os.truncate(layouts.device.path, MIB)
    with pytest.raises(MeasurementError, match=r"host here: filling .*device failed: ") as caught:
        condition(runner, short, "fill", [job("randread-4k")], seed=1, events=Events())
    assert "dmesg" in str(caught.value.hint)
