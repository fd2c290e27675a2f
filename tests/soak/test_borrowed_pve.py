"""A VM of somebody else on the double of Proxmox VE, whose guests run in the lab, is borrowed.

Afterwards its configuration, by its digest, and the checksum of its own disk are as before, also after a killed run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.events import Events
from harness.features.proxmox import ROOT as ROOT_USER
from harness.features.proxmox import ApiSpec, GuestRules, SecretSource
from harness.features.proxmox.backend import ensure_iso
from harness.features.proxmox.client import Client, Expected
from harness.features.proxmox.machine import VirtualMachine, has_vm, log_in
from harness.features.proxmox.session import Secret
from harness.features.proxmox.vm_config import build_shell_parameters
from harness.lab.hosts import GuestFiles
from harness.lab.transport.base import Runner
from tests.e2e.attaching import opened
from tests.e2e.machines import background, command, latest, measure, pytest_command, wait_for_measurements
from tests.e2e.test_proxmox import ONE_JOB, PASSWORD, SECRETS, Node, node
from tests.patience import patience

__all__ = ["node"]

VMID = 100
ADDRESS = "10.99.0.60"
OWN_DISK = f"/var/lib/vz/images/{VMID}/vm-{VMID}-disk-0.raw"
DISK_MIB = 32
SELECTED = ("-k", "optane and (passthrough or lvm) and randread and not cached", *ONE_JOB)
_RULES = GuestRules(network="static", address=f"{ADDRESS}/16")
# In it: its disks, and what is on each of them.
_SEEN = 'ls /sys/block; for at in /sys/block/sd*; do sha256sum "/dev/${at##*/}"; done'


@dataclass(frozen=True, slots=True)
class OwnVm:
    """The running VM: the API of its node, the node's shell, and commands in it."""

    client: Client
    node: Runner
    inside: Runner
    files: GuestFiles

    def state(self) -> str:
        """Its configuration with its digest, what waits for its next start, its process, its disks and their data."""
        path = f"nodes/pve/qemu/{VMID}"
        told = [self.client.get(f"{path}/config"), self.client.get(f"{path}/pending")]
        script = f"cat /var/run/qemu-server/{VMID}.pid; echo; sha256sum {OWN_DISK}"
        on_node = self.node.run(["sh", "-c", script], deadline=patience(60)).stdout
        return (
            json.dumps(told, sort_keys=True)
            + on_node
            + self.inside.run(["sh", "-c", _SEEN], deadline=patience(120)).stdout
        )

    def drives(self) -> set[str]:
        config = VirtualMachine(self.client, VMID).config()
        return {key for key in config if key.startswith(("scsi", "virtio")) and key != "scsihw"}

    def lab(self, directory: Path, node: Node, reach: str = "node") -> str:
        """The option with a lab file that borrows it."""
        path = node.lab(directory)
        text = path.read_text().partition("[host.pve1.guest]")[0]
        login = f'address = "{ADDRESS}"\nkey = "{self.files.key}"\nhost_key = "{self.files.host_key}"\n'
        way = login if reach == "node" else f'reach = "{reach}"\n'
        path.write_text(f'{text}[host.pve1.guest]\nborrow = "{VMID}"\n{way}')
        return f"--lab={path}"


@contextmanager
def own_vm(node: Node, disk_mib: int) -> Iterator[OwnVm]:
    """A running VM of somebody else, which boots the guest image and has a disk of its own with random data."""
    url, secret = f"https://127.0.0.1:{node.port}", SecretSource(env="PVE_PASSWORD")
    given = {"url": url, "node": "pve", "user": ROOT_USER, "secret": secret, "ca_file": str(node.authority)}
    spec = ApiSpec.model_validate(given)
    with ExitStack() as stack:
        lab = stack.enter_context(opened())
        client = Client(spec, Secret(PASSWORD), "pve1")
        stack.callback(client.close)
        files = lab.host.guest_files
        iso = ensure_iso(client, "local", files, Events())
        own = {"vmid": VMID, "name": "shop", "scsi0": f"local:{disk_mib / 1024},format=raw,serial=own"}
        machine = VirtualMachine(client, VMID)
        client.task(
            "post",
            "nodes/pve/qemu",
            {**build_shell_parameters(_RULES, iso, 1), **own},
            expected=Expected("qmcreate", str(VMID)),
            is_done=lambda: has_vm(client, VMID),
            deadline=patience(120),
        )
        stack.callback(machine.destroy)
        fill = f"dd if=/dev/urandom of={OWN_DISK} bs=1M count={disk_mib} conv=notrunc,fsync status=none"
        node.runner.run(["sh", "-c", fill], deadline=patience(60))
        stack.callback(machine.end)
        machine.start()
        inside = log_in(machine, lab.host, _RULES)
        stack.callback(inside.close)
        yield OwnVm(client, node.runner, inside, files)


@pytest.fixture(scope="module")
def vm(node: Node) -> Iterator[OwnVm]:
    with own_vm(node, DISK_MIB) as found:
        yield found


@pytest.mark.parametrize("reach", ["node", "agent"])
def test_it_is_measured_and_is_as_before(tmp_path: Path, node: Node, vm: OwnVm, reach: str) -> None:
    before, left = vm.state(), node.left()
    done = measure(tmp_path, vm.lab(tmp_path, node, reach), *SELECTED, env=SECRETS)
    assert "Traceback" not in done.stdout + done.stderr
    found = latest(tmp_path)
    assert found.run.status == "complete", done.stdout
    assert {cell.mode for cell in found.cells} >= {"passthrough", "lvm"}, done.stdout
    for cell in found.cells:
        assert cell.skipped is None, cell.skipped
        assert cell.verdict != "void", done.stdout
        assert cell.mode == "host" or cell.metrics["iops"].guest, cell.id
    guest = found.provenance["guest"]
    assert isinstance(guest, dict)
    assert guest["borrowed"] == f"VM {VMID}"
    assert vm.state() == before
    assert node.left() == left


def test_after_a_kill_reap_unplugs_the_drives_and_leaves_everything_else(tmp_path: Path, node: Node, vm: OwnVm) -> None:
    before, left, own = vm.state(), node.left(), vm.drives()
    option = vm.lab(tmp_path, node)
    with background(pytest_command(tmp_path, option, *SELECTED), env=SECRETS) as run:
        wait_for_measurements(tmp_path, run)
        run.kill()
        run.communicate(timeout=patience(60))
    assert own < vm.drives()
    done = command("reap", option, "--yes", env=SECRETS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"in the borrowed VM {VMID}" in done.stdout
    assert vm.state() == before
    assert node.left() == left
