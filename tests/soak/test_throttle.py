"""Limits of a disk's I/O under the lab's libvirt and QEMU: a requested one holds, and a hidden one is found."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from harness.features.throttles import HOLDS, check_limits
from harness.guest.protocol import Guest, GuestDisk
from harness.lab.transport.base import Runner
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.job import Job
from harness.model.mode import Cell, Mode
from harness.results.validity import configuration_check
from tests.build import A_SLICE
from tests.e2e.attaching import MIB, Lab, a_file
from tests.e2e.conftest import lab_host
from tests.patience import patience

__all__ = ["lab_host"]

JOB = Job("randread", 4096, iodepth=32, ramp=0, seconds=5)
LIMITED = Attach("virtio-blk", iops=1000)
PLAIN = Attach("virtio-blk")


def fio_in(guest: Guest, disk: str, job: Job) -> float:
    """fio's IOPS in the guest on this disk."""
    argv = ["fio", "--name=limited", f"--filename={guest.device(disk)}", f"--rw={job.rw}", f"--bs={job.bs}"]
    argv += ["--direct=1", "--ioengine=libaio", f"--iodepth={job.iodepth}", "--time_based", f"--runtime={job.seconds}"]
    printed = guest.runner.run(
        [*argv, f"--ramp_time={job.ramp}", "--output-format=json"], deadline=patience(120)
    ).stdout
    return float(json.loads(printed[printed.index("{") :])["jobs"][0]["read"]["iops"])


def test_a_limit_of_1000_iops_holds_within_2_percent(lab_host: Lab) -> None:
    disks = [GuestDisk(name, a_file(lab_host.host.runner, name, 64 * MIB), attach)
             for name, attach in (("limited", LIMITED), ("plain", PLAIN))]  # fmt: skip
    with lab_host.hypervisor.guest(lab_host.log(), disks) as guest:
        without = fio_in(guest, "plain", JOB)
        if without < 1.3 * 1000:
            pytest.skip(f"without a limit the guest has only {without:.0f} IOPS here")
        steady = fio_in(guest, "limited", replace(JOB, ramp=2, seconds=20))
        whole = fio_in(guest, "limited", JOB)
    assert steady == pytest.approx(1000, rel=HOLDS)
    cell = Cell("lab", "file", Mode("limited", Device(), LIMITED), JOB)
    slices = [replace(A_SLICE, arm="guest:limited", seconds=JOB.seconds, metrics={"iops": whole})]
    (check,) = check_limits(slices, cell)
    assert check.ok, check.detail


HIDDEN = {
    "qemu": "virsh blkdeviotune DOMAIN vda --total-iops-sec 500 --live",
    "cgroup": "virsh blkiotune DOMAIN --device-read-iops-sec $(findmnt -n -o SOURCE /),500 --live",
}


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("qemu", "requested qemu_iops_limit = none, it is iops-total=500"),
        ("cgroup", "requested host_io_limit = none, it is"),
    ],
)
def test_a_limit_that_nobody_requested_is_found(where: str, said: str, lab_host: Lab) -> None:
    runner: Runner = lab_host.host.runner
    disk = GuestDisk("hidden", a_file(runner, "hidden"), PLAIN)
    with lab_host.hypervisor.guest(lab_host.log(), [disk]) as guest:
        runner.run(
            ["sh", "-c", HIDDEN[where].replace("DOMAIN", "$(virsh list --name | grep ^voh-)")], deadline=patience(60)
        )
        check = configuration_check(PLAIN, guest.effective("hidden"))
    assert check is not None
    assert not check.ok
    assert said in check.detail
