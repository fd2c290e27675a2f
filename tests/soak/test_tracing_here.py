"""Tracing by this machine's kernel: what is recorded while it is switched on and off. No lab is needed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.features.breakdown.measuring import TRACING, TracingRequest, measure_blocks, switch_tracers, trace_devices
from harness.lab.transport.local import LocalRunner
from harness.measure.series import OpenSession
from harness.model.job import parse_workload
from harness.model.mode import Cell
from tests.patience import patience
from tests.unit.loop_disks import creation_log, loop, require, sparse
from tests.unit.test_measure_blocks import LVM, SPAN, programs_in, ran_in

IOS = 64


@pytest.fixture(autouse=True)
def can_trace() -> None:
    require("fio")
    if "tracefs" not in Path("/proc/filesystems").read_text():
        pytest.skip("this kernel has no tracefs")


def read(device: str) -> None:
    subprocess.run(["dd", f"if={device}", "of=/dev/null", "bs=4k", f"count={IOS}", "iflag=direct"], check=True)


def instances() -> list[Path]:
    return sorted(Path(TRACING, "instances").glob("*"))


def test_only_ios_are_recorded_that_run_while_it_is_on(tmp_path: Path) -> None:
    before = instances()
    with loop(sparse(tmp_path / "disk", SPAN)) as device, trace_devices(LocalRunner(), [device], None) as tracer:
        for on in (True, False, False, True, True, False):
            switch_tracers([(tracer, on)])
            read(device)
            # Three events of each I/O.
            assert len(tracer.read_events()) == pytest.approx(3 * IOS if on else 0, abs=8 if on else 0)
    assert instances() == before


def test_each_block_has_slices_whose_ios_are_all_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs_in(tmp_path, monkeypatch)
    version = LocalRunner().run(["fio", "--version"], deadline=patience(10)).stdout.strip()
    job = parse_workload("randread-4k").job(1, ramp=0, seconds=0.2)
    request = TracingRequest(Cell("first", "disk", LVM, job), pause=0.3, blocks=3)
    with loop(sparse(tmp_path / "disk", 2 * SPAN)) as device:
        ran = ran_in(tmp_path, device, Path(device).name, version=version)
        opened = OpenSession(lambda _turn: ran.at, ran.at, ran.store, creation_log(tmp_path), 1)
        blocks = measure_blocks(request, opened)
    assert blocks
    for block in blocks:
        assert block.followed == pytest.approx(1, abs=0.1)
        for latency, path in ((block.host_traced, block.host), (block.guest_traced, block.guest)):
            assert 0 < path.inside < latency
