"""Several guests in the lab at the same time share a disk fairly, and a planted neighbour is visible and named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest

from harness.features.embedded.disks import NullBlkDisk
from harness.lab.transport.ssh import SshRunner
from harness.report.terminal import difference_lines
from harness.results import CellRecord, Run
from tests.e2e.conftest import host
from tests.soak.own_disks import measured, only_disks, project

__all__ = ["host"]

DISK = NullBlkDisk("crowded", 1 << 30, completion_ns=10_000_000, queue_depth=4)
"""Four requests at a time, 10 ms each: 400 IOPS for all guests together, which leaves the emulated CPUs mostly idle.
Further requests wait, so a neighbour with a depth of 16 makes each I/O wait for several others."""
SCENARIO = """
title = "Guests that share a disk"
disk = "crowded"
modes = [{modes}]
workloads = ["randread-4k"]
write_rate = "500 MiB/s"
guest = {{ vcpus = 1, memory = "512 MiB" }}

[profile.smoke]
iodepth = [{depth}]
runtime = "6 s"
span = "32 MiB"
blocks = 3
rounds = 2
most_rounds = 2

{tables}
"""
FOUR = """
[mode.four]
layout = { kind = "lvm" }
attach = {}
guests = 4
"""
ALONE = """
[mode.alone]
layout = { kind = "lvm" }
attach = {}
neighbour = { workload = "randwrite-4k", iodepth = 16 }
"""


@pytest.fixture
def before(host: SshRunner) -> Iterator[None]:
    """The disk, on a lab host that has nothing else afterwards."""
    with only_disks(host, DISK):
        yield


def scenario(mode: str, tables: str, depth: int) -> str:
    return SCENARIO.format(modes=f'"host", "{mode}"', tables=tables, depth=depth)


def measure(directory: Path, mode: str, tables: str, depth: int) -> Run:
    texts = {"crowded": scenario(mode, tables, depth)}
    return measured(project(directory, [DISK.spec], texts), "--lab=lab.toml")


def cell(run: Run, mode: str) -> CellRecord:
    (found,) = (each for each in run.cells if each.mode == mode)
    assert found.skipped is None, found.skipped
    assert all(check.ok for check in found.validity), [check for check in found.validity if not check.ok]
    return found


@pytest.mark.usefixtures("before")
def test_four_guests_share_a_disk_fairly(tmp_path: Path) -> None:
    run = measure(tmp_path, "four", FOUR, depth=8)
    found = cell(run, "four")
    several = found.several
    assert several is not None
    assert [each.number for each in several.guests] == [1, 2, 3, 4]
    total = fmean(found.metrics["iops"].guest)
    assert sum(fmean(each.guest) for each in several.guests) == pytest.approx(total, rel=1e-6)
    assert sum(each.share.point for each in several.guests) == pytest.approx(1)
    # The disk can do no more for all of them together.
    assert total < 1.1 * DISK.queue_depth / (DISK.completion_ns * 1e-9)
    assert several.host_fairness.point > 0.95
    assert several.fairness.point > 0.8
    assert several.fairness.low is not None
    assert all(each.p99 is not None for each in several.guests)
    assert {name for name in run.provenance if name.startswith("guest")} == {
        "guest",
        "guest g2",
        "guest g3",
        "guest g4",
    }
    (line,) = (each for each in difference_lines(run) if each.startswith("four-"))
    assert "4 guests got" in line
    assert "fairness" in line


@pytest.mark.usefixtures("before")
def test_a_planted_neighbour_is_visible_in_p99_and_is_named(tmp_path: Path) -> None:
    run = measure(tmp_path, "alone", ALONE, depth=4)
    found = cell(run, "alone-neighbour")
    assert found.neighbour is not None
    assert found.neighbour.job == "randwrite-4k-qd16"
    assert min(found.neighbour.iops) > 0
    p99 = found.metrics["clat_p99"].difference
    assert p99 is not None
    assert p99.low is not None
    assert p99.low > 0.2, p99
    # Without the neighbour, the guest is what it is in any other run: nothing of the neighbour is left in its slices.
    alone = cell(run, "alone")
    assert fmean(alone.metrics["clat_mean"].guest) < fmean(found.metrics["clat_mean"].guest)
    assert alone.metrics["clat_mean"].guest == found.metrics["clat_mean"].against
    (line,) = (each for each in difference_lines(run) if "with the neighbour" in each)
    assert "p99 with the neighbour randwrite-4k-qd16: x " in line
    assert line.endswith("worse")
