"""One run of pytest that measures simulated hosts, a worker of xdist for each, and what it left."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness.results import Run, RunStore
from tests.bench.many_hosts.hosts import FILES, SimulatedHost

ROOT = Path(__file__).parents[3]
SCENARIO = """
title = "Volumes of simulated hosts"
disk = "storage"
modes = ["host", "raw"]
workloads = ["randread-4k", "randwrite-4k"]
write_rate = "2 GiB/s"
[profile.smoke]
iodepth = [1, 32]
runtime = "2 s"
[[budget]]
metric = "iops"
share = "90 %"
"""
HOST = """
[host.{host.name}]
kind = "ssh"
address = "{host.address}"
port = {host.port}
key = "{here}/servers/user_key"
host_key = "{host_key}"
[host.{host.name}.storage.of_{host.name}]
directory = "{files}"
"""
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Measured:
    """One run of pytest. Times in seconds: `cpu` of the controller and its workers, `hosts_cpu` of all servers."""

    hosts: int
    wall: float
    cpu: float
    hosts_cpu: float
    status: int
    page: Path
    runs: tuple[Run, ...]

    @property
    def measuring(self) -> float:
        """Seconds that the median host measured. Some hosts measure a job again: in 1 % of groups without a reason."""
        return median([run.run.efficiency.wall_s for run in self.runs] or [0.0])

    @property
    def line(self) -> str:
        cells = [len(run.cells) for run in self.runs]
        longest = max((run.run.efficiency.wall_s for run in self.runs), default=0.0)
        share = (self.cpu + self.hosts_cpu) / self.wall
        return (
            f"{self.hosts:3} hosts {self.wall:7.1f} s wall, {self.measuring:6.1f} s of them measuring (longest host "
            f"{longest:.1f} s); CPU s per host: "
            f"{self.cpu / self.hosts:.1f} controller, {self.hosts_cpu / self.hosts:.1f} simulated host; "
            f"{share:4.0%} of one CPU; {min(cells, default=0)} to {max(cells, default=0)} cells per host, "
            f"exit status {self.status}"
        )


def project(here: Path, hosts: Sequence[SimulatedHost]) -> None:
    """A project as a user has it, with all hosts in its lab file."""
    (here / "tox.ini").write_text("[pytest]\n")
    (here / "scenarios").mkdir()
    (here / "scenarios" / "volumes.toml").write_text(SCENARIO)
    for path in ("conftest.py", "scenarios/test_overhead.py"):
        (here / path).write_text((ROOT / path).read_text())
    key = " ".join((here / "servers/host_key.pub").read_text().split()[:2])
    tables = [HOST.format(host=host, here=here, host_key=key, files=FILES) for host in hosts]
    (here / "lab.toml").write_text("".join(tables))


def measure(
    directory: Path, hosts: Sequence[SimulatedHost], rounds: int, *, loses: SimulatedHost | None = None
) -> Measured:
    """Measure these hosts of the project. `loses` dies when its first blocks are measured."""
    disks = [f"--disk=of_{host.name}" for host in hosts]
    command = [sys.executable, "-m", "pytest", "scenarios", "-q", "-p", "tests.bench.many_hosts.simulation"]
    command += [
        f"-n{len(hosts)}",
        f"--reports={directory}",
        f"--history={directory}/history",
        f"--rounds={rounds}",
        "--seed=1",
        *disks,
    ]
    directory.mkdir()
    before, started = sum(map(_cpu_of, hosts)), time.monotonic()
    with (directory / "output.txt").open("wb") as output:
        pytest = subprocess.Popen(
            [*command, "-p", "no:cacheprovider", f"--basetemp={directory}/temporary"],
            cwd=directory.parent,
            env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(directory / "state")},
            stdout=output,
            stderr=output,
        )
    with _dies(loses, directory):
        _, status, used = os.wait4(pytest.pid, 0)
        pytest.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - started
    hosts_cpu = sum(map(_cpu_of, hosts)) - before
    runs = tuple(RunStore(path.parent).read_results() for path in sorted(directory.glob("2*/results.json")))
    page = next(directory.glob("hosts-*.html"), Path())
    return Measured(len(hosts), wall, used.ru_utime + used.ru_stime, hosts_cpu, pytest.returncode, page, runs)


@contextmanager
def _dies(host: SimulatedHost | None, directory: Path) -> Iterator[None]:
    """During the block, the host dies when something was measured on it."""
    over = threading.Event()

    def watch() -> None:
        while host is not None and not over.wait(0.2):
            journals = (path.read_text() for path in directory.glob("*/journal.jsonl"))
            if any(f"of_{host.name}_" in text and '"arm"' in text for text in journals):
                host.die()
                return

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _cpu_of(host: SimulatedHost) -> float:
    """The CPU seconds of a server with all ended connections and commands; 0 if it died."""
    try:
        fields = Path(f"/proc/{host.server.pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICK
