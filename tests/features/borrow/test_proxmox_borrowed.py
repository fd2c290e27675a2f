"""A running VM of others at the double of Proxmox VE gets our disks, and has the same configuration afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.config.names import RunId
from harness.errors import HostError, SafetyError
from harness.events import Event, Events, Note
from harness.features.borrow import proxmox as borrowing_from_node
from harness.features.borrow.hypervisor import BorrowingHypervisor
from harness.features.borrow.proxmox import borrow_vm, refuse_disk
from harness.features.proxmox import GuestRules, removal
from harness.features.proxmox.client import Client
from harness.features.proxmox.vm_config import choose_drives
from harness.guest.protocol import GuestDisk
from harness.lab.facts import Acceleration, HostFacts
from harness.lab.hosts import GuestFiles, Host
from harness.lab.inventory import BorrowedVm, DiskByStorage, HostSpec, VmLogin
from harness.lab.transport.ssh import SshRunner
from harness.layout import BlockSource
from harness.measure.reap import reap
from harness.model.attach import Attach, Attachment
from harness.model.base import Device
from harness.model.guest import ANY_GUEST, GuestOptions
from harness.model.layout import LvmThin
from harness.model.mode import Mode
from pve_double.executor.memory import MemoryExecutor
from pve_double.faults import Fault
from pve_double.permissions import ROOT
from pve_double.state import Node, Settings, make_node
from pve_double.testing import FAST, PASSWORD
from tests.features.proxmox.proxmox_fixtures import client, node, serving, shell
from tests.features.proxmox.proxmox_shell import DISK, LINK, NodeShell
from tests.unit.granted import pretended
from tests.unit.played_shell import PlayedShell

__all__ = ["client", "node", "serving", "shell"]

MIB = 1024**2
RUN = RunId("20261121-101500-ab12")
STORED = DiskByStorage("vmstore", {"lvm-thin": "local-lvm", "qcow2": "local"})
HOST = Mode("host", Device(), attach=None)
ATTACH = Attach(iothread=True)
THIN = Mode("thin", LvmThin(), ATTACH)
WHOLE = BlockSource(LINK, "block", MIB, MIB, grant=pretended(LINK))
VM: Mapping[str, Any] = {
    "vmid": 100,
    "name": "shop",
    "scsihw": "virtio-scsi-single",
    "scsi0": "local-lvm:1",
    "boot": "order=scsi0",
    "cores": 2,
}
BORROWED = BorrowedVm("100", VmLogin("192.0.2.50", 22, "root", Path("/keys/shop"), None, through_host=True))
ABLE = "user=0\nfio=fio-3.39\nos=debian \nvirtio_blk=yes\nvirtio_scsi=yes\n"


class Inside(PlayedShell):
    """The system in the VM. It sees the disks that the VM has, by their serial numbers."""

    def __init__(self, node: Node) -> None:
        super().__init__({"modprobe": ABLE, "osrelease": "hypervisor=KVM\nfio=fio-3.39\n"}, name="VM 100 on node1")
        self._node = node

    def _printed(self, said: str) -> str:
        if "for dir in /sys/block/*" not in said:
            return super()._printed(said)
        found = [each.split("serial=")[1].split(",")[0] for each in self._drives if "serial=" in each]
        rest = "none\t0\twrite back\t512\t512\t128\t0\t0\t1\t128\tsd\tvirtio_scsi\t"
        return "".join(f"sd{chr(97 + n)}\t{serial}\t{rest}\n" for n, serial in enumerate(["own", *found]))

    @property
    def _drives(self) -> list[str]:
        return [value for key, value in self._node.machines[100].config.items() if key.startswith(("scsi", "virtio"))]


@dataclass
class Borrowing:
    """The node with the VM of others, a hypervisor that borrows it, and what was noted."""

    node: Node
    client: Client
    shell: NodeShell
    hypervisor: BorrowingHypervisor[Any]
    events: list[Event]

    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get("nodes/pve/qemu/100/config", {"current": 1})
        return found

    def set(self, **settings: Any) -> None:
        path = "nodes/pve/qemu/100/config"
        self.client.task("post", path, settings, is_done=lambda: False, deadline=30)

    def volumes(self) -> list[str]:
        """The volumes on the storages, but for those of the guest image."""
        listed = [self.client.get(f"nodes/pve/storage/{name}/content") for name in ("local", "local-lvm")]
        return sorted(each["volid"] for found in listed for each in found if each["content"] == "images")

    def everything(self) -> str:
        """All that must be the same afterwards: the VM's file, by its digest, what waits, all VMs and all volumes."""
        pending = self.client.get("nodes/pve/qemu/100/pending")
        vms = sorted(str(each["vmid"]) for each in self.client.get("nodes/pve/qemu"))
        return json.dumps([self.config(), pending, vms, self.volumes()], sort_keys=True)

    def begun(self) -> ExitStack:
        """A run that has plugged in the disk itself on each bus. If it is not closed, it was killed."""
        stack = ExitStack()
        disks = [GuestDisk("scsi", WHOLE, ATTACH), GuestDisk("blk", WHOLE, Attach("virtio-blk"))]
        stack.enter_context(self.hypervisor.guest(self.shell.log(RUN), disks))
        return stack

    def with_volumes(self) -> ExitStack:
        """The same with a volume on a storage."""
        stack, log = ExitStack(), self.shell.log(RUN)
        layouts = stack.enter_context(self.hypervisor.layouts(log, [STORED], [HOST, THIN], span=64 * MIB))
        stack.enter_context(self.hypervisor.guest(log, [GuestDisk("thin", layouts.guest(THIN), ATTACH)]))
        return stack

    def reap(self) -> list[str]:
        self.shell.lose_connection()
        return reap(self.shell, self.hypervisor, self.shell.logged)

    @property
    def notes(self) -> list[str]:
        return [each.text for each in self.events if isinstance(each, Note)]


def borrowing_host(shell: NodeShell, directory: Path) -> Host:
    """The node as a host."""
    return Host(
        spec=HostSpec("node1", "proxmox", ssh=None, disks=(DISK,)),
        runner=shell,
        ssh=None,
        target=None,
        facts=HostFacts({"cpus": "4", "fio": "fio-3.39"}),
        guest_files=GuestFiles("", "", directory / "key", ""),
        acceleration=Acceleration("kvm", "as said"),
    )


@pytest.fixture
def borrowing(
    node: Node, client: Client, shell: NodeShell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Borrowing]:
    monkeypatch.setattr(SshRunner, "connect", lambda *_, **__: Inside(node))
    monkeypatch.setattr(removal, "CONFIGURATIONS", str(tmp_path / "nodes"))
    monkeypatch.setattr(borrowing_from_node, "_LONGEST_PAUSE", 0.1)
    client.task("post", "nodes/pve/qemu", VM, is_done=lambda: False, deadline=30)
    client.task("post", "nodes/pve/qemu/100/status/start", {}, is_done=lambda: False, deadline=30)
    host = borrowing_host(shell, tmp_path)
    events: list[Event] = []
    rules = GuestRules(vmids=(9000, 9001))
    yield Borrowing(node, client, shell, borrow_vm(host, client, rules, BORROWED, Events(events.append)), events)
    # Whatever happened, the VM of others was never started, stopped or reset.
    kinds = [each["type"] for each in client.get("nodes/pve/tasks", {"source": "all", "vmid": 100})]
    assert set(kinds) <= {"qmcreate", "qmstart", "qmconfig"}
    assert kinds.count("qmstart") == 1


def test_the_vm_gets_the_disks_of_a_run_and_is_as_before_afterwards(borrowing: Borrowing) -> None:
    before = borrowing.everything()
    disks = [GuestDisk("disk", WHOLE, Attach("virtio-blk")), GuestDisk("scsi", WHOLE, ATTACH)]
    with borrowing.hypervisor.guest(borrowing.shell.log(RUN), disks) as guest:
        during = borrowing.config()
        changed = {key for key in during if during[key] != json.loads(before)[0].get(key)}
        assert changed == {"scsi1", "virtio0", "digest"}
        for drive in (during["scsi1"], during["virtio0"]):
            # Neither backups nor replication jobs of the VM copy it.
            assert {LINK, "backup=0", "replicate=0"} <= set(drive.split(","))
        assert [entry.kind for entry in borrowing.shell.logged] == ["pve-drive", "pve-drive"]
        assert {guest.device("disk"), guest.device("scsi")} == {"/dev/sdb", "/dev/sdc"}
        assert guest.boot_seconds is None
        assert guest.evidence["borrowed"] == "VM 100"
        with guest.holding("disk"):
            pass
    # Its digest is part of that.
    assert borrowing.everything() == before
    assert borrowing.shell.logged == []
    assert not any("changed by others" in each for each in borrowing.notes)


def test_a_disk_that_the_vm_has_already_is_not_plugged_in(borrowing: Borrowing) -> None:
    borrowing.set(scsi5=LINK)
    with pytest.raises(SafetyError, match="VM 100 has it as scsi5"):
        borrowing.begun()


def test_after_a_kill_reap_unplugs_a_drive_before_it_removes_its_volume(
    borrowing: Borrowing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = borrowing.everything()
    killed = borrowing.with_volumes()
    assert borrowing.config()["scsi1"].startswith("local-lvm:vm-9000-voh-1,")
    configuration = tmp_path / "nodes" / "pve" / "qemu-server" / "100.conf"
    configuration.parent.mkdir(parents=True)
    configuration.write_text("".join(f"{key}: {value}\n" for key, value in borrowing.config().items()))
    borrowing.node.faults.add(Fault("unplug-fails", "100 scsi1", times=1000))
    with monkeypatch.context() as patch:
        patch.setattr(borrowing_from_node, "RELEASE_SECONDS", 0.1)
        with pytest.raises(HostError, match=r"VM 100 did not release scsi1 within 100 ms: .*still busy") as error:
            borrowing.reap()
    assert f"it is still attached: {configuration} on the node" in error.value.message
    assert "local-lvm:vm-9000-voh-1" in borrowing.volumes()
    borrowing.node.faults.clear()
    configuration.unlink()
    assert "the drive scsi1" in borrowing.reap()[0]
    assert borrowing.everything() == before
    assert borrowing.shell.logged == []
    killed.pop_all()


def test_a_vm_that_was_migrated_has_its_drive_still_and_so_it_stays_recorded(borrowing: Borrowing) -> None:
    before = borrowing.everything()
    killed = borrowing.begun()
    settings = Settings(cpus=4, pace=FAST)
    other = make_node(ROOT, PASSWORD, MemoryExecutor(FAST.factor), settings, name="pve2", beside=borrowing.node)
    other.machines[100] = borrowing.node.machines.pop(100)
    recorded = borrowing.shell.logged
    with pytest.raises(HostError, match="VM 100 was migrated to node pve2, and still has this drive") as error:
        borrowing.reap()
    assert "migrate it back to pve" in (error.value.hint or "")
    assert [entry.record for entry in borrowing.shell.logged] == [entry.record for entry in recorded]
    borrowing.node.machines[100] = other.machines.pop(100)
    borrowing.reap()
    assert borrowing.everything() == before
    assert borrowing.shell.logged == []
    killed.pop_all()


def test_what_its_owner_wants_to_change_at_the_next_start_still_waits_afterwards(borrowing: Borrowing) -> None:
    borrowing.set(cores=4)
    before = borrowing.everything()
    assert '"pending": 4' in before
    with borrowing.begun():
        pass
    assert borrowing.everything() == before


def test_a_place_that_somebody_else_takes_meanwhile_stays_theirs(
    borrowing: Borrowing, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[str] = []
    choose = choose_drives

    def race(*given: Any) -> dict[str, str]:
        found = choose(*given)
        if not chosen:
            borrowing.set(scsi1="local-lvm:2")
        chosen.extend(found.values())
        return found

    monkeypatch.setattr(borrowing_from_node, "choose_drives", race)
    with borrowing.begun():
        config = borrowing.config()
        assert config["scsi1"].startswith("local-lvm:vm-100-disk-1")
        assert config["scsi2"].startswith(LINK)
    assert chosen[:2] == ["scsi1", "scsi2"]
    config = borrowing.config()
    assert config["scsi1"].startswith("local-lvm:vm-100-disk-1")
    assert not {"scsi2", "virtio0"} & config.keys()
    assert not [key for key in config if key.startswith("unused")]
    assert borrowing.shell.logged == []


def test_a_drive_that_the_vm_releases_late_is_unplugged_then(borrowing: Borrowing) -> None:
    before = borrowing.everything()
    with borrowing.begun():
        borrowing.node.faults.add(Fault("unplug-fails", "100 scsi1", times=2))
    assert borrowing.everything() == before


def test_a_change_that_a_killed_run_left_for_the_next_start_is_reverted(borrowing: Borrowing) -> None:
    before = borrowing.everything()
    killed = borrowing.begun()
    machine = borrowing.node.machines[100]
    machine.pending["scsi1"] = machine.config.pop("scsi1")
    borrowing.reap()
    assert borrowing.everything() == before
    killed.pop_all()


def test_a_drive_that_its_owner_moved_is_not_removed(borrowing: Borrowing) -> None:
    killed = borrowing.begun()
    machine = borrowing.node.machines[100]
    machine.config["scsi7"] = machine.config.pop("scsi1")
    removed = borrowing.hypervisor.remove(
        next(each for each in borrowing.shell.logged if each.record.get("key") == "scsi1")
    )
    assert removed is not None
    assert removed.outcome == "foreign"
    assert f"VM 100 now has {LINK} as scsi7" in removed.why
    assert "scsi7" in borrowing.config()
    killed.pop_all()


def test_changes_of_its_owner_during_the_run_are_noted(borrowing: Borrowing) -> None:
    with borrowing.begun():
        borrowing.set(description="mine")
    assert any("the borrowed VM 100 was changed by others during the run: description" in n for n in borrowing.notes)


def test_a_vm_that_does_not_run_is_not_started(borrowing: Borrowing) -> None:
    assert borrowing.hypervisor.unsupported_by_host(THIN, STORED) is None
    borrowing.node.machines[100].process = None
    other = borrow_vm(borrowing.hypervisor._host, borrowing.client, GuestRules(vmids=(9000, 9001)), BORROWED, Events())
    assert "does not run; virt-overhead never starts a VM of others: qm start 100" in (
        other.unsupported_by_host(THIN, STORED) or ""
    )


CONFIG = {"scsihw": "virtio-scsi-single", "cores": 2}


@pytest.mark.parametrize(
    ("changed", "attach", "options", "why"),
    [
        ({}, Attach(), ANY_GUEST, None),
        ({"lock": "backup"}, Attach(), ANY_GUEST, "is locked (backup)"),
        ({"protection": 1}, Attach(), ANY_GUEST, "--protection 0"),
        ({"hotplug": "network,usb"}, Attach(), ANY_GUEST, "--hotplug disk,network,usb"),
        ({"scsihw": "virtio-scsi-pci"}, Attach(), ANY_GUEST, 'use bus = "virtio-blk"'),
        ({"scsihw": "virtio-scsi-pci"}, Attach("virtio-blk"), ANY_GUEST, None),
        ({}, Attach(queues=3), ANY_GUEST, "the guest has 2"),
        ({}, Attach("sata", iothread=False), ANY_GUEST, 'bus = "sata"'),
        ({}, Attach(), GuestOptions(memory=1 << 30), "leave out memory"),
    ],
)
def test_what_the_running_vm_cannot_get_is_refused_with_the_remedy(
    changed: dict[str, Any], attach: Attachment, options: GuestOptions, why: str | None
) -> None:
    found = refuse_disk("the borrowed VM 100", {**CONFIG, **changed}, attach, options)
    assert (found is None) if why is None else (found is not None and why in found)


def test_the_options_of_a_plugged_drive_are_read_back(borrowing: Borrowing) -> None:
    started = ["native\t0", "io_uring\t2", *(f"argument\t{each}" for each in ("/usr/bin/kvm", "-smp", "2,cores=2"))]
    borrowing.shell.prints = {"anon_inode": "\n".join(started), **borrowing.shell.prints}
    disk = GuestDisk("blk", WHOLE, Attach("virtio-blk", iothread=True, aio="io_uring", discard="unmap"))
    with borrowing.hypervisor.guest(borrowing.shell.log(RUN), [disk]) as guest:
        found = guest.effective("blk")
    assert (found.qemu_device, found.qemu_format, found.qemu_aio) == ("virtio-blk-pci", "raw", "io_uring")
    assert (found.qemu_cache_direct, found.qemu_iothread, found.qemu_discard) == (True, True, "unmap")
    assert found.qemu_vcpus == 2
