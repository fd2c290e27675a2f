"""`virt-overhead init` on the lab, on a Proxmox VE node and on this machine: the file that it writes works unedited."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from harness.features.embedded import lab_host as embedded
from harness.lab.transport.ssh import SshRunner
from tests.e2e.conftest import host
from tests.e2e.machines import command, latest, measure
from tests.e2e.test_proxmox import SECRETS, Node, node
from tests.patience import patience
from tests.soak.test_local_host import fio_in_path, local_libvirt

__all__ = ["fio_in_path", "host", "local_libvirt", "node"]


def first_figure(directory: Path, *words: str, env: dict[str, str] | None = None) -> None:
    """Run init, and then the command that it prints for a first figure."""
    lab = directory / "lab.toml"
    written = command("init", f"--output={lab}", *words, env=env)
    assert written.returncode == 0, written.stdout + written.stderr
    (told,) = re.findall(r"^  virt-overhead run (.*) # a first figure", written.stdout, re.MULTILINE)
    done = measure(directory, *shlex.split(told), "--rounds=1", env=env)
    assert done.returncode == 0, done.stdout
    run = latest(directory)
    assert run.run.status == "complete"
    (cell,) = [cell for cell in run.cells if cell.mode != "host"]
    assert cell.metrics["iops"].host
    assert cell.metrics["iops"].guest


def test_the_embedded_lab_over_ssh(tmp_path: Path) -> None:
    machine = embedded.state().running()
    assert machine is not None
    first_figure(tmp_path, f"--ssh=root@127.0.0.1:{machine.port}", f"--key={machine.key}")


def test_a_proxmox_node(tmp_path: Path, node: Node) -> None:
    machine = embedded.state().running()
    assert machine is not None
    words = [f"--proxmox=127.0.0.1:{node.port}", "--secret=env:PVE_PASSWORD", f"--ca-file={node.authority}"]
    words += [f"--key={machine.key}", f"--ssh-port={machine.port}", "--guest-address=10.99.0.50/16"]
    first_figure(tmp_path, *words, env=SECRETS)


@pytest.mark.usefixtures("local_libvirt")
def test_this_machine(tmp_path: Path, fio_in_path: dict[str, str]) -> None:
    first_figure(tmp_path, env=fio_in_path)


def check_quick(directory: Path, *words: str, env: dict[str, str] | None = None) -> None:
    """Measure a storage without a configuration: figures of host and guest, and nothing is left."""
    done = command("quick", f"--reports={directory / 'reports'}", *words, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    run = latest(directory / "reports")
    cells = [cell for cell in run.cells if cell.mode != "host"]
    assert len(cells) == 7
    assert all(cell.metrics["iops"].guest and cell.metrics["iops"].host for cell in cells)
    assert re.search(r"^write 4k, fsync after each, 1 at a time +[0-9].* fsync/s +[0-9].* fsync/s", done.stdout, re.M)
    (reap,) = re.findall(r"if this run is killed: virt-overhead (reap --lab=\S+)", done.stdout)
    assert "nothing was left" in command(*shlex.split(reap), env=env).stdout


def test_a_quick_look_at_a_storage_over_ssh(tmp_path: Path, host: SshRunner) -> None:
    machine = embedded.state().running()
    assert machine is not None
    host.run(["mkdir", "-p", "/srv/quick"], deadline=patience(20))
    host.run(["sh", "-c", "echo foreign > /srv/quick/canary"], deadline=patience(20))
    words = [f"--ssh=root@127.0.0.1:{machine.port}", f"--key={machine.key}"]
    check_quick(tmp_path, "/srv/quick", *words)
    assert host.run(["ls", "/srv/quick"], deadline=patience(20)).stdout.split() == ["canary"]
    only = command("quick", "/srv/quick", "--host-only", f"--reports={tmp_path / 'host'}", *words)
    assert only.returncode == 0, only.stdout
    assert "fsync/s" in only.stdout


def test_a_quick_look_at_a_node(tmp_path: Path, node: Node) -> None:
    machine = embedded.state().running()
    assert machine is not None
    words = [f"--proxmox=127.0.0.1:{node.port}", "--secret=env:PVE_PASSWORD", f"--ca-file={node.authority}"]
    words += [f"--key={machine.key}", f"--ssh-port={machine.port}", "--guest-address=10.99.0.50/16"]
    check_quick(tmp_path, *words, env=SECRETS)


@pytest.mark.usefixtures("local_libvirt")
def test_a_quick_look_at_this_machine(tmp_path: Path, fio_in_path: dict[str, str]) -> None:
    check_quick(tmp_path, env=fio_in_path)
