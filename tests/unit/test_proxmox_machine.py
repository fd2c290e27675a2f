"""A VM of ours: what is changed of it while it runs, what it tells, and what could keep it from being removed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from harness.errors import GuestError, SafetyError
from harness.guest.proxmox.claims import NodeConfig, claims
from harness.guest.proxmox.client import Client, PveError
from harness.guest.proxmox.machine import Machine
from harness.guest.proxmox.new_machine import create
from harness.guest.proxmox.node import require_unclaimed
from harness.guest.proxmox.vm import shell_parameters
from harness.lab.proxmox import GuestRules
from tests.pve_double.faults import Fault
from tests.pve_double.server import serve
from tests.pve_double.state import Node
from tests.pve_double.testing import memory_node
from tests.unit.proxmox_nodes import connected, played_back
from tests.unit.test_proxmox_backend import (
    DISK,
    LINK,
    RUN,
    left,
    shell,
)

RULES = GuestRules(vmids=(9000, 9003), kvm=False, cpu="max")


@pytest.fixture
def node() -> Node:
    return memory_node(cpus=4)


@pytest.fixture
def client(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr("harness.guest.proxmox.client.SETTLE_SECONDS", 3.0)
    with serve(node) as serving, connected(serving) as found:
        yield found


def started(client: Client) -> Machine:
    """A running VM with a disk from which it does not boot, and one from which it does."""
    machine = create(client, RULES, shell_parameters(RULES, RUN, "local:iso/mini.iso", 1))
    machine.set({"scsi0": "local-lvm:1,aio=native,cache=none,serial=a", "scsi1": "local-lvm:1,serial=b"})
    machine.set({"boot": "order=scsi1"})
    machine.start()
    return machine


# Changes that wait


def test_a_removal_that_pve_left_pending_is_taken_back(client: Client) -> None:
    machine = started(client)
    with pytest.raises(PveError, match="can't unplug bootdisk 'scsi1'"):
        machine.set({"delete": "scsi1"})
    assert machine.pending() == {}
    assert "scsi1" in client.get(f"{machine.path}/config")
    machine.destroy()


def test_a_drive_that_the_guest_does_not_let_go_of_stays_its_own(node: Node, client: Client) -> None:
    machine = started(client)
    node.faults.add(Fault("unplug-fails", "scsi0"))
    with pytest.raises(PveError, match="hot-unplugging"):
        machine.set({"delete": "scsi0"})
    assert machine.pending() == {}
    assert "scsi0" in client.get(f"{machine.path}/config")
    machine.destroy()


def test_a_change_that_only_waits_is_told_and_taken_back(client: Client) -> None:
    machine = started(client)
    with pytest.raises(GuestError, match=r"only at its next start: scsi0: local-lvm:vm-9000-disk-0,.*aio=io_uring"):
        machine.set({"scsi0": "local-lvm:vm-9000-disk-0,aio=io_uring,cache=none,serial=a,size=1G"})
    assert machine.pending() == {}
    assert "aio=native" in machine.config()["scsi0"]
    machine.destroy()


def test_a_drive_whose_removal_is_pending_is_still_in_use(client: Client) -> None:
    machine = create(client, RULES, shell_parameters(RULES, RUN, "local:iso/mini.iso", 1))
    # With the hot-plugging of disks switched off, a removal waits for the next start.
    machine.set({"scsi0": "local-lvm:1", "hotplug": "network"})
    machine.start()
    path = f"{machine.path}/config"
    client.task("post", path, {"delete": "scsi0"}, seen=lambda: False, deadline=30)
    assert "scsi0" not in client.get(path)
    volume = "local-lvm:vm-9000-disk-0"
    seen = {"VM 9000": {**client.get(path), **machine.config()}}
    assert claims([volume], NodeConfig(guests=seen)) == ["VM 9000 has it as scsi0"]
    machine.destroy()


@pytest.mark.parametrize("removed", [False, True], ids=["in use", "its removal waits"])
def test_a_disk_that_a_running_vm_has_is_refused_whatever_waits(client: Client, removed: bool) -> None:
    settings = {"vmid": 100, "scsi0": "local-lvm:1", "virtio0": LINK, "hotplug": "network"}
    client.task("post", "nodes/pve/qemu", settings, seen=lambda: False, deadline=30)
    machine = Machine(client, 100)
    machine.start()
    if removed:
        client.task("post", f"{machine.path}/config", {"delete": "virtio0"}, seen=lambda: False, deadline=30)
    with pytest.raises(SafetyError, match="VM 100 has it as virtio0"):
        require_unclaimed(client, shell(), DISK)


# Removing a VM


def test_a_storage_that_is_away_does_not_keep_a_vm_from_being_removed(node: Node, client: Client) -> None:
    # With destroy-unreferenced-disks PVE activates every storage of the node, and fails where one cannot be reached.
    machine = started(client)
    node.faults.add(Fault("task-fails", "DELETE .*/qemu/", text="storage 'nas' is not online"))
    machine.destroy()
    assert left(client) == []


def test_a_console_that_somebody_looks_at_does_not_keep_a_vm_from_being_removed(node: Node, client: Client) -> None:
    machine = started(client)
    closed = threading.Event()
    node.tasks.start("vncproxy", str(machine.vmid), "root@pam", lambda _log: closed.wait() and None)
    try:
        assert [each["type"] for each in client.get("nodes/pve/tasks", {"source": "active"})] == ["vncproxy"]
        machine.destroy()
    finally:
        closed.set()
    assert left(client) == []


def test_a_task_that_does_not_end_is_named(node: Node, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.guest.proxmox.machine.STOP_SECONDS", 0.2)
    machine = started(client)
    done = threading.Event()
    node.tasks.start("qmmove", str(machine.vmid), "root@pam", lambda _log: done.wait() and None)
    try:
        with pytest.raises(GuestError, match="a task of VM 9000 does not end: qmmove"):
            machine.destroy()
    finally:
        done.set()


# Counters


def test_counts_that_qemu_did_not_tell_in_time_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"status": "running", "blockstat": {"scsi0": {"rd_bytes": 4096, "wr_bytes": 0}}}
    with played_back() as (recorded, client):
        recorded.record = {"result": {"status": "running"}}
        late = threading.Timer(0.2, lambda: setattr(recorded, "record", {"result": told}))
        late.start()
        assert Machine(client, 9000).transferred("scsi0").read == 4096
        late.join()
        assert recorded.answered > 1
        recorded.record = {"result": {"status": "running"}}
        monkeypatch.setattr("harness.guest.proxmox.machine.COUNT_SECONDS", 0.0)
        with pytest.raises(GuestError, match="QEMU counts nothing for scsi0 of VM 9000"):
            Machine(client, 9000).transferred("scsi0")


# The agent


def test_an_end_of_a_command_that_was_told_and_lost_has_the_command_run_again(node: Node, client: Client) -> None:
    machine = started(client)
    while machine.interfaces() is None:
        pass
    node.faults.add(Fault("gone", "GET .*/agent/exec-status"))
    # It was told once, and that answer was lost: it is not known how it ended.
    assert machine.run_by_agent("true", deadline=10) is False
    assert machine.run_by_agent("true", deadline=10) is True
    machine.destroy()
