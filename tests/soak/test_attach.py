"""Attachments under the lab's libvirt and QEMU: each option and its values, the older machine, a storage daemon."""

from __future__ import annotations

from collections.abc import Mapping

from harness.guest.protocol import GuestDisk
from harness.model.attach import Attach
from tests.e2e.attaching import MIB, Lab, a_disk, a_file, differences, source_of
from tests.e2e.conftest import host, lab_host
from tests.patience import patience
from tests.unit.attach_options import UNTRIED, options

__all__ = ["host", "lab_host"]

# A disk costs the emulated guest several seconds, so several options are on one. Each option is on some disk here.
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

VALUES: Mapping[str, Attach] = {
    "blk": Attach("virtio-blk", poll_max_ns=0),
    "blk-plain": Attach("virtio-blk", "writeback", "threads", iothread=False, physical_block_size=4096),
    "blk-4kn": Attach("virtio-blk", "unsafe", "threads", logical_block_size=4096, physical_block_size=4096),
    "blk-read": Attach("virtio-blk", "writethrough", "io_uring", read_only=True),
    "scsi": Attach(),
    "scsi-tuned": Attach(cache="directsync", aio="io_uring", queues=2, queue_size=1024, discard="unmap"),
    "scsi-mapped": Attach(iothread=False, queues=2, iothread_vq_mapping=2, discard="unmap", detect_zeroes="unmap"),
    "scsi-plain": Attach(cache="writeback", aio="threads", iothread=False, physical_block_size=4096),
    "scsi-packed": Attach(packed=True, event_idx=False),
    "sata-plain": Attach("sata", "writethrough", "io_uring", iothread=False, physical_block_size=4096),
}


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


def test_more_values_start_and_read_back_as_asked(lab_host: Lab) -> None:
    runner = lab_host.host.runner
    disks = [GuestDisk(name, source_of(runner, name), attach) for name, attach in VALUES.items()]
    with lab_host.hypervisor.guest(lab_host.log(), disks) as guest:
        found = {name: guest.effective(name) for name in VALUES}
    assert differences(VALUES, found) == []


def test_ide_disks_are_on_the_older_machine(lab_host: Lab) -> None:
    of_ide = options("ide")
    asked = {name: of_ide[name] for name in ("default", "writethrough", "discard", "512e")}
    disks = [GuestDisk(name, a_file(lab_host.host.runner, name), attach) for name, attach in asked.items()]
    with lab_host.hypervisor.guest(lab_host.log(), disks) as guest:
        found = {name: guest.effective(name) for name in asked}
    assert differences(asked, found) == []
    assert str(found["default"].machine).startswith("pc-i440fx")


SERVED = Attach("virtio-blk", queues=1, poll_max_ns=0, server="storage-daemon")


def test_a_disk_of_a_storage_daemon_works_and_reads_back_as_asked(lab_host: Lab) -> None:
    served(lab_host, "daemon", SERVED)


def served(lab: Lab, name: str, attach: Attach) -> None:
    """A guest writes to and reads from a disk with these options: a RAW file, or a qcow2 image if it is called so."""
    source = source_of(lab.host.runner, name)
    with lab.hypervisor.guest(lab.log(), [GuestDisk(name, source, attach)]) as guest:
        found = {name: guest.effective(name)}
        write = 'dd if=/dev/urandom of="$1" bs=64k count=1 conv=fsync && head -c 65536 "$1" | sha256sum'
        printed = guest.runner.run(["sh", "-c", write, "sh", guest.device(name)], deadline=patience(60)).stdout
        assert guest.transferred([name]) == {name: None}
    assert differences({name: attach}, found) == []
    if source.format == "raw":
        # What the guest wrote and flushed is in the file.
        read = 'head -c 65536 "$1" | sha256sum'
        assert lab.host.runner.run(["sh", "-c", read, "sh", source.path], deadline=patience(60)).stdout == printed
