"""A setup on a disk: what is built on a real loop device, by which modes the host can have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.config.names import RunId
from harness.errors import Unsupported
from harness.events import Events
from harness.guest.libvirt.backend import LibvirtHypervisor
from harness.guest.libvirt.connection import Connection
from harness.lab.created import CreationLog
from harness.lab.facts import HostFacts, read_facts
from harness.lab.hosts import Host
from harness.lab.inventory import DiskByFile, HostSpec
from harness.measure.phases import Phases
from harness.measure.prepare import SetupRequest, open_session
from harness.measure.recorder import DiskRecords, describe_disks
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.layout import Lvm
from harness.model.mode import Mode
from tests.unit.loop_disks import RUNNER, require, traces
from tests.unit.this_host import connection, this_host

__all__ = ["connection"]

MIB = 1024**2
HOST = Mode("host", Device(), None)
LVM = Mode("lvm", Lvm(), Attach())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """This machine, without what LVM needs, and with a disk in a file that is made when it is needed."""
    require("sfdisk", "fio")
    disk = DiskByFile("loop", tmp_path / "disk.img", 256 * MIB, destroy=True)
    return this_host(
        HostSpec("here", "local", ssh=None, disks=(disk,)),
        HostFacts({**read_facts(RUNNER).provenance, "devmapper": "", "lvm": ""}),
    )


@pytest.fixture
def hypervisor(host: Host, connection: Connection) -> LibvirtHypervisor:
    return LibvirtHypervisor(host, connection, Events())


def test_a_disk_is_not_touched_if_the_host_supports_none_of_the_modes(
    host: Host, hypervisor: LibvirtHypervisor, tmp_path: Path
) -> None:
    before = traces(tmp_path)
    request = SetupRequest(("loop",), (HOST, LVM), jobs=(), span=64 * MIB, conditioning="fill")
    log = CreationLog(RUNNER, RunId.new(), str(tmp_path / "created"))
    opened = open_session(host, hypervisor, host.spec.disks, request, log=log, seed=1, phases=Phases(Events()))
    with pytest.raises(Unsupported) as refused, opened:
        pytest.fail("it was opened")
    assert "lvm" in refused.value.message
    assert traces(tmp_path) == before


def test_the_disks_device_and_scheduler_are_recorded(host: Host, connection: Connection, tmp_path: Path) -> None:
    request = SetupRequest(("loop",), (HOST,), jobs=(), span=16 * MIB, conditioning="fill")
    log = CreationLog(RUNNER, RunId.new(), str(tmp_path / "created"))
    host = replace(host, facts=read_facts(RUNNER))
    hypervisor = LibvirtHypervisor(host, connection, Events())
    with open_session(host, hypervisor, host.spec.disks, request, log=log, seed=1, phases=Phases(Events())) as at:
        device = at.layouts.disk
        listed = Path(f"/sys/block/{device}/queue/scheduler").read_text()
        sectors = int(Path(f"/sys/block/{device}/size").read_text())
        (disk,) = DiskRecords(Events()).of(at)
        found = describe_disks(at, [disk], "loop")
    assert list(found) == ["disk.loop"]
    (of_disk,) = found.values()
    assert isinstance(of_disk, dict)
    assert of_disk["device"] == device
    assert str(of_disk["scheduler"]) in listed
    assert of_disk["path"] == "not shown by the kernel"  # a loop device
    assert (disk.name, disk.facts.device, disk.facts.transport) == ("loop", device, "loop")
    assert disk.facts.size_bytes == sectors * 512 == 256 * MIB
    assert disk.before is None  # a loop device has neither temperature nor wear
    assert not disk.notes


class PollingHypervisor(LibvirtHypervisor):
    """A hypervisor whose services poll the disks, as Proxmox VE does."""

    poll_seconds = 1.0


def test_polls_are_counted_before_the_first_round_if_the_hypervisor_polls_its_disks(
    host: Host, connection: Connection, tmp_path: Path
) -> None:
    request = SetupRequest(("loop",), (HOST,), jobs=(), span=16 * MIB, conditioning="fill")
    log = CreationLog(RUNNER, RunId.new(), str(tmp_path / "created"))
    host = replace(host, facts=read_facts(RUNNER))
    for kind, counted in ((PollingHypervisor, True), (LibvirtHypervisor, False)):
        phases, hypervisor = Phases(Events()), kind(host, connection, Events())
        with open_session(host, hypervisor, host.spec.disks, request, log=log, seed=1, phases=phases) as at:
            assert set(at.idle.disks) == ({at.layouts.disk} if counted else set())
        assert (phases.seconds.get("idle", 0.0) > 1.2) is counted
