"""Where the microseconds go: `passthrough-blk` with one I/O in flight in the lab, five times."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.features.breakdown.parts import ADDS_UP, BreakdownRecord
from harness.lab.transport.ssh import SshRunner
from harness.signals import wait_until
from tests.e2e.conftest import host
from tests.e2e.machines import command, latest, measure, started
from tests.patience import patience

__all__ = ["host"]

INSTANCES = "/sys/kernel/tracing/instances"
SCENARIO = """
title = "One I/O at a time"
disk = "optane"
modes = ["host", "passthrough-blk"]
workloads = ["randread-4k"]
write_rate = "2200 MiB/s"

[profile.smoke]
iodepth = [1]
"""


def shown(found: BreakdownRecord) -> str:
    rows = [
        f"  {part.part:<26} host {(part.host or 0) * 1e6:8.1f}  guest {part.guest * 1e6:8.1f}  "
        f"adds {part.added.point * 1e6:+8.1f} us"
        for part in found.parts
    ]
    sums = [
        f"{name} {each.point * 1e6:.1f} us" for name, each in (("sum", found.sum), ("measured", found.measured)) if each
    ]
    costs = [
        f"{what} {cost.point:+.1%} [{cost.low:+.1%}, {cost.high:+.1%}]"
        for what, cost in (
            ("tracing the guest costs it", found.guest_cost),
            ("tracing the host costs the guest", found.below_cost),
            ("and the host", found.host_cost),
        )
        if cost
    ]
    lines = [*rows, f"  {', '.join(sums)}: {found.deviation:+.1%}", f"  {', '.join(costs)}"]
    return "\n".join([f"{found.id}: {found.blocks} blocks", *lines, *(f"  {note}" for note in found.notes)])


def selected(directory: Path) -> list[str]:
    """The arguments for a run with the scenario, which is written there."""
    scenarios = directory / "scenarios"
    scenarios.mkdir()
    (scenarios / "alone.toml").write_text(SCENARIO)
    options = ["--profile=smoke", "--rounds=1", "--lab=embedded", f"--scenarios={scenarios}", "--breakdown"]
    return ["-k", "alone and passthrough-blk", *options]


def instances(host: SshRunner) -> str:
    """Those on the host; none while tracefs is not mounted, as in the lab."""
    return host.run(["ls", INSTANCES], deadline=patience(30), check=False).stdout


@pytest.mark.parametrize("number", range(1, 6))
def test_the_parts_add_up_to_the_measured_added_latency(number: int, host: SshRunner, tmp_path: Path) -> None:
    done = measure(tmp_path, *selected(tmp_path), f"--seed={number}")
    assert done.returncode == 0, done.stdout
    (found,) = latest(tmp_path).of(BreakdownRecord)
    assert found.skipped is None, found.skipped
    print(f"\n{number}: {shown(found)}")  # noqa: T201 - what this test is run for
    assert found.deviation is not None
    assert abs(found.deviation) <= ADDS_UP
    assert found.adds_up
    assert instances(host) == ""


def test_nothing_is_traced_any_more_when_the_run_was_killed(host: SshRunner, tmp_path: Path) -> None:
    with started(tmp_path, *selected(tmp_path)) as run:
        assert wait_until(lambda: instances(host) or run.poll() is not None, deadline=patience(180.0), every=0.3)
        assert instances(host), "the run ended before it traced anything"
        run.kill()
        run.communicate(timeout=patience(60))
    assert wait_until(lambda: not instances(host), deadline=patience(30.0), every=0.3)
    done = command("reap")
    assert done.returncode == 0, done.stdout
