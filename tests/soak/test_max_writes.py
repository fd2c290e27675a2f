"""`--max-writes` against the disk's own counter, read on the lab host behind the run's back."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.features.embedded.disks import NullBlkDisk
from harness.lab.transport.ssh import SshRunner
from tests.e2e.conftest import host
from tests.e2e.machines import latest
from tests.patience import patience
from tests.soak.own_disks import own_disks, project, tried

__all__ = ["host"]

MIB = 1024**2
DISK_RATE = 200 * MIB
DISK = NullBlkDisk("worn", 512 * MIB, completion_ns=100_000, queue_depth=64, bandwidth_mib_s=DISK_RATE // MIB)
_SECTOR = 512
_SCENARIO = """
title = "A disk with little endurance left"
disk = "worn"
modes = ["host", "passthrough", "lvm"]
workloads = {workloads}
write_rate = "{rate} MiB/s"
"""


def written(host: SshRunner) -> int:
    """Bytes written to the disk since it exists."""
    return int(host.run(["cat", f"/sys/block/{DISK.device}/stat"], deadline=patience(30)).stdout.split()[6]) * _SECTOR


@pytest.mark.parametrize(
    ("workloads", "rate", "limit", "left_out"),
    [
        # An upper bound of the disk's rate, as the owner knows it: the plan leaves out one of two workloads that write.
        pytest.param(["seqwrite-256k", "randwrite-4k", "randread-4k"], 256, 4096, "workload", id="planned"),
        # The disk is more than ten times as fast as the scenario says, so measuring ends early.
        pytest.param(["seqwrite-256k", "randread-4k"], 16, 600, "slices of worn", id="faster-than-planned"),
    ],
)
def test_the_counter_of_the_disk_stays_below_the_limit(
    *, tmp_path: Path, host: SshRunner, workloads: list[str], rate: int, limit: int, left_out: str
) -> None:
    directory = project(tmp_path, [DISK.spec], {"worn": _SCENARIO.format(workloads=workloads, rate=rate)})
    with own_disks(host, DISK):
        before = written(host)
        done = tried(directory, f"--max-writes={limit}MiB", "--rounds=1")
        total = written(host) - before
    assert "Traceback" not in done.stdout + done.stderr
    run = latest(directory / "reports")
    assert run.run.status == "complete", done.stdout
    assert total <= limit * MIB
    # It was the limit that mattered: without it, so many slices write at least this.
    assert total >= 0.15 * limit * MIB
    (record,) = run.writes
    assert (record.disk, record.limit) == (DISK.name, limit * MIB)
    assert abs(record.written - total) <= 0.1 * total
    assert any(left_out in words for words in record.left_out), record
    if rate * MIB > DISK_RATE:
        written_in = [cell for cell in run.cells if "seqwrite" in cell.id and "iops" in cell.metrics]
        assert any(cell.metrics["iops"].guest for cell in written_in), done.stdout
