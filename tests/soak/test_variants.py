"""Variants in the lab: the same stack twice shows no difference, and a planted one is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest

from harness.features.embedded.disks import NullBlkDisk
from harness.lab.transport.ssh import SshRunner
from harness.results import CellRecord
from tests.e2e.conftest import host
from tests.patience import patience
from tests.soak.other_qemu import other_qemu
from tests.soak.own_disks import measured, only_disks, project

__all__ = ["host"]

# So slow that the disk decides the figures and not the emulated CPU, whose speed varies for seconds at a time. With
# 10 ms, the CPU decides: a throttled guest keeps its rate while the other one varies, and 10 % are not beyond doubt.
DISK = NullBlkDisk("varied", 8 << 30, completion_ns=40_000_000, queue_depth=64)
SLICE = 4
"""Seconds of a slice."""
LIMIT = 0.9
"""The limit of the throttled variant, as a share of the IOPS without it."""
PLANTED = 1 - LIMIT * (1 + 0.1 / SLICE)
"""The share that it loses: QEMU lets the I/Os of 0.1 s through at the start of each slice, beyond the limit."""
HALT_POLL = "/sys/module/kvm/parameters/halt_poll_ns"
SCENARIO = """
title = "Two variants"
disk = "varied"
modes = ["lvm"]
workloads = ["randread-4k"]
write_rate = "500 MiB/s"

[variant.old]

[variant.new]
{changes}

[profile.smoke]
iodepth = [8]
runtime = "{seconds} s"
rounds = 2
most_rounds = 2
blocks = 6
"""


@pytest.fixture
def before(host: SshRunner) -> Iterator[None]:
    """The disk, on a lab host that has nothing else afterwards."""
    with only_disks(host, DISK):
        yield


def new_cells(directory: Path, changes: str) -> dict[str, CellRecord]:
    """The cells of the variant `new` by job, measured with these changes against `old`."""
    directory.mkdir()
    run = measured(
        project(directory, [DISK.spec], {"varied": SCENARIO.format(changes=changes, seconds=SLICE)}), "--lab=lab.toml"
    )
    return {cell.job.id: cell for cell in run.cells if cell.against is not None}


def interval(cell: CellRecord) -> tuple[float, float]:
    """The interval of the difference in IOPS."""
    found = cell.metrics["iops"].difference
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


@pytest.mark.usefixtures("before")
def test_the_same_stack_twice_shows_no_difference_and_a_throttled_one_is_found(tmp_path: Path) -> None:
    same = new_cells(tmp_path / "same", "")
    for cell in same.values():
        low, high = interval(cell)
        # Of 20 intervals, one does not contain 0. So a small distance is no failure.
        assert low < 0.02, cell.id
        assert high > -0.02, cell.id
        assert high - low < 0.1, "the interval says nothing"
    reached = fmean(same["randread-4k-qd8"].metrics["iops"].guest)
    throttled = new_cells(tmp_path / "throttled", f"attach.iops = {round(reached * LIMIT)}")
    low, high = interval(throttled["randread-4k-qd8"])
    assert low > 0
    assert low - 0.03 < PLANTED < high + 0.03
    assert any("iops" in each for each in throttled["randread-4k-qd8"].differs)


@pytest.mark.usefixtures("before")
def test_a_setting_of_the_host_is_held_while_its_guest_runs_and_restored(tmp_path: Path, host: SshRunner) -> None:
    if host.run(["test", "-w", HALT_POLL], deadline=patience(20), check=False).status != 0:
        pytest.skip(f"the lab host has no {HALT_POLL}: its guests are emulated")
    value = host.run(["cat", HALT_POLL], deadline=patience(20)).stdout
    cells = new_cells(tmp_path / "held", 'module = { "kvm.halt_poll_ns" = 0 }')
    for cell in cells.values():
        assert cell.skipped is None
        assert cell.mode_detail.variant is not None
        assert cell.mode_detail.variant.alternating
        assert len(set(cell.boots)) == len(set(cell.rounds)), "each round has a boot of its own"
        assert any(HALT_POLL in each for each in cell.differs)
    assert host.run(["cat", HALT_POLL], deadline=patience(20)).stdout == value


@pytest.mark.usefixtures("before")
def test_two_versions_of_qemu_run_side_by_side(tmp_path: Path, host: SshRunner) -> None:
    with other_qemu(host) as emulator:
        cells = new_cells(tmp_path / "qemu", f'guest.emulator = "{emulator}"')
    for cell in cells.values():
        assert interval(cell)
        assert any(each.startswith("qemu_version ") for each in cell.differs)
        check = next(each for each in cell.validity if each.check == "configuration")
        assert check.ok, check.detail
