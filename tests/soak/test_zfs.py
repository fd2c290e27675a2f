"""Pools in use of one disk, a mirror and raidz: what was planted there is found and named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.errors import LabUnavailable
from harness.features.embedded.disks import NullBlkDisk
from harness.features.zfs.report import ZfsRecord
from harness.lab.transport.ssh import SshRunner
from harness.report.markdown import markdown_table
from harness.results import Run
from tests.e2e.machines import lab_file, latest, measure, on_lab_host, traces
from tests.patience import patience
from tests.soak.own_disks import own_disks
from tests.soak.zfs_on_host import zfs_installed

DISK_BYTES = 2 << 30
SELECTED = ("-k", "zfs- and randwrite and (zvol-128k or file-16k)", "--profile=smoke", "--rounds=1")
"""4 KiB to records of 128 KiB and of 16 KiB."""
_PATH = 'export PATH="$PATH:/usr/sbin:/sbin"\n'


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool on so many disks. `vdev` are the words of `zpool create` before them."""

    vdev: str
    disks: int
    words: str
    space: float
    """What a record of 128 KiB takes, as a multiple of its bytes."""


POOLS = {
    "one": Pool("", 1, "1 disk", 1.0),
    "mirror": Pool("mirror", 2, "mirror of 2 disks", 2.0),
    "raidz": Pool("raidz", 3, "raidz1 over 3 disks", 1.5),
}


@pytest.fixture(scope="module")
def host() -> Iterator[SshRunner]:
    with on_lab_host() as runner:
        try:
            with zfs_installed(runner):
                yield runner
        except LabUnavailable as error:
            pytest.skip(f"the lab host cannot have ZFS: {error}")


@pytest.fixture(params=POOLS)
def pool(request: pytest.FixtureRequest, host: SshRunner) -> Iterator[Pool]:
    """The pool `use`, on which nothing is durable."""
    wanted = POOLS[request.param]
    before = traces(host)
    disks = [NullBlkDisk(f"zfs{n}", DISK_BYTES, completion_ns=100_000, queue_depth=64) for n in range(wanted.disks)]
    paths = " ".join(f"/dev/{disk.device}" for disk in disks)
    with own_disks(host, *disks):
        make = f"zpool create -f -m none -O sync=disabled use {wanted.vdev} {paths}"
        host.run(["sh", "-c", _PATH + make], deadline=patience(60))
        try:
            yield wanted
            assert host.run(["sh", "-c", f"{_PATH}zfs list -H -o name -r use"], deadline=patience(60)).stdout == "use\n"
        finally:
            host.run(["sh", "-c", f"{_PATH}udevadm settle; zpool destroy -f use"], deadline=patience(60))
    assert traces(host) == before


def run_on(directory: Path) -> Run:
    path = lab_file(directory)
    text = path.read_text().partition("[host.kvm1.disk")[0]
    path.write_text(f'{text}[host.kvm1.storage.storage]\ndataset = "use"\n')
    done = measure(directory, f"--lab={path}", *SELECTED)
    assert "Traceback" not in done.stdout + done.stderr
    run = latest(directory)
    assert run.run.status == "complete", done.stdout
    return run


def test_a_disabled_sync_and_records_that_are_larger_than_writes_are_found_and_named(
    tmp_path: Path, pool: Pool
) -> None:
    run = run_on(tmp_path)
    large, small = (run.cell(f"zfs-{mode}-randwrite-4k-qd32") for mode in ("zvol-128k", "file-16k"))
    for cell in (large, small):
        assert cell.verdict != "void", cell.validity
        assert (cell.effective.host_zfs_pool, cell.effective.host_zfs_sync) == (pool.words, "disabled")
        assert any("sync is disabled on its dataset, which the dataset above it has" in note for note in cell.notes)
    assert (large.effective.host_zfs_volblocksize, small.effective.host_zfs_recordsize) == (128 << 10, 16 << 10)
    assert large.effective.host_zfs_space == pytest.approx(pool.space, abs=0.02)

    records = {record.cell: record for record in run.of(ZfsRecord)}
    moved, less = (records[cell.id].arms["guest"] for cell in (large, small))
    assert moved.both > less.both
    # Each record is read, and written with its copies or parity.
    assert moved.both > 2 * pool.space
    text = markdown_table(run)
    assert "`zvol-128k`, `file-16k` are not durable: sync is disabled on the dataset" in text
    assert "each is a part of a record of 128 KiB, and ZFS reads and writes whole records" in text
