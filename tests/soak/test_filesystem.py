"""File systems in guests and buffered I/O in the lab: what is read back, which bytes agree, and what a kill leaves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.features.embedded.disks import NullBlkDisk
from harness.lab.transport.ssh import SshRunner
from harness.report.terminal import difference_lines
from harness.results import CellRecord, Run
from tests.e2e.machines import background, command, on_lab_host, traces, wait_for_measurements
from tests.patience import patience
from tests.soak.own_disks import measured, own_disks, project

DISK = NullBlkDisk("files", 3 << 30, completion_ns=5_000_000, queue_depth=8)
"""5 ms for each request: what is in flight at the same time decides, and not the emulated CPUs."""
PROFILE = """
[profile.smoke]
iodepth = [1]
runtime = "1 s"
span = "32 MiB"
blocks = 2
rounds = 2
most_rounds = 2
"""
FILES = f"""
title = "A file system in the guest"
disk = "files"
modes = ["host", "ext4", "xfs"]
workloads = ["randread-4k", "randwrite-4k"]
write_rate = "500 MiB/s"
guest = {{ vcpus = 1, memory = "512 MiB" }}

[mode.ext4]
layout = {{ kind = "lvm" }}
attach = {{}}
filesystem = "ext4"
mount_options = "noatime"

[mode.xfs]
layout = {{ kind = "lvm" }}
attach = {{}}
filesystem = "xfs"
{PROFILE}"""
IN_FILE = FILES.replace('"ext4", "xfs"]', '"ext4"]').partition("[mode.xfs]")[0].replace("lvm", "raw") + PROFILE
BUFFERED = f"""
title = "Buffered reads"
disk = "files"
modes = ["host", "reader"]
workloads = ["seqread-64k-buffered", "wal", "wal-buffered"]
write_rate = "500 MiB/s"
guest = {{ vcpus = 1, memory = "512 MiB" }}

[mode.reader]
layout = {{ kind = "lvm" }}
attach = {{}}
read_ahead_kb = [128, 4096]
{PROFILE}"""


@pytest.fixture(scope="module")
def host(lab: None) -> Iterator[SshRunner]:  # noqa: ARG001 - it has to be up
    with on_lab_host() as host, own_disks(host, DISK):
        yield host


@pytest.fixture
def as_before(host: SshRunner) -> Iterator[None]:
    """Afterwards the host has what it had before."""
    before = traces(host)
    yield
    assert traces(host) == before


def list_valid(run: Run) -> list[CellRecord]:
    """The cells of the guests, all of which must be results."""
    cells = [cell for cell in run.cells if not cell.is_baseline]
    for cell in cells:
        assert cell.skipped is None, cell.skipped
        assert all(check.ok for check in cell.validity), [check for check in cell.validity if not check.ok]
    return cells


@pytest.mark.usefixtures("as_before")
def test_guests_and_twins_have_the_same_file_systems(tmp_path: Path) -> None:
    run = measured(project(tmp_path, [DISK.spec], {"files": FILES}), "--lab=lab.toml")
    cells = list_valid(run)
    assert len(cells) == 4
    for cell in cells:
        shown = cell.effective
        assert (shown.guest_filesystem, shown.host_filesystem) == (cell.mode, cell.mode)
        assert shown.host_filesystem_features
        assert cell.metrics[cell.headline_name].samples("twin")
    lines = difference_lines(run)
    assert sum("the file system loses" in line for line in lines) == 4, lines


@pytest.mark.usefixtures("as_before")
def test_a_raw_file_has_a_file_system_by_a_loop_device_on_the_host(tmp_path: Path) -> None:
    run = measured(project(tmp_path, [DISK.spec], {"files": IN_FILE}), "--lab=lab.toml")
    assert len(list_valid(run)) == 2


@pytest.mark.usefixtures("as_before")
def test_a_longer_read_ahead_makes_buffered_reads_faster(tmp_path: Path) -> None:
    run = measured(project(tmp_path, [DISK.spec], {"files": BUFFERED}), "--lab=lab.toml")
    cells = {(cell.mode, cell.job.name): cell for cell in list_valid(run)}
    other = cells["reader-ra4096", "seqread-64k-buffered"]
    shown = other.effective
    assert (shown.guest_read_ahead_kb, shown.host_read_ahead_kb) == (4096, 4096)
    assert set(other.differs) == {"guest_read_ahead_kb 128 -> 4096", "host_read_ahead_kb 128 -> 4096"}
    difference = other.metrics["bw"].difference
    assert difference is not None
    assert difference.point < 0
    (line,) = (line for line in difference_lines(run) if "KiB of read-ahead instead of 128 KiB" in line)
    assert "times as fast" in line


@pytest.mark.usefixtures("as_before")
def test_reap_unmounts_the_file_systems_of_a_killed_run(tmp_path: Path) -> None:
    directory = project(tmp_path, [DISK.spec], {"files": FILES.replace("rounds = 2", "rounds = 12")})
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--lab=lab.toml"]
    with background(words, cwd=directory) as run:
        wait_for_measurements(directory / "reports", run)
        run.kill()
        run.communicate(timeout=patience(60))
    done = command("reap", f"--lab={directory / 'lab.toml'}", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "removed after a killed run: the file system at" in done.stdout
    again = command("reap", f"--lab={directory / 'lab.toml'}", "--yes")
    assert "nothing was left" in again.stdout
