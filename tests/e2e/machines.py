"""How the end-to-end tests run the harness as its users do, and look at the lab host behind its back."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from harness.features.embedded import lab_host as embedded
from harness.lab.transport.base import Runner
from harness.lab.transport.ssh import SshRunner, SshTarget
from harness.results import Run, RunStore
from harness.results.journal import Journal
from tests.patience import patience

ROOT = Path(__file__).resolve().parents[2]
RUN_SECONDS = 420.0
"""The longest run of a test on an idle machine."""
ENDING_SECONDS = 60.0
"""The longest end of a run that got Ctrl-C, or was killed, on an idle machine."""
FIO_STARTS_SECONDS = 4.0
"""From the beginning of a round to the first slices."""

# The kernel's list of RAID levels stays: a module that was needed once is no trace of a run. LVM is asked in a way that
# leaves no copies of its metadata: those that are there are a run's.
_TRACES = """
lsblk -n -o NAME,TYPE,FSTYPE,MOUNTPOINTS
for report in pvs vgs "lvs --all"; do $report --config "backup/backup=0 backup/archive=0" --noheadings; done
pgrep -l dmeventd
grep '^md' /proc/mdstat
losetup -a
virsh list --name
findmnt -n -t ext4,xfs
cd /var/lib/virt-overhead && find mnt created console /run/virt-overhead -mindepth 1; cd /
find /sys/kernel/tracing/instances -mindepth 1 -maxdepth 1
find /etc/lvm/archive /etc/lvm/backup /dev/md -mindepth 1
ls -d /sys/bus/pci/drivers/*/0000:*
ls -d /run/voh-* /sys/fs/cgroup/lxc.*.voh-*
true
"""


def pytest_command(reports: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", f"--reports={reports}", "-p", "no:cacheprovider", *arguments]


def measure(reports: Path, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run pytest on the scenarios as a user does."""
    return ran(pytest_command(reports, *arguments), env=env)


def command(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `virt-overhead` with these arguments."""
    return ran([sys.executable, "-m", "harness.cli", *arguments], env=env)


def ran(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path = ROOT, seconds: float = RUN_SECONDS
) -> subprocess.CompletedProcess[str]:
    """The command, which takes at most so many seconds on an idle machine.

    A command that takes much longer is ended like by Ctrl-C, so it removes what it made: the next test meets nothing
    of it. The error has its output.
    """
    words = list(command)
    with subprocess.Popen(
        words, cwd=cwd, env=os.environ | dict(env or {}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        limit = patience(seconds)
        try:
            out, err = process.communicate(timeout=limit)
        except BaseException as error:
            process.send_signal(signal.SIGTERM)
            out, err = end_of(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise AssertionError(f"not done after {limit:.0f} s: {words}\n{out}{err}") from error
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def end_of(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a process printed that was told to end. If it does not, it is killed."""
    try:
        return process.communicate(timeout=patience(ENDING_SECONDS))
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()


@contextmanager
def background(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> Iterator[subprocess.Popen[str]]:
    """The command, running; ended, if it still goes on, by its own process id.

    Ctrl-C reaches it also where the tests themselves were started in the background: a shell lets such a process
    ignore it, and children inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=os.environ | dict(env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                # A test that failed meanwhile must leave nothing of the run to the next one.
                process.send_signal(signal.SIGTERM)
                end_of(process)


def started(reports: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A run in the background."""
    return background(pytest_command(reports, *arguments))


def wait_for_measurements(reports: Path, run: subprocess.Popen[str], *, rounds: int = 1, seconds: float = 180) -> None:
    """Wait until so many rounds are begun, and something was measured in them or fio runs. Measurements are stored when
    a timetable has ended. A round that lost its guest does not count."""
    end = time.monotonic() + patience(seconds)
    runs_fio = math.inf
    path = reports / "latest"
    while True:
        journal = RunStore.open(path).read_journal() if (path / "journal.jsonl").exists() else Journal()
        given_up = {(each.group, each.round) for each in journal.rounds if each.event == "abandoned"}
        measured = any((each.group, each.round) not in given_up for each in journal.measurements)
        begun = sum(each.event == "begun" for each in journal.rounds) - len(given_up)
        runs_fio = min(runs_fio, time.monotonic() + FIO_STARTS_SECONDS) if begun >= rounds else math.inf
        if begun >= rounds and (measured or time.monotonic() > runs_fio):
            return
        assert run.poll() is None, "the run ended before it measured anything"
        assert time.monotonic() < end, f"nothing was measured in {patience(seconds):g} s"
        time.sleep(0.5)


def latest(reports: Path) -> Run:
    return RunStore.open(reports / "latest").read_results()


@contextmanager
def on_lab_host() -> Iterator[SshRunner]:
    """A login on the running lab host, beside the one that the harness uses."""
    machine = embedded.state().running()
    assert machine is not None, "the embedded lab is not running"
    target = SshTarget("127.0.0.1", machine.port, "root", Path(machine.key), machine.host_key)
    runner = SshRunner.connect(target, name="lab host", deadline=patience(30))
    try:
        yield runner
    finally:
        runner.close()


@contextmanager
def lab_ssh() -> Iterator[list[str]]:
    """The ssh command that logs in to the running lab host, whose key is pinned. Its connection ends with this."""
    machine = embedded.state().running()
    assert machine is not None, "the embedded lab is not running"
    with tempfile.TemporaryDirectory(prefix="virt-overhead-ssh-") as directory:
        known = Path(directory) / "known_hosts"
        known.write_text(f"[127.0.0.1]:{machine.port} {machine.host_key}\n")
        options = {
            "UserKnownHostsFile": str(known),
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            # One connection carries all commands: under emulation a handshake costs more than most of them.
            "ControlMaster": "auto",
            "ControlPath": f"{directory}/%C",
            "ControlPersist": "60",
        }
        given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        words = ["-F", "none", "-i", machine.key, "-p", str(machine.port), *given, "root@127.0.0.1"]
        try:
            yield ["ssh", *words]
        finally:
            subprocess.run(["ssh", "-O", "exit", *words], capture_output=True, check=False)


def lab_lost() -> bool:
    """Whether the lab host answers nobody, or has ended by itself; `virt-overhead lab up` has started it anew then."""
    record = embedded.state().record
    if not record.exists():  # it was taken down, as after the last test
        return False
    before = record.read_text()
    done = command("lab", "up")
    assert done.returncode == 0, done.stdout + done.stderr
    return record.read_text() != before


def traces(runner: Runner) -> str:
    """All that a run could leave behind on the lab host, as text."""
    return runner.run(["sh", "-s"], stdin=_TRACES, deadline=patience(60)).stdout


def lab_file(directory: Path, **changes: str) -> Path:
    """A lab.toml that names the embedded lab's host as what it is to the harness: a host over SSH.

    `changes` replaces values: address, port, id, serial, destroy.
    """
    machine = embedded.state().running()
    assert machine is not None, "the embedded lab is not running"
    value = {
        "address": "127.0.0.1",
        "port": str(machine.port),
        "id": "/dev/disk/by-id/lab-sim_optane",
        "serial": "sim_optane",
        "destroy": "true",
    } | changes
    path = directory / "lab.toml"
    path.write_text(
        f'profile = "smoke"\n[host.kvm1]\nkind = "ssh"\naddress = "{value["address"]}"\nport = {value["port"]}\n'
        f"key = {json.dumps(machine.key)}\nhost_key = {json.dumps(machine.host_key)}\n"
        f'[host.kvm1.disk.optane]\nid = "{value["id"]}"\nserial = "{value["serial"]}"\ndestroy = {value["destroy"]}\n'
    )
    return path
