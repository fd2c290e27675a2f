"""A storage of Proxmox VE that a running VM of somebody else uses, checking its own data all the time.

The API is the double's, and its VMs run in the lab. The storage is the node's directory. `test_storage.py` has the same
for hosts with libvirt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.signals import wait_until
from tests.e2e.machines import RUN_SECONDS, background, command, latest, measure, pytest_command, wait_for_measurements
from tests.e2e.test_proxmox import SECRETS, Node, node
from tests.patience import patience
from tests.soak.bystander import Bystander
from tests.soak.test_borrowed_pve import VMID, OwnVm, own_vm
from tests.soak.test_storage import FULL, SELECTED

__all__ = ["node"]

DISK_MIB = 136
"""What the bystander writes to ends at 128 MiB."""
VOLUMES = "find /var/lib/vz/images -type f | sort"
LARGE = "/var/lib/vz/images/large"
# Half of the reserve stays free.
FILL = f"fallocate -l $(($(df --output=avail -B1 /var/lib/vz | tail -n 1) - (512 << 20))) {LARGE}"
# $1: the sectors of the bystander's disk.
FIND = 'for at in /sys/block/sd*; do [ "$(cat "$at/size")" != "$1" ] || echo "/dev/${at##*/}"; done'
FREE = "df --output=avail -B1 /var/lib/vz | tail -n 1"


class Used:
    """The storage, and the VM of somebody else on it."""

    def __init__(self, node: Node, vm: OwnVm, bystander: Bystander) -> None:
        self.node = node
        self._vm = vm
        self._bystander = bystander
        self._before = self._identity()

    def run(self, script: str) -> str:
        return self.node.runner.run(["sh", "-c", script], deadline=patience(60)).stdout

    def check(self) -> None:
        """The VM is as before: its process, its configuration with its digest, and its data, which it still writes."""
        assert self._identity() == self._before
        self._bystander.check()

    def _identity(self) -> str:
        config = self._vm.client.get(f"nodes/pve/qemu/{VMID}/config")
        return json.dumps(config, sort_keys=True) + self.run(f"cat /var/run/qemu-server/{VMID}.pid")

    def lab(self, directory: Path) -> str:
        """The option with a lab file that has only this storage."""
        path = self.node.lab(directory)
        text = path.read_text()
        disk = text.index("[host.pve1.disk")
        text = text[:disk] + text[text.index("[host.pve1.api]") :]
        path.write_text(f'{text}[host.pve1.storage.storage]\nstorage = "local"\n')
        return f"--lab={path}"


@pytest.fixture(scope="module")
def used(node: Node) -> Iterator[Used]:
    with own_vm(node, DISK_MIB) as vm:
        disk = vm.inside.run(
            ["sh", "-c", FIND, "sh", str((DISK_MIB << 20) // 512)], deadline=patience(30)
        ).stdout.strip()
        bystander = Bystander(vm.inside, disk)
        yield Used(node, vm, bystander)
        bystander.end()


def test_it_is_measured_and_its_reserve_stays_free(tmp_path: Path, used: Used) -> None:
    left = used.node.left()
    done = measure(tmp_path, used.lab(tmp_path), *SELECTED, env=SECRETS)
    used.check()
    assert "Traceback" not in done.stdout + done.stderr
    run = latest(tmp_path)
    assert run.run.status == "complete", done.stdout
    measured = [cell for cell in run.cells if cell.skipped is None]
    assert {cell.mode for cell in measured} == {"host", "raw", "qcow2"}, done.stdout
    assert [cell.id for cell in measured if cell.verdict == "void"] == [], done.stdout
    assert all(cell.metrics["iops"].guest for cell in measured if cell.mode != "host")
    assert used.node.left() == left
    assert int(used.run(FREE)) >= 1 << 30


def test_after_a_kill_reap_leaves_only_what_others_have(tmp_path: Path, used: Used) -> None:
    left, lab = used.node.left(), used.lab(tmp_path)
    with background(pytest_command(tmp_path, lab, *SELECTED), env=SECRETS) as run:
        wait_for_measurements(tmp_path, run)
        run.kill()
        run.communicate(timeout=patience(60))
    assert used.node.left() != left
    used.check()
    done = command("reap", lab, "--yes", env=SECRETS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert used.node.left() == left
    used.check()


def test_a_run_ends_without_traces_on_a_storage_that_becomes_full(tmp_path: Path, used: Used) -> None:
    left, volumes = used.node.left(), used.run(VOLUMES)
    try:
        with background(pytest_command(tmp_path, used.lab(tmp_path), *SELECTED), env=SECRETS) as run:
            assert wait_until(lambda: used.run(VOLUMES) != volumes, deadline=patience(180), every=0.5)
            used.run(FILL)
            used.check()
            output, _ = run.communicate(timeout=patience(RUN_SECONDS))
    finally:
        used.run(f"rm -f {LARGE}")
    assert "Traceback" not in output
    assert run.returncode == 1, output
    assert re.search(FULL, output), output
    assert used.node.left() == left
    used.check()
