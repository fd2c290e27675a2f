"""`virt-overhead compare` on two runs whose disks differ by a known factor."""

from __future__ import annotations

import json
from pathlib import Path

from harness.lab.embedded.disks import NullBlkDisk
from harness.lab.transport.ssh import SshRunner
from tests.e2e.conftest import host
from tests.e2e.machines import command
from tests.soak.own_disks import measured, own_disks, project

__all__ = ["host"]

FACTOR = 4
_SLOW, _FAST = (
    NullBlkDisk(name, 256 * 1024**2, completion_ns=10_000, queue_depth=64, bandwidth_mib_s=limit)
    for name, limit in (("slow", 6), ("fast", 6 * FACTOR))
)
_SCENARIO = """
title = "A disk with a limited bandwidth"
disk = "{disk}"
modes = ["host", "passthrough", "lvm"]
workloads = ["randread-32k", "randwrite-32k", "seqread-64k"]
"""


def test_the_interval_has_the_factor_between_the_disks(tmp_path: Path, host: SshRunner) -> None:
    disks = (_SLOW, _FAST)
    directory = project(tmp_path, disks, {disk.name: _SCENARIO.format(disk=disk.name) for disk in disks})
    with own_disks(host, *disks):
        runs = [measured(directory, "-k", disk.name).run.id for disk in disks]
    done = command("compare", *(str(directory / "reports" / run) for run in runs), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (scenario,) = json.loads(done.stdout)["scenarios"]
    overall = {each["arm_before"]: each for each in scenario["overall"]}
    assert set(overall) >= {"host", "guest:passthrough", "guest:lvm"}
    for arm, each in overall.items():
        assert each["change"]["low"] <= FACTOR <= each["change"]["high"], (arm, each["change"])
        assert each["finding"] == "better"
