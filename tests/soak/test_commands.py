"""Commands in the lab: planted faults of flushes are named, and hostile commands end on host and guest."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.features.commands.request import CommandRecord
from harness.features.embedded.disks import NullBlkDisk
from harness.lab.transport.ssh import SshRunner
from harness.report.terminal import summary_lines
from harness.results import Run
from tests.e2e.conftest import host
from tests.e2e.machines import latest
from tests.soak.own_disks import only_disks, project, tried

__all__ = ["host"]

DISK = NullBlkDisk("synced", 1 << 30, completion_ns=2_000_000, queue_depth=16)
HEAD = """
disk = "synced"
workloads = ["randread-4k"]
write_rate = "500 MiB/s"
guest = { vcpus = 2, memory = "512 MiB" }

[profile.smoke]
iodepth = [1]
rounds = 1
most_rounds = 1
blocks = 2
span = "64 MiB"
"""
PLANTED = f"""
title = "Flushes that QEMU ignores, and a guest whose I/Os are throttled"
modes = ["host", "lvm", "slow", "unsafe"]
{HEAD}
[mode.slow]
layout = {{ kind = "lvm" }}
attach = {{ iops = 20 }}

[mode.unsafe]
layout = {{ kind = "lvm" }}
attach = {{ cache = "unsafe", aio = "threads" }}

[workload.fsyncs]
command = "syncload fsyncs 3"
figure = {{ regex = '^FSYNCS/SECOND: ([0-9.]+)', unit = "fsync/s", better = "higher" }}
seconds = "60 s"
writes = "512 MiB"
runs = 3
on_host = true
"""
CACHED = f"""
title = "The host's memory has all of a file, the guest's has not"
modes = ["host", "lvm"]
{HEAD.replace("512 MiB", "256 MiB").replace("64 MiB", "480 MiB")}
[workload.passes]
prepare = "dd if=/dev/zero of=file bs=1M count=200"
command = "for pass in 1 2 3 4 5 6; do cat file >/dev/null; done"
seconds = "180 s"
runs = 2
on_host = true
"""
COUNTED = "tr / ' ' </proc/loadavg | { read -r _ _ _ _ tasks _; echo tasks=$tasks; }"
"""The tasks of the whole machine, also those outside of the command's own namespace."""
HOSTILE = {
    "endless": ("yes 7181", "exit status 1"),
    "forks": ("bomb() { bomb | bomb & }; bomb; sleep 7182", "did not end within 3 s"),
    "detached": ("setsid sh -c 'trap \"\" HUP TERM; sleep 7183' & exit 3", "exit status 3"),
    "silent": ("true", "nothing in the output matches"),
    "nan": ("echo tasks=nan", "nothing in the output matches"),
    "greedy": ("x=$(yes | tr -d '\\n' | head -c 2000000000); echo tasks=1", ""),
    "full": ("dd if=/dev/zero of=file bs=1M 2>&1; exit 4", ""),
}


def make_hostile(keys: str) -> str:
    """Tables of the hostile commands between two that count tasks, with these keys."""
    commands = {"before": COUNTED} | {name: command for name, (command, _) in HOSTILE.items()} | {"zafter": COUNTED}
    return "".join(
        f"""
[workload.{name}]
command = {json.dumps(command)}
figure = {{ regex = '^tasks=([0-9]+)', unit = "tasks" }}
seconds = "{60 if name in ("before", "zafter") else 3} s"
runs = 2
{keys}
"""
        for name, command in commands.items()
    )


def require_ended(run: Run) -> None:
    """Require that each hostile command ended with its reason, left no process, and lost nothing else of the run."""
    records = {record.name: record for record in run.of(CommandRecord) if record.name != "fsyncs"}
    assert set(records) == {"before", "zafter", *HOSTILE}
    for name, (_, why) in HOSTILE.items():
        assert records[name].in_guest == ()
        assert why in (records[name].problem or ""), records[name].problem
    assert records["before"].problem is records["zafter"].problem is None
    for before, after in (
        (records["before"].in_guest, records["zafter"].in_guest),
        (records["before"].on_host, records["zafter"].on_host),
    ):
        # Threads of the kernel come and go.
        assert not before or max(after) <= max(before) + 20
    assert all(cell.metrics["iops"].guest for cell in run.cells if cell.mode == "lvm")


@pytest.fixture
def disk(host: SshRunner) -> Iterator[None]:
    with only_disks(host, DISK):
        yield


def measure(directory: Path, scenario: str) -> Run:
    """The run, whose cells may be void: memory serves that of cache unsafe."""
    done = tried(project(directory, [DISK.spec], {"synced": scenario}), "--lab=lab.toml")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    sys.stdout.write(done.stdout)
    return latest(directory / "reports")


def show(run: Run) -> list[str]:
    """What the run says of commands, which a person wants to see."""
    lines = [line for line in summary_lines(run) if any(record.name in line for record in run.of(CommandRecord))]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return lines


@pytest.mark.usefixtures("disk")
def test_ignored_flushes_and_a_slow_guest_are_named_and_hostile_commands_end_in_the_guest(tmp_path: Path) -> None:
    run = measure(tmp_path, PLANTED + make_hostile('modes = ["lvm"]'))
    lines = show(run)
    records = {record.mode: record for record in run.of(CommandRecord) if record.name == "fsyncs"}
    assert {mode: record.problem for mode, record in records.items()} == dict.fromkeys(("lvm", "slow", "unsafe"))
    assert all(record.cpu_loss is not None for mode, record in records.items() if mode != "unsafe")
    sentences = {mode: " ".join(line for line in lines if f"fsyncs on {mode}" in line) for mode in records}
    assert "the VM is responsible for most of it, not the disk" in sentences["slow"]
    assert "QEMU ignores the flushes of this guest" in sentences["unsafe"]
    assert "the host alone has" in sentences["unsafe"]
    assert "ignores" not in sentences["lvm"]
    require_ended(run)


@pytest.mark.usefixtures("disk")
def test_hostile_commands_end_on_the_host(tmp_path: Path) -> None:
    """Chance decides which side runs first, and the first run ends a command: so about half of them run on the host."""
    scenario = f'title = "Hostile commands"\nmodes = ["host", "lvm"]\n{HEAD}{make_hostile("on_host = true")}'
    run = measure(tmp_path, scenario)
    show(run)
    require_ended(run)


@pytest.mark.usefixtures("disk")
def test_a_host_that_reads_from_memory_what_its_guest_reads_from_the_disk_has_no_figure(tmp_path: Path) -> None:
    run = measure(tmp_path, CACHED)
    lines = show(run)
    (record,) = run.of(CommandRecord)
    assert record.problem is None
    assert record.cached_side == "host"
    assert (record.loss, record.host_mean) == (None, None)
    assert any("the figure of the host is refused" in line for line in lines)
