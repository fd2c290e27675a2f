"""A running VM of others gets our disks and is afterwards as it was, also after a run that was killed."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from pathlib import Path

import libvirt
import pytest

from harness.config.names import RunId
from harness.errors import HostError
from harness.features.borrow import plugged
from harness.features.borrow.libvirt import devices_for, devices_plugged
from harness.guest.libvirt.backend import LibvirtRemover
from harness.guest.libvirt.effective import live_xml
from harness.guest.protocol import GuestDisk
from harness.lab.created import CreationLog, read_log
from harness.lab.guard.writable import issue
from harness.lab.pin import read_pins
from harness.layout import BlockSource
from harness.measure.reap import describe_entry, reap
from harness.model.attach import Attach
from harness.signals import wait_until
from tests.unit.loop_disks import RUNNER
from tests.unit.pluggable_domain import PluggableDomain, connected

PLUGGED = ["add iothread 3", "plug ua-voh-7-1", "plug ua-lvm", "plug ua-raw"]
UNPLUGGED = ["unplug ua-raw", "unplug ua-lvm", "unplug ua-voh-7-1", "remove iothread 3"]


class Borrowing:
    """A VM, a creation log, and two disks of a run: one on a SCSI controller with an iothread, one of virtio-blk."""

    def __init__(self, directory: Path) -> None:
        self.domain = PluggableDomain()
        self.before = self.domain.XMLDesc()
        self.directory = str(directory / "created")
        self.pid_file = directory / "shop.pid"
        self.pid_file.write_text(f"{os.getpid()}\n")
        self.disks = [
            self._disk(directory, "lvm", Attach(iothread=True)),
            self._disk(directory, "raw", Attach("virtio-blk", iothread=False)),
        ]
        self.log = CreationLog(RUNNER, RunId.new(), self.directory)

    def _disk(self, directory: Path, name: str, attach: Attach) -> GuestDisk:
        path = directory / name
        path.write_bytes(bytes(4096))
        (pin,) = read_pins(RUNNER, [str(path)])
        return GuestDisk(name, BlockSource(str(path), "file", 0, 4096, grant=issue(RUNNER, pin, ["PHM1"])), attach)

    def plugged(self) -> ExitStack:
        """The block in which the disks are plugged in. Nothing is unplugged if it is not left, as after kill -9."""
        stack = ExitStack()
        connection = connected(self.domain)
        devices = devices_for(live_xml(connection, self.domain), self.disks, "7")
        stack.enter_context(devices_plugged(connection, self.domain, self.log, self.disks, devices))
        return stack

    def recorded(self) -> list[str]:
        return [entry.kind for entry in read_log(RUNNER, self.directory)]

    def reap(self) -> list[str]:
        remover = LibvirtRemover(RUNNER, connected(self.domain))
        return reap(RUNNER, remover, read_log(RUNNER, self.directory))

    def untouched(self) -> bool:
        """Whether nothing of it is different from before, and nothing is recorded any more."""
        return (self.domain.XMLDesc(), self.recorded()) == (self.before, [])


@pytest.fixture
def borrowing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Borrowing:
    found = Borrowing(tmp_path)
    monkeypatch.setattr(plugged, "PID_FILE", str(tmp_path / "{name}.pid"))
    monkeypatch.setattr(plugged, "RELEASE_SECONDS", 0.05)
    monkeypatch.setattr(plugged, "_POLL_SECONDS", 0.01)
    return found


def test_each_device_is_recorded_before_it_is_plugged_in_and_the_vm_is_as_before_afterwards(
    borrowing: Borrowing,
) -> None:
    recorded: dict[str, int] = {}
    borrowing.domain.before_change = lambda change: recorded.update({change: len(borrowing.recorded())})
    with borrowing.plugged():
        assert borrowing.domain.changes == PLUGGED
        assert recorded == {change: number for number, change in enumerate(PLUGGED, start=1)}
        assert [describe_entry(entry).partition(", of run")[0] for entry in read_log(RUNNER, borrowing.directory)] == [
            "iothread 3 in the borrowed VM shop",
            "the controller ua-voh-7-1 in the borrowed VM shop",
            f"the disk sdb ({borrowing.disks[0].source.path}) in the borrowed VM shop",
            f"the disk vdb ({borrowing.disks[1].source.path}) in the borrowed VM shop",
        ]
    assert borrowing.domain.changes == PLUGGED + UNPLUGGED
    assert borrowing.untouched()


def test_after_a_kill_reap_unplugs_everything(borrowing: Borrowing) -> None:
    killed = borrowing.plugged()
    assert not borrowing.untouched()
    assert len(borrowing.reap()) == len(UNPLUGGED)
    assert borrowing.untouched()
    killed.pop_all()


def test_nothing_is_left_if_libvirt_refuses_a_device(borrowing: Borrowing) -> None:
    borrowing.domain.refuses = "ua-raw"
    with pytest.raises(HostError, match=r"plug .* into the VM shop: .*No more available PCI slots") as error:
        borrowing.plugged()
    assert "pcie-root-port" in (error.value.hint or "")
    assert borrowing.untouched()


def test_a_killed_run_that_recorded_a_device_and_did_not_plug_it_in_leaves_nothing(borrowing: Borrowing) -> None:
    killed = borrowing.plugged()
    for change in UNPLUGGED[:2]:
        borrowing.domain.detachDeviceAlias(change.removeprefix("unplug "), plugged.LIVE)
    borrowing.reap()
    assert borrowing.untouched()
    killed.pop_all()


def test_a_vm_that_ended_meanwhile_is_left_alone(borrowing: Borrowing) -> None:
    killed = borrowing.plugged()
    borrowing.domain.runs = False
    changes = list(borrowing.domain.changes)
    borrowing.reap()
    assert (borrowing.domain.changes, borrowing.recorded()) == (changes, [])
    killed.pop_all()


def test_a_disk_that_the_vm_does_not_release_stays_recorded_with_everything_below_it(borrowing: Borrowing) -> None:
    killed = borrowing.plugged()
    borrowing.domain.clings_to = "ua-lvm"
    with pytest.raises(HostError, match="shop did not release sdb within 50 ms") as error:
        borrowing.reap()
    assert "virt-overhead reap" in (error.value.hint or "")
    assert borrowing.recorded() == ["added-iothread", "plugged-in", "plugged-in"]
    borrowing.domain.clings_to = ""
    borrowing.reap()
    assert borrowing.untouched()
    killed.pop_all()


def test_what_others_put_in_its_place_is_not_unplugged(borrowing: Borrowing) -> None:
    killed = borrowing.plugged()
    borrowing.domain.replace("ua-raw", file="/srv/of-somebody-else")
    with pytest.raises(HostError, match="ua-raw of the VM shop is now vdb with /srv/of-somebody-else"):
        borrowing.reap()
    assert 'name="ua-raw"' in borrowing.domain.XMLDesc()
    assert "unplug ua-raw" not in borrowing.domain.changes
    killed.pop_all()


def test_an_iothread_of_a_vm_that_was_started_anew_is_its_own(borrowing: Borrowing) -> None:
    killed = borrowing.plugged()
    borrowing.pid_file.write_text("1\n")
    assert any("shop was started anew, and has an iothread 3 of its own" in each for each in borrowing.reap())
    assert "remove iothread 3" not in borrowing.domain.changes
    killed.pop_all()


def test_a_device_that_is_plugged_in_after_its_deadline_stays_recorded_until_it_is_unplugged(
    borrowing: Borrowing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.features.borrow.libvirt.PLUG_SECONDS", 0.1)
    answers = threading.Event()
    borrowing.domain.before_change = lambda change: None if change != "plug ua-raw" else require(answers.wait(20))
    with pytest.raises(HostError, match=r"did not plug .*/raw into the VM shop within 100 ms") as error:
        borrowing.plugged()
    assert "so it may yet plug" in error.value.message
    assert len(borrowing.recorded()) == 4
    answers.set()
    require(wait_until(lambda: "raw" in borrowing.domain.serials, deadline=20, every=0.01))
    borrowing.reap()
    assert borrowing.untouched()


def test_a_device_that_libvirt_plugs_in_after_the_kill_of_its_run_is_waited_for(borrowing: Borrowing) -> None:
    killed = borrowing.plugged()
    borrowing.domain.detachDeviceAlias("ua-raw", plugged.LIVE)
    answers = threading.Event()
    borrowing.domain.before_change = lambda change: None if change != "plug ua-raw" else require(answers.wait(20))
    devices = devices_for(live_xml(connected(borrowing.domain), borrowing.domain), borrowing.disks[1:], "7")
    late = threading.Thread(
        target=borrowing.domain.attachDeviceFlags, args=(devices.disks["raw"].xml, plugged.LIVE), daemon=True
    )
    late.start()
    borrowing.domain.job_seconds = 0.1
    with pytest.raises(HostError, match="cannot acquire state change lock"):
        borrowing.reap()
    assert len(borrowing.recorded()) == 4
    answers.set()
    late.join()
    borrowing.reap()
    assert borrowing.untouched()
    killed.pop_all()


@pytest.mark.parametrize(
    ("ended", "saved", "why"),
    [
        (libvirt.VIR_DOMAIN_SHUTOFF_SAVED, True, r"is saved \(virsh managedsave.* still has this device"),
        (libvirt.VIR_DOMAIN_SHUTOFF_UNKNOWN, True, r"is saved \(virsh managedsave"),
        (libvirt.VIR_DOMAIN_SHUTOFF_SAVED, False, r"was saved to a file \(virsh save\)"),
        (libvirt.VIR_DOMAIN_SHUTOFF_MIGRATED, False, "was migrated to another host"),
        (libvirt.VIR_DOMAIN_SHUTOFF_UNKNOWN, False, "libvirt was restarted since it ended"),
    ],
)
def test_the_devices_of_a_vm_that_may_run_on_with_them_stay_recorded(
    borrowing: Borrowing, ended: int, saved: bool, why: str
) -> None:
    with pytest.raises(HostError, match=why) as error, borrowing.plugged():
        borrowing.domain.runs, borrowing.domain.ended, borrowing.domain.saved = False, ended, saved
    assert "virt-overhead reap" in (error.value.hint or "")
    assert len(borrowing.recorded()) == 4
    with pytest.raises(HostError, match=why):
        borrowing.reap()
    assert len(borrowing.recorded()) == 4
    # Its owner restores it.
    borrowing.domain.runs, borrowing.domain.saved = True, False
    borrowing.reap()
    assert borrowing.untouched()


def test_the_devices_of_a_vm_without_a_definition_stay_recorded_when_it_is_gone(borrowing: Borrowing) -> None:
    borrowing.domain.persistent = False
    with pytest.raises(HostError, match="is gone, and libvirt has no definition of it"), borrowing.plugged():
        borrowing.domain.undefined = True
    assert len(borrowing.recorded()) == 4
    borrowing.domain.undefined = False
    borrowing.reap()
    assert borrowing.untouched()


def require(true: object) -> None:
    assert true
