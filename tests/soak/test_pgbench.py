"""pgbench on PostgreSQL in the lab: in a guest of an image of its own and on the host, on the same volume."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.events import Events
from harness.features.commands.request import CommandRecord
from harness.features.embedded.disks import NullBlkDisk
from harness.image import Image
from harness.lab.transport.ssh import SshRunner
from harness.report.terminal import summary_lines
from tests.e2e.conftest import host
from tests.e2e.machines import traces
from tests.patience import patience
from tests.soak.own_disks import measured, own_disks, project
from tests.soak.postgres import COMMAND, PREPARE, postgres_image, postgres_installed

__all__ = ["host"]

DISK = NullBlkDisk("tables", 1 << 30, completion_ns=2_000_000, queue_depth=16)
IMAGE = "/var/lib/libvirt/images/postgres.qcow2"
SCENARIO = f"""
title = "pgbench"
disk = "tables"
modes = ["host", "lvm"]
workloads = ["randread-4k"]
write_rate = "500 MiB/s"

[guest]
image = "{IMAGE}"
fio = "install"

[profile.smoke]
iodepth = [1]
rounds = 1
most_rounds = 1
span = "256 MiB"

[workload.pgbench]
command = {json.dumps(COMMAND)}
prepare = {json.dumps(PREPARE)}
figure = {{ regex = '^tps = ([0-9.]+)', unit = "tps", better = "higher" }}
seconds = "300 s"
writes = "256 MiB"
runs = 3
on_host = true
"""


@pytest.fixture(scope="module")
def image() -> Image:
    """The image on this machine, built if it is not in the cache."""
    return postgres_image(Events())


@pytest.fixture
def on_host(host: SshRunner, image: Image) -> Iterator[None]:
    """The image and the programs on the lab host, which is the same afterwards."""
    before = traces(host)
    try:
        host.put(image.path / "disk.qcow2", IMAGE, deadline=patience(300))
        with postgres_installed(host, image), own_disks(host, DISK):
            yield
        assert traces(host) == before
    finally:
        host.run(["rm", "-f", IMAGE], deadline=patience(60))


@pytest.mark.usefixtures("on_host")
def test_pgbench_gives_the_transactions_per_second_of_guest_and_host(tmp_path: Path) -> None:
    run = measured(project(tmp_path, [DISK.spec], {"tables": SCENARIO}), "--lab=lab.toml")
    (record,) = run.of(CommandRecord)
    assert record.problem is None
    assert len(record.pairs) == 3
    assert record.unit == "tps"
    assert record.cpu_loss is not None
    assert record.most_written is not None
    assert 0 < record.most_written < 256 << 20
    sys.stdout.write("".join(f"{line}\n" for line in summary_lines(run) if "pgbench" in line))
