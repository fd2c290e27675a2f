"""A VM that is borrowed as the guest of a run: why it cannot be used, what a run does with it, and what it notes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import libvirt_qemu
import pytest

from harness.config.names import RunId
from harness.errors import GuestError, SafetyError
from harness.events import Event, Events, Note
from harness.features.borrow import plugged
from harness.features.borrow.libvirt import borrow_vm
from harness.guest.protocol import GuestDisk
from harness.lab.created import CreationLog, read_log
from harness.lab.facts import Acceleration, HostFacts
from harness.lab.hosts import GuestFiles, Host
from harness.lab.inventory import BorrowedVm, DiskById, HostSpec, LibvirtSpec, VmLogin
from harness.lab.transport.ssh import SshRunner
from harness.layout import BlockSource
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.guest import GuestOptions
from harness.model.layout import Lvm
from harness.model.mode import Mode
from tests.unit.granted import granted
from tests.unit.loop_disks import RUNNER
from tests.unit.played_shell import PlayedShell
from tests.unit.pluggable_domain import DEFINITION, PluggableDomain, connected

VM = BorrowedVm("shop", VmLogin("192.0.2.50", 22, "root", Path("/keys/shop"), None, through_host=True))
DISK = DiskById("optane", "/dev/disk/by-id/nvme-1", "PHM1", destroy=True)
ABLE = "user=0\nfio=fio-3.33\nos=debian \nvirtio_blk=yes\nvirtio_scsi=yes\n"
Make = Callable[..., "Borrowed"]
BLK = Attach("virtio-blk", iothread=False)


class Inside(PlayedShell):
    """The system in the VM. It sees the disks that the VM has."""

    def __init__(self, domain: PluggableDomain, check: str) -> None:
        super().__init__(
            {"modprobe": check, "osrelease": "kernel=6.1\nhypervisor=\nfio=fio-3.33\n"}, name="VM shop on here"
        )
        self._domain = domain

    def _printed(self, said: str) -> str:
        if "for dir in /sys/block/*" not in said:
            return super()._printed(said)
        rest = "none\t0\twrite back\t512\t512\t128\t0\t0\t1\t128\tvirtio_blk\tvirtio_blk\t"
        return "".join(f"vd{chr(97 + n)}\t{serial}\t{rest}\n" for n, serial in enumerate(self._domain.serials))


class Borrowed:
    """A hypervisor that borrows the VM, and what it noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, check: str, definition: str) -> None:
        self.domain = PluggableDomain(definition)
        self.before = self.domain.XMLDesc()
        self.events = list[Event]()
        inside = Inside(self.domain, check)
        monkeypatch.setattr(SshRunner, "connect", lambda *_, **__: inside)
        (directory / "shop.pid").write_text(f"{os.getpid()}\n")
        monkeypatch.setattr(plugged, "PID_FILE", str(directory / "{name}.pid"))
        host = Host(
            spec=HostSpec("here", "local", ssh=None, disks=(DISK,), hypervisor=LibvirtSpec(VM)),
            runner=RUNNER,
            ssh=None,
            target=None,
            facts=HostFacts({"cpus": "4", "fio": "fio-3.39", "hypervisor": ""}),
            guest_files=GuestFiles("", "", Path(), ""),
            acceleration=Acceleration("kvm", "as said"),
        )
        self.hypervisor = borrow_vm(host, connected(self.domain), VM, Events(self.events.append))
        (directory / "disk").write_bytes(bytes(4096))
        source = BlockSource(str(directory / "disk"), "file", 0, 4096, grant=granted(str(directory / "disk")))
        self.disk = GuestDisk("raw", source, BLK)
        self.log = CreationLog(RUNNER, RunId.new(), str(directory / "created"))
        self._directory = str(directory / "created")

    def why(self, attach: Attach = BLK) -> str | None:
        return self.hypervisor.unsupported_by_host(Mode("raw", Device(), attach), DISK)

    def recorded(self) -> list[str]:
        return [entry.kind for entry in read_log(RUNNER, self._directory)]

    @property
    def notes(self) -> list[str]:
        return [each.text for each in self.events if isinstance(each, Note)]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    monkeypatch.setattr(
        libvirt_qemu, "qemuMonitorCommand", lambda *_: json.dumps({"return": {"enabled": True, "present": True}})
    )

    def borrowed(check: str = ABLE, definition: str = DEFINITION) -> Borrowed:
        return Borrowed(monkeypatch, tmp_path, check, definition)

    return borrowed


def test_a_vm_that_can_be_borrowed_is_measured_and_is_as_before(make: Make) -> None:
    borrowed = make()
    assert borrowed.why() is None
    with borrowed.hypervisor.guest(borrowed.log, [borrowed.disk]) as guest:
        assert guest.device("raw") == "/dev/vdc"
        assert guest.boot_seconds is None
        # Its system has no program that shows it.
        assert guest.evidence["hypervisor"] == "KVM"
        assert guest.evidence["borrowed"] == "shop"
        with guest.holding("raw"):
            pass
    assert borrowed.domain.XMLDesc() == borrowed.before
    assert borrowed.recorded() == []
    assert any("has fio-3.33, its host has fio-3.39" in each for each in borrowed.notes)
    assert not any("changed by others" in each for each in borrowed.notes)


def test_a_disk_that_became_another_one_during_the_run_is_an_error(make: Make) -> None:
    borrowed = make()
    with borrowed.hypervisor.guest(borrowed.log, [borrowed.disk]) as guest:
        borrowed.domain.detachDeviceAlias("virtio-disk0", plugged.LIVE)
        with pytest.raises(GuestError, match="raw was /dev/vdc there, and is now /dev/vdb"), guest.holding("raw"):
            pytest.fail("it was held")
    assert any("disk virtio-disk0 was removed" in each for each in borrowed.notes)


def test_a_vm_with_a_disk_that_looks_like_ours_stops_the_run_before_anything_is_plugged_in(make: Make) -> None:
    own = DEFINITION.replace('<alias name="virtio-disk0"/>', '<serial>raw</serial><alias name="virtio-disk0"/>')
    borrowed = make(definition=own)
    with (
        pytest.raises(SafetyError, match="serial number or alias of raw"),
        borrowed.hypervisor.guest(borrowed.log, [borrowed.disk]),
    ):
        pytest.fail("it was borrowed")
    assert borrowed.domain.changes == []


def test_a_vm_that_does_not_run_is_not_started(make: Make) -> None:
    borrowed = make()
    borrowed.domain.runs = False
    assert "does not run; virt-overhead never starts a VM of others: virsh start shop" in (borrowed.why() or "")


def test_a_vm_that_libvirt_does_not_know_is_named(make: Make) -> None:
    borrowed = make()
    absent = replace(VM, name="absent")
    borrowed.hypervisor = borrow_vm(borrowed.hypervisor._host, connected(borrowed.domain), absent, Events())
    assert "find the VM absent" in (borrowed.why() or "")
    assert "virsh list --all" in (borrowed.why() or "")


def test_an_emulated_vm_on_a_host_with_kvm_is_refused(make: Make) -> None:
    borrowed = make(definition=DEFINITION.replace('type="kvm"', 'type="qemu"'))
    assert "is emulated although the host has KVM" in (borrowed.why() or "")


def test_what_its_system_lacks_or_cannot_get_is_the_reason(make: Make) -> None:
    assert "fio is not installed" in (make(ABLE.replace("fio-3.33", "")).why() or "")
    borrowed = make()
    assert 'bus = "sata"' in (borrowed.why(Attach("sata", iothread=False)) or "")
    mode = Mode("raw", Device(), BLK, GuestOptions(vcpus=4))
    assert "leave out vcpus" in (borrowed.hypervisor.unsupported_by_host(mode, DISK) or "")


def test_several_guests_cannot_be_one_vm(make: Make) -> None:
    why = make().hypervisor.unsupported_by_host(Mode("four", Lvm(), BLK, guests=4), DISK)
    assert "VM shop runs alone: measure several guests, or a neighbour, without borrow" in (why or "")
