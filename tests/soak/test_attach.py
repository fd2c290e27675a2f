"""Attachments under the lab's libvirt and QEMU: more values of each option, the older machine, a storage daemon."""

from __future__ import annotations

from collections.abc import Mapping

from harness.guest.protocol import GuestDisk
from harness.model.attach import Attach
from tests.e2e.attaching import Lab, a_file, differences, source_of
from tests.e2e.conftest import host, lab_host
from tests.patience import patience
from tests.unit.attach_options import options

__all__ = ["host", "lab_host"]

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
