"""Attachments under the lab's libvirt and QEMU: each option starts and reads back as asked, and devices come back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from pydantic import JsonValue

from harness.errors import HostError, SafetyError
from harness.events import Events
from harness.guest.hypervisors import hypervisor_of
from harness.guest.pci import behind, mark, returned_all
from harness.guest.protocol import Guest, GuestDisk, Hypervisor
from harness.image import ensure_images
from harness.lab.embedded import lab as embedded
from harness.lab.hosts import Host, open_host
from harness.lab.inventory import DiskById
from harness.lab.transport.base import Runner
from harness.layout.source import BlockSource
from harness.results.configuration import configuration_check
from harness.scenario.attach import Attach, Attachment, Vfio
from tests.unit.attach_options import options

MIB = 1024**2
DIRECTORY = "/var/lib/virt-overhead/attach-test"

# A disk costs the emulated guest a second and more, so several options are on one; each is on some disk of its bus.
EVERY_OPTION: Mapping[str, Attach] = {
    "blk": Attach("virtio-blk"),
    "blk-tuned": Attach("virtio-blk", "directsync", "io_uring", queues=2, queue_size=256, discard="unmap"),
    "blk-mapped": Attach("virtio-blk", iothread=False, queues=2, iothread_vq_mapping=2, detect_zeroes="on"),
    "blk-plain": Attach("virtio-blk", "writeback", "threads", iothread=False, physical_block_size=4096),
    "blk-4kn": Attach("virtio-blk", "unsafe", "threads", logical_block_size=4096, physical_block_size=4096),
    "blk-read": Attach("virtio-blk", "writethrough", "io_uring", read_only=True),
    "scsi": Attach(),
    "scsi-tuned": Attach(cache="directsync", aio="io_uring", queues=2, queue_size=512, discard="unmap"),
    "scsi-mapped": Attach(iothread=False, queues=2, iothread_vq_mapping=2, discard="unmap", detect_zeroes="unmap"),
    "scsi-plain": Attach(cache="writeback", aio="threads", iothread=False, physical_block_size=4096),
    "scsi-4kn": Attach(cache="unsafe", aio="threads", logical_block_size=4096, physical_block_size=4096),
    "scsi-read": Attach(cache="writethrough", aio="io_uring", read_only=True),
    "shared": Attach(controller="shared"),
    "shared-beside": Attach(controller="shared", detect_zeroes="on"),
    "sata": Attach("sata", iothread=False, discard="unmap"),
    "sata-plain": Attach("sata", "writethrough", "io_uring", iothread=False, physical_block_size=4096),
    "qcow2": Attach("virtio-blk"),
}
LUN = Attach(device="lun", aio="threads")


@dataclass(frozen=True, slots=True)
class Lab:
    """The lab host as a run has it, and its disks that can be handed to a guest whole."""

    host: Host
    hypervisor: Hypervisor

    @property
    def nvme(self) -> DiskById:
        return self._disk("nvme")

    @property
    def scsi(self) -> DiskById:
        return self._disk("scsi")

    def _disk(self, name: str) -> DiskById:
        disk = self.host.spec.disk(name)
        assert isinstance(disk, DiskById)
        return disk


@pytest.fixture(scope="module")
def lab_host() -> Iterator[Lab]:
    with ExitStack() as stack:
        host = stack.enter_context(open_host(embedded.inventory().hosts[0], ensure_images(Events()), Events()))
        host.runner.run(["mkdir", "-p", DIRECTORY], deadline=20)
        stack.callback(host.runner.run, ["rm", "-rf", DIRECTORY], deadline=60)
        yield Lab(host, stack.enter_context(hypervisor_of(host, Events())))


@pytest.fixture(scope="module")
def guest(lab_host: Lab) -> Iterator[Guest]:
    """One guest with all disks: files with every option, a LUN, and an NVMe that it gets whole for a while."""
    runner = lab_host.host.runner
    disks = [GuestDisk(name, a_file(runner, name), attach) for name, attach in EVERY_OPTION.items()]
    disks.append(GuestDisk("lun", a_disk(lab_host.scsi), LUN))
    disks.append(GuestDisk("vfio", a_disk(lab_host.nvme), Vfio()))
    with lab_host.hypervisor.guest("attach", disks) as running:
        yield running


def test_every_option_starts_and_reads_back_as_asked(guest: Guest) -> None:
    asked = {**EVERY_OPTION, "lun": LUN}
    found = {name: guest.effective(name) for name in asked}
    assert differences(asked, found) == []
    # And what an attachment was not asked for, but led to.
    assert found["blk-mapped"]["qemu_iothreads"] == 2
    assert found["shared"]["controller_disks"] == 2
    assert found["sata"]["guest_controller_driver"] == "ahci"
    assert found["qcow2"]["qemu_block_driver"] == "qcow2"
    assert found["lun"]["qemu_device"] == "scsi-block"


def test_a_passed_through_nvme_is_the_guests_for_a_while_and_then_the_hosts_again(guest: Guest, lab_host: Lab) -> None:
    runner, link = lab_host.host.runner, lab_host.nvme.id
    before = drivers(runner)
    with guest.holding("vfio"):
        assert runner.run(["test", "-e", link], deadline=20, check=False).status != 0
        found = guest.effective("vfio")
        assert differences({"vfio": Vfio()}, {"vfio": found}) == []
        assert guest.transferred("vfio") is None
        read = ["dd", f"if={guest.device('vfio')}", "of=/dev/null", "bs=1M", "count=4"]
        assert guest.runner.run(read, deadline=60).status == 0
    assert runner.run(["test", "-b", link], deadline=20, check=False).status == 0
    assert drivers(runner) == before


def test_a_passed_through_nvme_comes_back_also_when_the_work_on_it_fails(guest: Guest, lab_host: Lab) -> None:
    runner = lab_host.host.runner
    before = drivers(runner)
    with pytest.raises(HostError, match="no such"), guest.holding("vfio"):
        raise HostError("no such thing")
    assert drivers(runner) == before
    assert runner.run(["test", "-b", lab_host.nvme.id], deadline=20, check=False).status == 0


def test_a_disk_that_the_host_uses_is_not_taken_from_it(guest: Guest, lab_host: Lab) -> None:
    runner, link = lab_host.host.runner, lab_host.nvme.id
    runner.run(["sh", "-c", f"mkfs.ext4 -q -F {link} && mount {link} /mnt"], deadline=60)
    try:
        with pytest.raises(SafetyError, match="on /mnt is mounted"), guest.holding("vfio"):
            pytest.fail("the guest has got a mounted disk")
        assert runner.run(["mountpoint", "/mnt"], deadline=10, check=False).status == 0
    finally:
        runner.run(["sh", "-c", f"umount /mnt; wipefs -a -q {link}; udevadm settle"], deadline=60)


def test_a_device_that_a_killed_run_left_without_its_driver_is_given_back(lab_host: Lab) -> None:
    runner, link = lab_host.host.runner, lab_host.nvme.id
    before = drivers(runner)
    device = behind(runner, link)
    assert device is not None
    mark(runner, device)
    taken = (
        'cd "/sys/bus/pci/devices/$1" && echo vfio-pci >driver_override && echo "$1" >driver/unbind && '
        'echo "$1" >/sys/bus/pci/drivers_probe && readlink driver'
    )
    try:
        assert "vfio-pci" in runner.run(["sh", "-c", taken, "sh", device.address], deadline=30).stdout
    finally:
        returned = returned_all(runner)
    assert returned == [f"{link}, back from a guest"]
    assert drivers(runner) == before
    assert runner.run(["test", "-b", link], deadline=20, check=False).status == 0
    assert returned_all(runner) == []


def test_ide_disks_are_on_the_older_machine(lab_host: Lab) -> None:
    of_ide = options("ide")
    asked = {name: of_ide[name] for name in ("default", "writethrough", "discard", "512e")}
    disks = [GuestDisk(name, a_file(lab_host.host.runner, name), attach) for name, attach in asked.items()]
    with lab_host.hypervisor.guest("attach-ide", disks) as guest:
        found = {name: guest.effective(name) for name in asked}
    assert differences(asked, found) == []
    assert str(found["default"]["machine"]).startswith("pc-i440fx")


def a_disk(disk: DiskById) -> BlockSource:
    return BlockSource(disk.id, "block", 0, 64 * MIB)


def a_file(runner: Runner, name: str) -> BlockSource:
    path = f"{DIRECTORY}/{name}"
    if name == "qcow2":
        runner.run(["qemu-img", "create", "-q", "-f", "qcow2", path, "16M"], deadline=30)
        return BlockSource(path, "file", 0, 16 * MIB, format="qcow2")
    runner.run(["truncate", "-s", "16M", path], deadline=20)
    return BlockSource(path, "file", 0, 16 * MIB)


def drivers(runner: Runner) -> str:
    """Which driver each PCI device of the host is bound to, and what we noted of devices that a guest has."""
    script = (
        'cd /sys/bus/pci/devices; for at in *; do echo "$at $(readlink $at/driver) $(cat $at/driver_override)"; '
        "done; ls /run/virt-overhead/* 2>/dev/null; true"
    )
    return runner.run(["sh", "-c", script], deadline=20).stdout


def differences(asked: Mapping[str, Attachment], found: Mapping[str, dict[str, JsonValue]]) -> list[str]:
    checks = {name: configuration_check(attach, found[name]) for name, attach in asked.items()}
    return [
        f"{name}: {check.detail if check else 'nothing was read back'}"
        for name, check in checks.items()
        if check is None or not check.ok or "not read back" in check.detail
    ]
