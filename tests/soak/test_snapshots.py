"""Snapshots under load in the lab: of a thin volume of a pool in use, whose owner's volumes stay as they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.features.embedded.disks import NullBlkDisk
from harness.features.snapshots.request import SnapshotRecord
from harness.lab.transport.ssh import SshRunner
from harness.signals import wait_until
from tests.e2e.machines import background, command, on_lab_host
from tests.patience import patience
from tests.soak.own_disks import measured, own_disks, project

DISK = NullBlkDisk("pooled", 2 << 30, completion_ns=2_000_000, queue_depth=8)
SCENARIO = """
title = "Snapshots of a thin volume"
disk = "storage"
modes = ["host", "lvm-thin"]
workloads = ["randread-4k", "randwrite-4k"]
write_rate = "500 MiB/s"
guest = { vcpus = 1, memory = "512 MiB" }

[snapshot.pause]
pairs = 4
seconds = "6 s"

[profile.smoke]
iodepth = [4]
runtime = "1 s"
span = "32 MiB"
blocks = 2
rounds = 1
most_rounds = 1
"""
_MAKE = """
vgcreate --yes --quiet use "$1" &&
lvcreate --yes --quiet --type thin-pool --size 1800m --poolmetadatasize 16m --chunksize 64k --zero n --name pool use &&
lvcreate --yes --quiet --virtualsize 32m --thinpool pool --name theirs use &&
lvcreate --yes --quiet --snapshot --name voh-theirs use/theirs
"""
_LIST = "lvs --noheadings -o lv_name,lv_uuid,origin use"


def ask(host: SshRunner, script: str, *words: str) -> str:
    return host.run(["sh", "-c", script, "sh", *words], deadline=patience(120)).stdout


@pytest.fixture(scope="module")
def host(lab: None) -> Iterator[SshRunner]:  # noqa: ARG001 - it has to be up
    """The lab host with a pool, in which somebody else has a volume with a snapshot, and nothing else afterwards."""
    with on_lab_host() as host, own_disks(host, DISK):
        ask(host, _MAKE, f"/dev/{DISK.device}")
        try:
            before = ask(host, _LIST)
            yield host
            assert ask(host, _LIST) == before
        finally:
            host.run(["vgremove", "--yes", "--force", "--quiet", "use"], deadline=patience(60), check=False)


def pooled(directory: Path, text: str) -> Path:
    """A project with this scenario, whose lab has only the pool."""
    found = project(directory, [], {"pooled": text})
    lab = found / "lab.toml"
    lab.write_text(lab.read_text() + '[host.lab.storage.storage]\nthin_pool = "use/pool"\n')
    return found


def test_snapshots_of_a_thin_volume_are_measured_while_it_is_read_and_written(tmp_path: Path, host: SshRunner) -> None:
    before = ask(host, _LIST)
    run = measured(pooled(tmp_path, SCENARIO), "--lab=lab.toml")
    records = run.of(SnapshotRecord)
    assert [record.job for record in records] == ["randread-4k-qd4", "randwrite-4k-qd4"]
    for record in records:
        assert record.kind == "snapshot of a thin volume of LVM"
        assert len(record.alone) >= 3, record.problem
        assert min(record.alone) > 0
        assert record.pause is not None
        assert 0 < min(record.taking) < 6
    assert ask(host, _LIST) == before


def test_reap_removes_the_snapshot_of_a_killed_run_and_no_other(tmp_path: Path, host: SshRunner) -> None:
    before = ask(host, _LIST)
    directory = pooled(tmp_path, SCENARIO.replace("pairs = 4", "pairs = 40"))
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--lab=lab.toml"]
    with background(words, cwd=directory) as run:
        seen = wait_until(lambda: ask(host, _LIST).count("lvm-thin") > 1, deadline=patience(400), every=0.5)
        run.kill()
        run.communicate(timeout=patience(60))
    assert seen, "no snapshot of the volume was taken"
    done = command("reap", f"--lab={directory / 'lab.toml'}", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ask(host, _LIST) == before
