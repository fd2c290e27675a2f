"""Attachments under the lab's libvirt and QEMU: each option starts and reads back as asked."""

from __future__ import annotations

from collections.abc import Mapping

from harness.guest.protocol import GuestDisk
from harness.model.attach import Attach
from tests.e2e.attaching import MIB, Lab, a_disk, differences, source_of
from tests.unit.attach_options import UNTRIED, options

# A disk costs the emulated guest several seconds, so several options are on one. Each option is on some disk here;
# more of their values, and other machines and servers, are in tests/soak/test_attach.py.
# The lab host's QEMU 10.0.13 gives the guest queues of 1024, whatever is requested.
OPTIONS: Mapping[str, Attach] = {
    "blk-tuned": Attach(
        "virtio-blk", "directsync", "io_uring", queues=2, queue_size=1024, discard="unmap", poll_max_ns=0
    ),
    "blk-mapped": Attach("virtio-blk", iothread=False, queues=2, iothread_vq_mapping=2, detect_zeroes="on"),
    "blk-packed": Attach("virtio-blk", packed=True, event_idx=False),
    "scsi-4kn": Attach(cache="unsafe", aio="threads", logical_block_size=4096, physical_block_size=4096),
    "scsi-limit": Attach(
        iops=1000, iops_burst=2000, bw=100 * MIB, bw_burst=200 * MIB, burst_seconds=5, throttle_group="both"
    ),
    "scsi-read": Attach(cache="writethrough", aio="io_uring", read_only=True),
    "shared": Attach(controller="shared"),
    "shared-beside": Attach(controller="shared", detect_zeroes="on"),
    "sata": Attach("sata", iothread=False, discard="unmap"),
    "qcow2": Attach("virtio-blk", metadata_cache=4 * MIB),
    # Options of the table that none of these changes.
    **{name: attach for name, attach in options("virtio-blk").items() if name.replace("-", "_") in UNTRIED},
}
LUN = Attach(device="lun", aio="threads")


def test_every_option_starts_and_reads_back_as_asked(lab_host: Lab) -> None:
    runner = lab_host.host.runner
    asked = {**OPTIONS, "lun": LUN}
    disks = [GuestDisk(name, source_of(runner, name), attach) for name, attach in OPTIONS.items()]
    disks.append(GuestDisk("lun", a_disk(runner, lab_host.scsi), LUN))
    with lab_host.hypervisor.guest(lab_host.log(), disks) as guest:
        found = {name: guest.effective(name) for name in asked}
    assert differences(asked, found) == []
    # And what an attachment was not asked for, but led to.
    assert found["blk-mapped"].qemu_iothreads == 2
    assert found["shared"].controller_disks == 2
    assert found["sata"].guest_controller_driver == "ahci"
    assert found["qcow2"].qemu_block_driver == "qcow2"
    assert found["lun"].qemu_device == "scsi-block"
    assert found["lun"].host_io_limit == "none"
