"""The scenario of the study through Proxmox VE: the API is the double's, and its guests run in the embedded lab."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.features.embedded.disks import DISKS, SimulatedDisk
from harness.features.proxmox import ROOT as ROOT_USER
from harness.features.proxmox import ApiSpec, SecretSource
from harness.features.proxmox.client import Client
from harness.features.proxmox.session import Secret
from harness.lab.transport.base import Runner
from tests.e2e.machines import (
    ROOT,
    background,
    lab_file,
    lab_ssh,
    latest,
    measure,
    on_lab_host,
    traces,
)
from tests.patience import patience

PASSWORD = "a password of the double"
TOKEN = "0c9a2f5e-6d3b-4f0e-9a51-7f3d1c2b8e44"
SECRETS = {"PVE_PASSWORD": PASSWORD, "PVE_TOKEN": TOKEN}
DISK = "/dev/disk/by-id/lab-sim_optane"
SCRIPTS = ROOT / "pve_double" / "node"
ONE_JOB = ("--profile=smoke", "--rounds=1")
START_SECONDS = 120.0

# What is on the node of a run: processes, files, mounts, network cards. The ISO stays on purpose.
_OF_RUNS = """
pgrep -l qemu-system
ls /var/run/qemu-server /mnt/pve /sys/class/net/vmbr0/brif
find /var/lib/vz/images -type f
wipefs --noheadings --output TYPE /dev/disk/by-id/lab-sim_optane
true
"""
# And what is there of the double alone.
_OF_THE_DOUBLE = (
    "ls -d /etc/pve /var/lib/vz /var/run/qemu-server /mnt/pve /usr/local/bin/* /sys/class/net/* 2>/dev/null; true"
)


@dataclass(frozen=True, slots=True)
class Node:
    """The double that runs: its API, and the lab host behind it."""

    port: int
    authority: Path
    runner: Runner = field(repr=False)

    def lab(self, directory: Path, *, token: bool = False, **changes: str) -> Path:
        """A lab.toml that names the double's node, as an owner of Proxmox VE writes it. `changes` as for `lab_file`."""
        login = 'user = "root@pam"\ntoken = "voh"\nsecret = { env = "PVE_TOKEN" }'
        if not token:
            login = 'secret = { env = "PVE_PASSWORD" }'
        path = lab_file(directory, **changes)
        over_ssh = path.read_text().replace('kind = "ssh"', 'kind = "proxmox"').replace("kvm1", "pve1")
        path.write_text(
            f'{over_ssh}[host.pve1.api]\nurl = "https://127.0.0.1:{self.port}"\nnode = "pve"\n'
            f'ca_file = "{self.authority}"\n{login}\n'
            '[host.pve1.guest]\nnetwork = "static"\naddress = "10.99.0.50/16"\n'
        )
        return path

    def left(self) -> str:
        """All that runs could leave on the node, as its API and its shell tell it."""
        url, secret = f"https://127.0.0.1:{self.port}", SecretSource(env="PVE_PASSWORD")
        given = {"url": url, "node": "pve", "user": ROOT_USER, "secret": secret, "ca_file": str(self.authority)}
        spec = ApiSpec.model_validate(given)
        client = Client(spec, Secret(PASSWORD), "pve1")
        try:
            guests = [each["vmid"] for kind in ("qemu", "lxc") for each in client.get(f"nodes/pve/{kind}")]
            storages = sorted(each["storage"] for each in client.get("storage"))
            volumes = [
                each["volid"]
                for storage in storages
                for each in client.get(f"nodes/pve/storage/{storage}/content")
                if each["content"] != "iso"
            ]
        finally:
            client.close()
        return f"{guests} {storages} {volumes}\n{_shell(self.runner, _OF_RUNS)}"


@pytest.fixture(scope="module")
def node(lab: None) -> Iterator[Node]:  # noqa: ARG001 - it has to be up
    """The double, with the lab's disks."""
    with running_node(DISKS) as found:
        yield found


@contextmanager
def running_node(disks: Iterable[SimulatedDisk]) -> Iterator[Node]:
    """The double with these disks, at the end of which the lab host is as before."""
    with on_lab_host() as runner:
        before = traces(runner) + _shell(runner, _OF_THE_DOUBLE)
        with _double(runner, disks) as said, _node_commands(runner, int(said["node port"])):
            yield Node(int(said["ready"].rpartition(":")[2]), Path(said["CA"]), runner)
        assert traces(runner) + _shell(runner, _OF_THE_DOUBLE) == before


@contextmanager
def _double(runner: Runner, disks: Iterable[SimulatedDisk]) -> Iterator[Mapping[str, str]]:
    """`python -m pve_double` on a free port, with guests in the lab; yields what it prints, by key."""
    words = [sys.executable, "-m", "pve_double", "--listen=127.0.0.1:0", f"--password={PASSWORD}"]
    words += [
        f"--token={ROOT_USER}!voh={TOKEN}",
        *(f"--disk={disk}" for disk in _disks(runner, disks)),
        "--executor=qemu",
    ]
    with lab_ssh() as ssh, background([*words, f"--ssh={shlex.join(ssh)}"]) as process:
        assert process.stdout is not None
        said: dict[str, str] = {}
        lines: list[str] = []
        while "ready" not in said and (line := process.stdout.readline()):
            lines.append(line)
            key, _, value = line.strip().partition(": ")
            said[key] = value
        assert "ready" in said, "".join(lines)
        try:
            yield said
        finally:
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=patience(START_SECONDS))
        assert process.returncode == 0, output


def _disks(runner: Runner, disks: Iterable[SimulatedDisk]) -> Iterator[str]:
    """These disks as `--disk` has them: BY_ID,SERIAL,SIZE,DEVICE."""
    for each in (disk.spec for disk in disks):
        device, size = _shell(runner, f"readlink -f {each.id}; blockdev --getsize64 {each.id}").split()
        yield f"{each.id},{each.serial},{size},{device}"


@contextmanager
def _node_commands(runner: Runner, port: int) -> Iterator[None]:
    """PVE's own commands on the node, which ask the double. From there this machine is 10.0.2.2."""
    with ExitStack() as stack:
        for name in ("qm", "pvesm", "pveversion"):
            path = f"/usr/local/bin/{name}"
            stack.callback(runner.run, ["rm", "-f", path], deadline=patience(20))
            runner.put(SCRIPTS / name, path, deadline=patience(20))
            runner.run(["chmod", "+x", path], deadline=patience(20))
        address = "/usr/local/bin/pve-double-node"
        stack.callback(runner.run, ["rm", "-f", address], deadline=patience(20))
        runner.run(["sh", "-c", 'echo "$1" >"$2"', "sh", f"http://10.0.2.2:{port}", address], deadline=patience(20))
        yield


def _shell(runner: Runner, script: str) -> str:
    return runner.run(["sh", "-s"], stdin=script, deadline=patience(60)).stdout


@pytest.fixture(autouse=True)
def nothing_left(node: Node) -> Iterator[None]:
    """After each test the node has what it had before: no VM, volume, storage, file, mount or network card of a run."""
    before = node.left()
    yield
    assert node.left() == before


def test_the_scenario_of_the_study_is_measured_through_the_api(tmp_path: Path, node: Node) -> None:
    done = measure(tmp_path, f"--lab={node.lab(tmp_path)}", "-k", "optane and randread", *ONE_JOB, env=SECRETS)
    assert done.returncode == 0, done.stdout
    run = latest(tmp_path)
    assert (run.run.status, run.lab.accel, run.lab.representative) == ("complete", "kvm", False)
    guest = run.provenance["guest"]
    assert isinstance(guest, dict)
    assert guest["hypervisor"] == "KVM"
    host = run.provenance["host"]
    assert isinstance(host, dict)
    assert str(host["pve"]).startswith("pve-manager/9.2.11/")

    modes = ("host", "passthrough", "lvm", "raw", "raw-cached")
    assert {cell.mode for cell in run.cells} == set(modes)
    for cell in run.cells:
        iops = cell.metrics["iops"]
        assert [bool(arm) for arm in (iops.host, iops.twin, iops.guest)] == [
            True,
            cell.mode not in ("host", "passthrough"),
            cell.mode != "host",
        ]
    # The cached mode reads the host's memory, as declared; every other figure is the disk's.
    # The blocks of one round may leave it open whether the budget is kept.
    verdicts = [cell.verdict for cell in run.cells if cell.mode in ("passthrough", "lvm", "raw")]
    assert len(verdicts) == 3
    assert set(verdicts) <= {"inconclusive", "within"}
    cached = run.cell("optane-raw-cached-randread-4k-qd32")
    assert (cached.verdict, cached.validity[-1].ok) == ("unjudged", True)
    assert cached.cached is not None
    assert cached.cached.reads["guest"].share > 0.9

    for mode in modes[1:]:
        cell = run.cell(f"optane-{mode}-randread-4k-qd32")
        (proven,) = [check for check in cell.validity if check.check == "configuration"]
        assert proven.ok, proven.detail
        assert "not read back" not in proven.detail
        assert cell.effective.qemu_device == "scsi-hd"
        assert cell.effective.qemu_cache_direct is (mode != "raw-cached")
    drives = {mode: str(run.cell(f"optane-{mode}-randread-4k-qd32").effective.pve_drive) for mode in modes[1:]}
    assert f": {DISK}," in drives["passthrough"]
    assert f": voh-{run.run.id}-lvm:" in drives["lvm"]
    assert "aio=native" in drives["raw"]
    assert PASSWORD not in done.stdout + (tmp_path / "latest" / "results.json").read_text()
