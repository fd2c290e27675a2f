"""The md devices of an array, the kernel's thread of each, and what a busy one or a missing member of a leg shows."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from harness.features.arrays.records import Bottleneck
from harness.features.arrays.scaling import scale_arrays, state_notes
from harness.lab.counters import (
    ArrayStatus,
    CounterFiles,
    CpuTime,
    HostCounters,
    MdDevice,
    Sample,
    md_devices,
    parse_devices,
)
from harness.lab.transport.local import LocalRunner
from harness.measure.ran_slices import count_array
from harness.model.attach import Attach
from harness.model.base import Device, Md
from harness.model.counters import Counters, HostCounts
from harness.model.job import parse_workload
from harness.model.mode import Cell, Mode
from harness.results import CellContext, Measurement, assemble
from harness.results.assemble import AssembledRun
from tests.build import A_SLICE, at_full_speed
from tests.build import counters as counters_of

RUNNER = LocalRunner("host here")


def test_the_thread_of_an_array_is_found_by_its_name(tmp_path: Path) -> None:
    # A program of this name stands for the kernel's thread: /proc shows both in the same way.
    program = shutil.copy("/bin/sleep", tmp_path / "md901_raid5")
    with subprocess.Popen([program, "60"]) as thread:
        try:
            found = md_devices(RUNNER, ["md901", "md902"])
        finally:
            thread.kill()
    assert found == {"md901": (MdDevice("md901", thread.pid),), "md902": (MdDevice("md902"),)}
    assert md_devices(RUNNER, []) == {}


def test_a_stripe_has_the_arrays_below_it() -> None:
    lines = ["md127 md127 -", "md127 md125 812", "md127 md126 840"]
    assert parse_devices(lines) == {"md127": (MdDevice("md127"), MdDevice("md125", 812), MdDevice("md126", 840))}


def test_the_cpu_time_of_a_thread_is_read_from_proc() -> None:
    files = CounterFiles((), tasks=(os.getpid(), 1 << 30))
    assert files.paths[-2] == f"/proc/{os.getpid()}/stat"
    printed = [
        f"{path}:{line}"
        for path in files.paths
        if Path(path).exists()
        for line in Path(path).read_text().splitlines()
        if path != "/proc/stat" or line.startswith(("cpu", "ctxt"))
    ]
    found = files.parse(printed, "here").tasks
    # Ticks are 10 ms. A thread that has ended is left out.
    assert found == {os.getpid(): pytest.approx(sum(os.times()[:2]), abs=0.1)}


def sample(**arrays: ArrayStatus) -> Sample:
    counters = HostCounters({}, CpuTime(0, 1), HostCounts(busy_s=0.0, switches=0.0), None, None, arrays=arrays)
    return Sample(0.0, 1.0, counters)


@pytest.mark.parametrize(
    ("leg", "missing", "state"),
    [(ArrayStatus(), 0, "optimal"), (ArrayStatus(missing=1), 1, "degraded"), (ArrayStatus(1, 4096), 1, "rebuilding")],
)
def test_a_stripe_lacks_the_members_that_its_legs_lack(leg: ArrayStatus, missing: int, state: str) -> None:
    now = sample(md127=ArrayStatus(), md125=ArrayStatus(), md126=leg)
    found = count_array(now, now, ["md127", "md125", "md126"])
    assert found is not None
    assert (found.missing, found.state) == (missing, state)
    assert count_array(now, now, ["md127", "md124"]) is None
    assert count_array(now, now, []) is None


def measured(md_s: float, arm: str = "twin:m") -> tuple[Cell, list[Measurement]]:
    mode = Mode("m", Md(5, 4), Attach())
    cell = Cell("d", "ssd1", mode, parse_workload("randwrite-4k").job(32, ramp=0.0, seconds=2.0))
    own = []
    for number in range(1, 4):
        for name, iops in (("host", 1e4), ("twin:m", 4e3), ("guest:m", 3e3)):
            counters = counters_of({"cpu_busy": 0.3})
            counters = replace(counters, md_s=md_s if name == arm else None)
            own.append(at_full_speed(cell.job, name, number, iops * (1 + number / 100), counters))
    return cell, own


@pytest.mark.parametrize(("md_s", "limit"), [(1.96, Bottleneck.THREAD), (1.2, Bottleneck.UNKNOWN)])
def test_a_thread_of_the_array_that_is_always_busy_is_the_limit(md_s: float, limit: Bottleneck) -> None:
    cell, own = measured(md_s)
    records = {each.id: each for each in assemble([cell], own, {cell.id: CellContext("h", "g", 1 << 20)})}
    (found,) = scale_arrays(AssembledRun([cell], records, own))
    assert found.bottleneck is limit
    if limit is Bottleneck.THREAD:
        assert found.evidence == "md's thread of the array was 98% busy"


def test_it_is_the_limit_of_a_guest_as_well() -> None:
    cell, own = measured(1.96, arm="guest:m")
    records = {each.id: each for each in assemble([cell], own, {cell.id: CellContext("h", "g", 1 << 20)})}
    (found,) = scale_arrays(AssembledRun([cell], records, own))
    assert found.guest_limit == "md's thread of the array was 98% busy"


def test_an_array_of_md_that_was_there_already_and_lacks_a_member_is_noted() -> None:
    now = sample(md0=ArrayStatus(missing=1))
    slices = [replace(A_SLICE, counters=Counters(array=count_array(now, now, ["md0"]))), A_SLICE]
    cell = Cell("d", "lun", Mode("host", Device(), None), parse_workload("randread-4k").job(1, ramp=0, seconds=1))
    assert state_notes(slices, cell) == [
        "the array below was not optimal in 1 of 1 slices; in the first: degraded, 1 missing"
    ]
    assert state_notes([A_SLICE], cell) == []
