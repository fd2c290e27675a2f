"""Containers in the lab: beside a VM on the same volume, on libvirt's and Proxmox VE's hosts; after a kill."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.features.embedded.disks import NullBlkDisk
from harness.lab.transport.ssh import SshRunner
from harness.report.terminal import difference_lines
from harness.results import Run
from tests.e2e.machines import background, command, on_lab_host, traces, wait_for_measurements
from tests.e2e.test_proxmox import SECRETS, Node, running_node
from tests.patience import patience
from tests.soak.own_disks import measured, own_disks, project
from tests.soak.unpacked import LXC, unpacked

DISK = NullBlkDisk("boxed", 1 << 30, completion_ns=5_000_000, queue_depth=4)
"""5 ms for each request, so the emulated CPUs are mostly idle, and VM and container must be nearly alike."""
SCENARIO = """
title = "VM or container?"
disk = "boxed"
modes = ["host", "own"]
workloads = ["randread-4k", "randwrite-4k"]
write_rate = "500 MiB/s"
guest = { vcpus = 1, memory = "512 MiB" }

[mode.own]
layout = { kind = "lvm" }
attach = {}
container = true

[profile.smoke]
iodepth = [1]
runtime = "2 s"
span = "32 MiB"
blocks = 3
rounds = 2
most_rounds = 2
"""
# A container of others, with a name as ours have it, and its state as text. The kernel of the lab host has AppArmor,
# but no profile for containers.
_OTHERS = r"""
set -e
at=/root/others name=voh-20260101-000000-abcd
mkdir -p $at/$name/rootfs && cd $at/$name/rootfs
mkdir usr proc sys dev && ln -s usr/bin bin && ln -s usr/lib lib && ln -s usr/lib64 lib64
cat >../config <<CONFIG
lxc.include = /usr/share/lxc/config/common.conf
lxc.rootfs.path = dir:$at/$name/rootfs
lxc.net.0.type = empty
lxc.apparmor.profile = unconfined
lxc.init.cmd = /usr/bin/sleep infinity
lxc.mount.entry = /usr usr none bind,ro 0 0
CONFIG
lxc-start --lxcpath $at --name $name --daemon
"""
_STATE = "lxc-info --lxcpath /root/others --name voh-20260101-000000-abcd --state --pid"
_GONE = "lxc-stop --lxcpath /root/others --name voh-20260101-000000-abcd --kill; rm -rf /root/others"


def ask(host: SshRunner, script: str) -> str:
    return host.run(["sh", "-c", script], deadline=patience(60)).stdout.strip()


@pytest.fixture(scope="module")
def host(lab: None) -> Iterator[SshRunner]:  # noqa: ARG001 - it has to be up
    """The lab host with LXC, the disk, and a container of others, which is the same afterwards."""
    with on_lab_host() as host, unpacked(host, LXC), own_disks(host, DISK):
        host.run(["sh", "-c", _OTHERS], deadline=patience(120))
        try:
            state = ask(host, _STATE)
            assert "RUNNING" in state
            yield host
            assert ask(host, _STATE) == state
        finally:
            host.run(["sh", "-c", _GONE], deadline=patience(60), check=False)


@pytest.fixture
def as_before(host: SshRunner) -> Iterator[None]:
    """Afterwards the host has what it had before."""
    before = traces(host)
    yield
    assert traces(host) == before


@pytest.fixture(scope="module")
def node(host: SshRunner) -> Iterator[Node]:  # noqa: ARG001 - LXC and the disk
    with running_node([DISK]) as found:
        yield found


def require_valid(run: Run, *, unprivileged: bool = False) -> None:
    cells = [cell for cell in run.cells if cell.mode == "own-container"]
    assert len(cells) == 2
    for cell in cells:
        assert cell.skipped is None, cell.skipped
        assert all(check.ok for check in cell.validity), [check for check in cell.validity if not check.ok]
        assert cell.effective.container == "lxc"
        assert cell.effective.container_unprivileged is unprivileged
        assert (cell.effective.guest_cpus, cell.effective.container_memory) == (1, 512 << 20)
        assert "seccomp" in (cell.effective.container_confinement or "")
        difference = cell.metrics["lat_mean"].difference
        assert difference is not None
        assert cell.metrics["lat_mean"].samples("against")
    (answer,) = (line for line in difference_lines(run) if "VM or container" in line and "over 2 jobs" in line)
    assert "against the host" in answer


@pytest.mark.usefixtures("as_before")
def test_a_container_is_measured_beside_a_vm_of_libvirt(tmp_path: Path) -> None:
    run = measured(project(tmp_path, [DISK.spec], {"boxed": SCENARIO}), "--lab=lab.toml")
    require_valid(run, unprivileged=True)
    # The control group of the container counts what fio counts.
    (check,) = (check for check in run.cells[-1].validity if check.check == "bytes guest:own-container")
    assert check.detail.startswith("fio, its control group and the disk agree"), check.detail


@pytest.mark.usefixtures("as_before")
def test_a_container_whose_root_is_an_ordinary_user_is_measured(tmp_path: Path) -> None:
    text = SCENARIO.replace("container = true", "container = true\nunprivileged = true")
    run = measured(project(tmp_path, [DISK.spec], {"boxed": text}), "--lab=lab.toml")
    require_valid(run, unprivileged=True)


@pytest.mark.usefixtures("as_before")
def test_reap_ends_the_container_of_a_killed_run_and_no_other(tmp_path: Path, host: SshRunner) -> None:
    directory = project(tmp_path, [DISK.spec], {"boxed": SCENARIO.replace("rounds = 2", "rounds = 12")})
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--lab=lab.toml"]
    with background(words, cwd=directory) as run:
        wait_for_measurements(directory / "reports", run)
        run.kill()
        run.communicate(timeout=patience(60))
    assert "/run/voh-" in traces(host)
    done = command("reap", f"--lab={directory / 'lab.toml'}", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "removed after a killed run: the container voh-" in done.stdout
    again = command("reap", f"--lab={directory / 'lab.toml'}", "--yes")
    assert "nothing was left" in again.stdout


def directory_of(node: Node, directory: Path, text: str) -> Path:
    """A project that measures this scenario on the node."""
    found = project(directory, [], {"boxed": text.replace('"boxed"', '"optane"')})
    node.lab(found, id=DISK.spec.id, serial=DISK.spec.serial)
    return found


def test_a_container_is_measured_beside_a_vm_of_proxmox(tmp_path: Path, node: Node) -> None:
    before = node.left()
    require_valid(measured(directory_of(node, tmp_path, SCENARIO), "--lab=lab.toml", env=SECRETS))
    assert node.left() == before


def with_api(node: Node, directory: Path, text: str) -> Path:
    """The same, with containers that the API of the node makes."""
    found = directory_of(node, directory, text)
    lab = found / "lab.toml"
    lab.write_text(lab.read_text() + 'container_storage = "local-lvm"\n')
    return found


def test_a_container_by_the_api_of_proxmox_is_measured_beside_a_vm(tmp_path: Path, node: Node) -> None:
    before = node.left()
    run = measured(with_api(node, tmp_path, SCENARIO), "--lab=lab.toml", env=SECRETS)
    require_valid(run, unprivileged=True)
    (effective, *_) = (cell.effective for cell in run.cells if cell.mode == "own-container")
    assert (effective.container_version or "").endswith(", started by Proxmox VE")
    assert node.left() == before


def test_reap_destroys_the_container_of_the_api_after_a_kill(tmp_path: Path, node: Node) -> None:
    before = node.left()
    directory = with_api(node, tmp_path, SCENARIO.replace("rounds = 2", "rounds = 12"))
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--lab=lab.toml"]
    with background(words, cwd=directory, env=SECRETS) as run:
        wait_for_measurements(directory / "reports", run)
        run.kill()
        run.communicate(timeout=patience(60))
    assert node.left() != before
    done = command("reap", f"--lab={directory / 'lab.toml'}", "--yes", env=SECRETS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert node.left() == before


def test_reap_ends_the_container_of_a_killed_run_on_a_node(tmp_path: Path, node: Node) -> None:
    before = node.left()
    directory = directory_of(node, tmp_path, SCENARIO.replace("rounds = 2", "rounds = 12"))
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--lab=lab.toml"]
    with background(words, cwd=directory, env=SECRETS) as run:
        wait_for_measurements(directory / "reports", run)
        run.kill()
        run.communicate(timeout=patience(60))
    done = command("reap", f"--lab={directory / 'lab.toml'}", "--yes", env=SECRETS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "removed after a killed run: the container voh-" in done.stdout
    assert "removed after a killed run: VM 9000" in done.stdout
    assert node.left() == before
