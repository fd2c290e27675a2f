"""An NVMe of the lab host's that a guest gets whole (VFIO): it is the guest's for a while, and comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.errors import SafetyError
from harness.features.vfio.passing import PassedThrough, find_pci_disk
from harness.guest.protocol import Guest, GuestDisk
from harness.lab.created import read_log
from harness.lab.transport.base import Runner
from harness.measure.reap import reap
from harness.model.attach import Vfio
from tests.e2e.attaching import Lab, a_disk, differences
from tests.patience import patience


@pytest.fixture(scope="module")
def guest(lab_host: Lab) -> Iterator[Guest]:
    disk = GuestDisk("vfio", a_disk(lab_host.host.runner, lab_host.nvme), Vfio())
    with lab_host.hypervisor.guest(lab_host.log(), [disk]) as running:
        yield running


def test_a_passed_through_nvme_is_the_guests_for_a_while_and_then_the_hosts_again(guest: Guest, lab_host: Lab) -> None:
    runner, link = lab_host.host.runner, lab_host.nvme.id
    before = drivers(runner)
    with guest.holding("vfio"):
        assert runner.run(["test", "-e", link], deadline=patience(20), check=False).status != 0
        found = guest.effective("vfio")
        assert differences({"vfio": Vfio()}, {"vfio": found}) == []
        assert guest.transferred(["vfio"]) == {"vfio": None}
        read = ["dd", f"if={guest.device('vfio')}", "of=/dev/null", "bs=1M", "count=4"]
        assert guest.runner.run(read, deadline=patience(60)).status == 0
    assert runner.run(["test", "-b", link], deadline=patience(20), check=False).status == 0
    assert drivers(runner) == before


def test_a_passed_through_nvme_comes_back_also_when_the_work_on_it_fails(guest: Guest, lab_host: Lab) -> None:
    runner = lab_host.host.runner
    before = drivers(runner)
    with pytest.raises(Failed), guest.holding("vfio"):
        raise Failed
    assert drivers(runner) == before
    assert runner.run(["test", "-b", lab_host.nvme.id], deadline=patience(20), check=False).status == 0


def test_a_disk_that_the_host_uses_is_not_taken_from_it(guest: Guest, lab_host: Lab) -> None:
    runner, link = lab_host.host.runner, lab_host.nvme.id
    runner.run(["sh", "-c", f"mkfs.ext4 -q -F {link} && mount {link} /mnt"], deadline=patience(60))
    try:
        with pytest.raises(SafetyError, match="on /mnt is mounted"), guest.holding("vfio"):
            pytest.fail("the guest has got a mounted disk")
        assert runner.run(["mountpoint", "/mnt"], deadline=patience(10), check=False).status == 0
    finally:
        runner.run(
            ["sh", "-c", f"umount /mnt; wipefs -a -q {link}; blkdiscard -z -f {link}; udevadm settle"],
            deadline=patience(60),
        )


def test_a_device_that_a_killed_run_left_without_its_driver_is_given_back(lab_host: Lab) -> None:
    runner, link = lab_host.host.runner, lab_host.nvme.id
    before = drivers(runner)
    device = find_pci_disk(runner, link)
    assert device is not None
    log = lab_host.log()
    log.record(PassedThrough(disks=("S",), address=device.address, driver=device.driver, link=link))
    taken = (
        'cd "/sys/bus/pci/devices/$1" && echo vfio-pci >driver_override && echo "$1" >driver/unbind && '
        'echo "$1" >/sys/bus/pci/drivers_probe && readlink driver'
    )
    try:
        assert "vfio-pci" in runner.run(["sh", "-c", taken, "sh", device.address], deadline=patience(30)).stdout
    finally:
        entries = [entry for entry in read_log(runner) if entry.run_id == log.run_id]
        done = reap(runner, lab_host.hypervisor, entries)
    assert done == [f"removed after a killed run: {link}, which a guest had, of run {log.run_id}"]
    assert drivers(runner) == before
    assert runner.run(["test", "-b", link], deadline=patience(20), check=False).status == 0
    assert [entry for entry in read_log(runner) if entry.run_id == log.run_id] == []


def drivers(runner: Runner) -> str:
    """Which driver each PCI device of the host is bound to, and what we noted of devices that a guest has."""
    script = (
        'cd /sys/bus/pci/devices; for at in *; do echo "$at $(readlink $at/driver) $(cat $at/driver_override)"; '
        "done; ls /var/lib/virt-overhead/created/*/*passed* 2>/dev/null; true"
    )
    return runner.run(["sh", "-c", script], deadline=patience(20)).stdout


class Failed(Exception):
    """What is done with the disk, in a test of what becomes of the disk then."""
