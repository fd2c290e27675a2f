"""`virt-overhead compare` on two runs whose disks differ by a known factor."""

from __future__ import annotations

import json
from pathlib import Path

from harness.features.embedded.disks import NullBlkDisk
from harness.lab.transport.ssh import SshRunner
from tests.e2e.conftest import host
from tests.e2e.machines import command
from tests.soak.own_disks import measured, own_disks, project

__all__ = ["host"]

FACTOR = 4
EMULATED = 0.03
"""The share by which the faster disk may miss the factor: a request costs the emulated CPUs time as well."""
_SLOW, _FAST = (
    # So many requests at a time, so long each.
    NullBlkDisk(name, 256 * 1024**2, completion_ns=20_000_000, queue_depth=at_once)
    for name, at_once in (("slow", 4), ("fast", 4 * FACTOR))
)
_SCENARIO = """
title = "A disk with a known capacity"
disk = "{disk}"
modes = ["host", "passthrough"]
workloads = ["randread-4k", "randwrite-4k"]
write_rate = "64 MiB/s"

[profile.smoke]
runtime = "1 s"
"""


def test_the_interval_has_the_factor_between_the_disks(tmp_path: Path, host: SshRunner) -> None:
    disks = (_SLOW, _FAST)
    directory = project(
        tmp_path, [disk.spec for disk in disks], {disk.name: _SCENARIO.format(disk=disk.name) for disk in disks}
    )
    with own_disks(host, *disks):
        runs = [measured(directory, "-k", disk.name).run.id for disk in disks]
    done = command("compare", *(str(directory / "reports" / run) for run in runs), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (scenario,) = json.loads(done.stdout)["scenarios"]
    overall = {each["arm_before"]: each for each in scenario["overall"]}
    assert set(overall) == {"host", "guest:passthrough"}
    for arm, each in overall.items():
        change = each["change"]
        assert change["low"] <= FACTOR * (1 + EMULATED), (arm, change)
        assert change["high"] >= FACTOR * (1 - EMULATED), (arm, change)
        assert each["finding"] == "better"
