"""A search for the highest load, on a disk whose answer is known: so many requests at a time, so long each."""

from __future__ import annotations

from pathlib import Path

from harness.features.embedded.disks import NullBlkDisk
from harness.features.search.request import SearchRecord
from harness.lab.transport.ssh import SshRunner
from tests.e2e.conftest import host
from tests.soak.own_disks import measured, own_disks, project

__all__ = ["host"]

ANSWER_S = 0.05
"""Longer than the delays of an emulated lab, so that they hardly count."""
AT_ONCE = 16
CAPACITY = AT_ONCE / ANSWER_S
DISK = NullBlkDisk("served", 256 * 1024**2, completion_ns=round(ANSWER_S * 1e9), queue_depth=AT_ONCE)
DEPTH = 128
BOUND_S = 0.2
"""More than an answer takes with the delays of an emulated lab, and less than the time in a full queue (400 ms)."""
LEAST = {"host": 0.85, "guest:passthrough": 0.75}
"""The share of the capacity that must be found. Timers under emulation are late: with a full queue, the host gets 97 %
of it. The delays of the guest fill the queue at lower rates."""
_SCENARIO = f"""
title = "A disk with a known capacity"
disk = "{DISK.name}"
modes = ["host", "passthrough"]
workloads = ["randread-4k"]
write_rate = "64 MiB/s"

[profile.smoke]
iodepth = [{DEPTH}]

[search.busy]
workload = "randread-4k"
iodepth = {DEPTH}
bound = "{BOUND_S * 1000:g} ms"
"""


def test_the_highest_load_is_what_the_disk_answers(tmp_path: Path, host: SshRunner) -> None:
    with own_disks(host, DISK):
        run = measured(project(tmp_path, [DISK.spec], {"known": _SCENARIO}))
    (search,) = run.of(SearchRecord)
    assert {arm.arm for arm in search.arms} == {"host", "guest:passthrough"}
    for arm in search.arms:
        assert not arm.doubt
        assert arm.iops is not None, arm
        assert arm.low is not None, arm
        assert arm.high is not None, arm
        assert LEAST[arm.arm] * CAPACITY < arm.iops <= 1.01 * CAPACITY
        assert arm.low <= CAPACITY
        for rate in arm.rates:
            if rate.latency is not None and rate.iops and max(rate.iops) < 0.8 * arm.iops:
                assert ANSWER_S <= rate.latency < BOUND_S
