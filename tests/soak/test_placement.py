"""A pinned guest against one that is not, and polling on against off, in one waterfall in the lab."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.features.decompose.records import DecompositionRecord
from harness.features.embedded.disks import NullBlkDisk
from harness.lab.transport.ssh import SshRunner
from harness.report.terminal import difference_lines
from harness.results import CellRecord
from tests.e2e.conftest import host
from tests.patience import patience
from tests.soak.own_disks import measured, only_disks, project

__all__ = ["host"]

DISK = NullBlkDisk("placed", 2 << 30, completion_ns=1_000_000, queue_depth=64)
# The lab's guests run on the last CPU of their host, because emulated ones crash on several (docs/lab.md).
SCENARIO = """
title = "Pinned against not pinned, and polling on against off"
disk = "placed"
modes = ["host", "passthrough-blk", "polling", "sleeping"]
workloads = ["randread-4k"]
write_rate = "500 MiB/s"
guest = {{ vcpus = 1, memory = "512 MiB" }}

[mode.polling]
layout = {{ kind = "device" }}
attach = {{ bus = "virtio-blk", poll_max_ns = 32768 }}

[mode.sleeping]
layout = {{ kind = "device" }}
attach = {{ bus = "virtio-blk", poll_max_ns = 0 }}

[variant.free]

[variant.pinned]
guest = {{ pin_vcpus = ["{last}"], pin_iothreads = "0", pin_emulator = "0" }}

[decompose.placement]
steps = [
    "host",
    "guest:passthrough-blk-free",
    "guest:passthrough-blk-pinned",
    "guest:polling-pinned",
    "guest:sleeping-pinned",
]

[profile.smoke]
iodepth = [1]
runtime = "0.5 s"
span = "256 MiB"
rounds = 2
most_rounds = 2
blocks = 3
"""


@pytest.fixture
def disk(host: SshRunner) -> Iterator[None]:
    with only_disks(host, DISK):
        yield


@pytest.mark.usefixtures("disk")
def test_pinning_and_polling_are_read_back_and_are_steps_of_one_waterfall(tmp_path: Path, host: SshRunner) -> None:
    last = str(int(host.run(["nproc"], deadline=patience(20)).stdout) - 1)
    directory = project(tmp_path, [DISK.spec], {"placed": SCENARIO.format(last=last)})
    run = measured(directory, "--lab=lab.toml")
    cells: dict[str, CellRecord] = {cell.mode: cell for cell in run.cells}
    for name, cell in cells.items():
        assert cell.skipped is None, name
        assert not [check.detail for check in cell.validity if not check.ok], name
    for name in ("passthrough-blk-pinned", "polling-pinned", "sleeping-pinned"):
        found = cells[name].effective
        assert (found.host_vcpu_cpus, found.host_iothread_cpus, found.host_emulator_cpus) == ((last,), "0", "0"), name
    for mode, polls in {"polling": 32768, "sleeping": 0}.items():
        for variant in ("free", "pinned"):
            assert cells[f"{mode}-{variant}"].effective.qemu_poll_max_ns == polls, (mode, variant)

    (waterfall,) = run.of(DecompositionRecord)
    assert waterfall.skipped is None
    assert [(step.arm, step.change) for step in waterfall.steps] == [
        ("host", ""),
        ("guest:passthrough-blk-free", "virtualisation (virtio-blk, cache none, aio native, iothread)"),
        ("guest:passthrough-blk-pinned", f"no pinning -> pinning vCPUs on {last}, iothreads on 0, emulator on 0"),
        ("guest:polling-pinned", "poll max ns default -> 32768"),
        ("guest:sleeping-pinned", "poll max ns 32768 -> 0"),
    ]
    # In the emulated lab, a slice may start too late. Its block lacks an arm, and is left out of all steps.
    assert 4 <= len(waterfall.rounds) <= 6
    assert not [step.doubt for step in waterfall.steps if step.doubt]
    added = [step.added.point for step in waterfall.steps if step.added is not None]
    assert waterfall.added is not None
    assert sum(added) == pytest.approx(waterfall.added.point)
    assert added[0] > 0, "a guest costs something"
    page = (directory / "reports" / "latest" / "index.html").read_text(encoding="utf-8")
    assert f"pinning vCPUs on {last}, iothreads on 0, emulator on 0" in page
    assert any("pinned" in line for line in difference_lines(run))
