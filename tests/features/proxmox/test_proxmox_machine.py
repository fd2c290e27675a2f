"""A VM of ours: what is changed of it while it runs, what it tells, and what could keep it from being removed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from harness.errors import GuestError, SafetyError
from harness.features.proxmox import GuestRules
from harness.features.proxmox.client import Client, PveError
from harness.features.proxmox.disk_users import (
    DiskNames,
    NodeConfig,
    find_claims,
    read_names,
    require_unclaimed,
    require_unshared,
)
from harness.features.proxmox.machine import VirtualMachine
from harness.features.proxmox.vm_config import build_shell_parameters
from harness.lab.transport.local import LocalRunner
from pve_double.faults import Fault
from pve_double.qemu.machine import Machine as PveMachine
from pve_double.qemu.machine import Snapshot
from pve_double.state import Container, Node
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.proxmox.proxmox_nodes import played_back
from tests.features.proxmox.proxmox_shell import DISK, LINK, NodeShell
from tests.features.proxmox.test_proxmox_backend import left

__all__ = ["client", "node", "serving", "shell"]

RULES = GuestRules(vmids=(9000, 9003), kvm=False, cpu="max")


def made(client: Client, **settings: object) -> VirtualMachine:
    machine = VirtualMachine(client, 9000)
    given = {"vmid": 9000, **build_shell_parameters(RULES, "local:iso/mini.iso", 1), **settings}
    client.task("post", "nodes/pve/qemu", given, is_done=lambda: False, deadline=30)
    return machine


def started(client: Client) -> VirtualMachine:
    """A running VM with a disk from which it does not boot, and one from which it does."""
    machine = made(client)
    machine.set({"scsi0": "local-lvm:1,aio=native,cache=none,serial=a", "scsi1": "local-lvm:1,serial=b"})
    machine.set({"boot": "order=scsi1"})
    machine.start()
    return machine


def ended(machine: VirtualMachine) -> None:
    machine.end()
    machine.destroy()


# Changes that wait


def test_a_removal_that_pve_left_pending_is_reverted(client: Client) -> None:
    machine = started(client)
    with pytest.raises(PveError, match="can't unplug bootdisk 'scsi1'"):
        machine.set({"delete": "scsi1"})
    assert machine.pending() == {}
    assert "scsi1" in client.get(f"{machine.path}/config")
    ended(machine)


def test_a_drive_that_the_guest_does_not_release_stays_in_use(node: Node, client: Client) -> None:
    machine = started(client)
    node.faults.add(Fault("unplug-fails", "scsi0"))
    with pytest.raises(PveError, match="hot-unplugging"):
        machine.set({"delete": "scsi0"})
    assert machine.pending() == {}
    assert "scsi0" in client.get(f"{machine.path}/config")
    ended(machine)


def test_a_pending_change_is_reported_and_reverted(client: Client) -> None:
    machine = started(client)
    with pytest.raises(GuestError, match=r"only at its next start: scsi0: local-lvm:vm-9000-disk-0,.*aio=io_uring"):
        machine.set({"scsi0": "local-lvm:vm-9000-disk-0,aio=io_uring,cache=none,serial=a,size=1G"})
    assert machine.pending() == {}
    assert "aio=native" in machine.config()["scsi0"]
    ended(machine)


def test_a_drive_whose_removal_is_pending_is_still_in_use(client: Client) -> None:
    machine = made(client)
    # With the hot-plugging of disks switched off, a removal waits for the next start.
    machine.set({"scsi0": "local-lvm:1", "hotplug": "network"})
    machine.start()
    path = f"{machine.path}/config"
    client.task("post", path, {"delete": "scsi0"}, is_done=lambda: False, deadline=30)
    assert "scsi0" not in client.get(path)
    volume = "local-lvm:vm-9000-disk-0"
    seen = {"VM 9000": {**client.get(path), **machine.config()}}
    assert find_claims(DiskNames(frozenset([volume])), NodeConfig(guests=seen)) == ["VM 9000 has it as scsi0"]
    ended(machine)


@pytest.mark.parametrize("removed", [False, True], ids=["in use", "its removal waits"])
def test_a_disk_of_a_running_vm_is_refused_despite_pending_changes(
    client: Client, removed: bool, shell: NodeShell
) -> None:
    settings = {"vmid": 100, "scsi0": "local-lvm:1", "virtio0": LINK, "hotplug": "network"}
    client.task("post", "nodes/pve/qemu", settings, is_done=lambda: False, deadline=30)
    machine = VirtualMachine(client, 100)
    machine.start()
    if removed:
        client.task("post", f"{machine.path}/config", {"delete": "virtio0"}, is_done=lambda: False, deadline=30)
    with pytest.raises(SafetyError, match="VM 100 has it as virtio0"):
        require_unclaimed(client, shell, DISK)


# Other users of a disk


def test_a_disk_that_a_snapshot_has_is_refused(client: Client, shell: NodeShell) -> None:
    settings = {"vmid": 100, "scsi0": "local-lvm:1", "virtio0": LINK}
    client.task("post", "nodes/pve/qemu", settings, is_done=lambda: False, deadline=30)
    machine = VirtualMachine(client, 100)
    snapshots = shell.node.machines[100].snapshots
    client.task("post", f"{machine.path}/config", {"delete": "virtio0"}, is_done=lambda: False, deadline=30)
    snapshots["before"] = Snapshot({"virtio0": LINK}, 1)
    assert "virtio0" not in machine.config()
    said = r"VM 100 has it as virtio0 \(snapshot before\)"
    with pytest.raises(SafetyError, match=said):
        require_unclaimed(client, shell, DISK)
    with pytest.raises(SafetyError, match=said):
        require_unshared(client, shell, LINK, 9000)
    snapshots.clear()
    require_unclaimed(client, shell, DISK)


def test_a_disk_that_a_container_has_is_refused(node: Node, client: Client, shell: NodeShell) -> None:
    node.containers[200] = Container({"mp0": "/dev/sdb1,mp=/data"})
    node.containers[201] = Container({}, {"before": {"dev0": f"path={LINK}"}})
    shell.prints["/dev/mapper/*"] = f"/dev/sdb\n/dev/sdb1\n{LINK}\n"
    said = r"container 200 has it as mp0; container 201 has it as dev0 \(snapshot before\)"
    with pytest.raises(SafetyError, match=said):
        require_unclaimed(client, shell, DISK)


@pytest.mark.parametrize("given", ["0000:03:00.0", "03:00", "mapping=fast"])
def test_a_disk_whose_controller_a_vm_has_is_refused(node: Node, client: Client, shell: NodeShell, given: str) -> None:
    shell.prints["at=/sys/block/$name/device"] = "0000:03:00.0\n"
    node.pci_mappings["fast"] = ["node=pve2,path=0000:09:00.0,id=8086:2700", "node=pve,path=0000:03:00.0,id=8086:2700"]
    node.machines[100] = PveMachine(100, {"name": "a", "hostpci2": f"{given},pcie=1"})
    said = "VM 100 has its controller 0000:03:00.0 as hostpci2"
    with pytest.raises(SafetyError, match=said):
        require_unclaimed(client, shell, DISK)
    with pytest.raises(SafetyError, match=said):
        require_unshared(client, shell, LINK, 9000)
    shell.prints["at=/sys/block/$name/device"] = "0000:04:00.0\n"
    require_unclaimed(client, shell, DISK)


def test_a_mapping_that_the_login_may_not_see_may_have_the_disk(node: Node, client: Client, shell: NodeShell) -> None:
    node.machines[100] = PveMachine(100, {"name": "a", "hostpci0": "mapping=fast"})
    with pytest.raises(SafetyError, match="VM 100 has the PCI devices of the mapping fast as hostpci0, and their"):
        require_unclaimed(client, shell, DISK)


def test_the_controller_of_a_disk_is_found_in_sysfs() -> None:
    disk = next(
        (each for each in Path("/sys/block").iterdir() if "/pci0000:" in str((each / "device").resolve())), None
    )
    if disk is None or not Path(f"/dev/{disk.name}").exists():
        pytest.skip("no disk here is behind a PCI device")
    addresses = read_names(LocalRunner("host here"), f"/dev/{disk.name}").pci
    assert addresses
    for address in addresses:
        assert f"/{address}/" in str((disk / "device").resolve())


# Removing a VM


def test_destroying_a_vm_frees_what_its_configuration_names_and_nothing_else(client: Client) -> None:
    machine = started(client)
    content = "nodes/pve/storage/local-lvm/content"
    earlier = {"vmid": 9000, "filename": "vm-9000-disk-7", "size": "4M", "format": "raw"}
    client.write("post", content, earlier, is_done=lambda: False)
    assert len(client.get(content)) == 3
    ended(machine)
    assert [each["volid"] for each in client.get(content)] == ["local-lvm:vm-9000-disk-7"]


def test_an_open_console_does_not_prevent_the_removal_of_a_vm(node: Node, client: Client) -> None:
    machine = started(client)
    closed = threading.Event()
    node.tasks.start("vncproxy", str(machine.vmid), "root@pam", lambda _log: closed.wait() and None)
    try:
        assert [each["type"] for each in client.get("nodes/pve/tasks", {"source": "active"})] == ["vncproxy"]
        ended(machine)
    finally:
        closed.set()
    assert left(client) == []


def test_a_task_that_does_not_end_is_named(node: Node, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.features.proxmox.machine.STOP_SECONDS", 0.2)
    machine = started(client)
    done = threading.Event()
    node.tasks.start("qmmove", str(machine.vmid), "root@pam", lambda _log: done.wait() and None)
    try:
        with pytest.raises(GuestError, match="a task of VM 9000 does not end: qmmove"):
            ended(machine)
    finally:
        done.set()


# Counters


def test_counts_that_qemu_did_not_report_in_time_are_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"status": "running", "blockstat": {"scsi0": {"rd_bytes": 4096, "wr_bytes": 0}}}
    with played_back() as (recorded, client):
        recorded.record = {"result": {"status": "running"}}
        late = threading.Timer(0.2, lambda: setattr(recorded, "record", {"result": told}))
        late.start()
        assert VirtualMachine(client, 9000).transferred(["scsi0"])["scsi0"].read == 4096
        late.join()
        assert recorded.answered > 1
        recorded.record = {"result": {"status": "running"}}
        monkeypatch.setattr("harness.features.proxmox.machine.COUNT_SECONDS", 0.0)
        with pytest.raises(GuestError, match="QEMU counts nothing for scsi0 of VM 9000"):
            VirtualMachine(client, 9000).transferred(["scsi0"])


# The agent


def test_a_command_whose_reported_end_was_lost_is_run_again(node: Node, client: Client) -> None:
    machine = started(client)
    while machine.interfaces() is None:
        pass
    node.faults.add(Fault("gone", "GET .*/agent/exec-status"))
    # It was told once, and that answer was lost: it is not known how it ended.
    assert machine.run_by_agent("true", deadline=10) is False
    assert machine.run_by_agent("true", deadline=10) is True
    ended(machine)
