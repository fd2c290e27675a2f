"""Guests of several sizes under the lab's libvirt and QEMU: each starts, and reads back as requested."""

from __future__ import annotations

import pytest

from harness.guest.protocol import GuestDisk
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.guest import GIB, MIB, GuestOptions
from harness.model.mode import Mode
from harness.results.validity import configuration_check
from tests.e2e.attaching import Lab, a_file
from tests.e2e.conftest import lab_host

__all__ = ["lab_host"]

SIZES = {
    # The lab's guests run on the last CPU of their host, because emulated ones crash on several (docs/lab.md).
    "placed": GuestOptions(
        sockets=1, cores=2, memory=GIB, pin_iothreads="0", pin_emulator="0", numa_nodes="0", poll_max_ns=0, poll_grow=2
    ),
    "pc": GuestOptions(machine="pc", memory=512 * MIB, cpu="max", poll_max_ns=50_000, poll_shrink=2),
    "haltpoll": GuestOptions(memory=512 * MIB, idle="haltpoll", haltpoll_ns=500_000),
    "poll": GuestOptions(memory=512 * MIB, idle="poll"),
    "hidden": GuestOptions(memory=512 * MIB, hide_kvm=True),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_guest_has_the_requested_size_at_the_requested_place(name: str, lab_host: Lab) -> None:
    last = int(lab_host.host.facts["cpus"]) - 1
    mode = Mode("sized", Device(), Attach(), SIZES[name].over(GuestOptions(pin_vcpus=(str(last),))))
    source = a_file(lab_host.host.runner, "sized")
    with lab_host.hypervisor.guest(lab_host.log(), [GuestDisk("sized", source, Attach())], mode.guest) as guest:
        found = guest.effective("sized")
    check = configuration_check(mode, found)
    assert check is not None
    assert check.ok, check.detail
    assert "not read back" not in check.detail
    assert found.host_page_size == 4096
    # What nobody requests is read back as well.
    assert found.guest_idle == (mode.guest.idle or "halt")
    if lab_host.host.acceleration.accel == "kvm":
        assert found.guest_kvm_clock is not bool(mode.guest.hide_kvm)
