"""Snapshots of a running VM by the API of Proxmox VE: taken and removed, reaped, and refused without the privilege."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from harness.errors import GuestError, HostError
from harness.features.proxmox.client import Client, PveError
from harness.features.proxmox.creation import create_vm
from harness.features.proxmox.machine import VirtualMachine
from harness.features.proxmox.vm_config import build_shell_parameters, format_drive
from harness.features.snapshots.proxmox import VmSnapshot, VmTaker, refuse_snapshots, remove_left
from harness.model.attach import Attach
from pve_double.executor.memory import MemoryExecutor
from pve_double.faults import Fault
from pve_double.state import Node
from pve_double.storage.volumes import Storage
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.proxmox.proxmox_shell import NodeShell
from tests.features.proxmox.test_proxmox_backend import RULES, RUN, hypervisor, iso
from tests.features.proxmox.test_proxmox_privileges import ROLES, token_with

__all__ = ["client", "iso", "node", "serving", "shell"]


@pytest.fixture
def executor(node: Node) -> MemoryExecutor:
    """That of a node whose QEMU has the patches of Proxmox VE."""
    found = node.executor
    assert isinstance(found, MemoryExecutor)
    found.saves_state = True
    return found


@contextmanager
def running(client: Client, shell: NodeShell, storage: str = "local-lvm") -> Iterator[VmTaker]:
    """A VM of the run that runs, with one drive, and what takes its snapshots."""
    log = shell.log(RUN)
    with create_vm(client, log, RULES, build_shell_parameters(RULES, "local:iso/mini.iso", 1)) as (machine, vm):
        machine.set({"scsi0": format_drive(f"{storage}:1", Attach(aio="threads"), "thin")})
        machine.start()
        thing = VmSnapshot(disks=("S",), node="pve", vmid=vm.vmid, token=vm.token, name="voh0123456789abcdef")
        with log.making(thing, partial(remove_left, client, thing)):
            yield VmTaker(machine, thing)
        machine.stop()
        volume = machine.config()["scsi0"].partition(",")[0]
        machine.free(["scsi0"], volume)


def snapshots(machine: VirtualMachine) -> list[str]:
    return [each["name"] for each in machine.client.get(f"{machine.path}/snapshot") if each["name"] != "current"]


@pytest.mark.parametrize("storage", ["local-lvm", "ceph"])
def test_a_snapshot_comes_and_goes_while_the_vm_runs(
    *, client: Client, shell: NodeShell, executor: MemoryExecutor, node: Node, storage: str
) -> None:
    node.store.storages["ceph"] = Storage("ceph", "rbd", frozenset({"images"}), 1 << 40, pool="vms")
    with running(client, shell, storage) as taker:
        for _ in range(2):
            taker.take()
            assert executor.snapshots == {f"{storage}:vm-{taker.machine.vmid}-disk-0@voh0123456789abcdef"}
            assert snapshots(taker.machine) == ["voh0123456789abcdef"]
            taker.remove()
            assert (executor.snapshots, snapshots(taker.machine)) == (set(), [])
        assert taker.machine.running
        assert "lock" not in taker.machine.config()


@pytest.mark.usefixtures("executor")
def test_a_storage_without_snapshots_fails_with_the_words_of_proxmox(client: Client, shell: NodeShell) -> None:
    with running(client, shell, "local") as taker, pytest.raises(PveError, match="snapshot feature is not available"):
        taker.take()


@pytest.mark.usefixtures("executor")
def test_a_snapshot_with_warnings_is_none(client: Client, shell: NodeShell, node: Node) -> None:
    with running(client, shell) as taker:
        node.faults.add(Fault("warnings", "POST .*/snapshot$"))
        with pytest.raises(GuestError, match="no snapshot as requested"):
            taker.take()


def test_a_snapshot_that_a_killed_run_left_is_reaped_before_its_vm(
    client: Client, iso: Path, shell: NodeShell, executor: MemoryExecutor, node: Node
) -> None:
    context = running(client, shell)
    taker = context.__enter__()
    taker.take()
    vmid = taker.machine.vmid
    ours = hypervisor(client, iso, shell)
    ended = [(entry.kind, ours.remove(entry)) for entry in reversed(shell.logged) if entry.kind == "pve-snapshot"]
    assert [(kind, removal.outcome) for kind, removal in ended if removal is not None] == [("pve-snapshot", "removed")]
    assert executor.snapshots == set()
    (again,) = (ours.remove(entry) for entry in shell.logged if entry.kind == "pve-snapshot")
    assert again is not None
    assert again.outcome == "absent"
    # A VM with this id that belongs to somebody else keeps its snapshots.
    taker.take()
    node.machines[vmid].config["description"] = "mine"
    (foreign,) = (ours.remove(entry) for entry in shell.logged if entry.kind == "pve-snapshot")
    assert foreign is not None
    assert (foreign.outcome, snapshots(taker.machine)) == ("foreign", ["voh0123456789abcdef"])


@pytest.mark.usefixtures("executor")
def test_a_vm_is_not_removed_with_a_snapshot_of_others(client: Client, shell: NodeShell, node: Node) -> None:
    with pytest.raises(HostError, match="the snapshot theirs"), running(client, shell) as taker:
        client.task(
            "post",
            f"{taker.machine.path}/snapshot",
            {"snapname": "theirs"},
            is_done=lambda: True,
            deadline=30,
        )
    assert list(node.machines) == [9000]


def test_a_token_without_the_privilege_is_refused_with_the_reason(tmp_path: Path) -> None:
    with token_with(ROLES, tmp_path) as (_, token, _shell):
        why = refuse_snapshots(token, 9000) or ""
        assert why.startswith("bench@pve!voh lacks VM.Snapshot on /vms, which snapshots need")
    more = {role: [*names, "VM.Snapshot"] if role == "VohGuests" else names for role, names in ROLES.items()}
    (tmp_path / "all").mkdir()
    with token_with(more, tmp_path / "all") as (_, token, _shell):
        assert refuse_snapshots(token, 9000) is None
