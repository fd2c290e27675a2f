"""How a disk and its guest are really set up, as read back from hypervisor, QEMU, host and guest. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Annotated

from pydantic import JsonValue, Strict, model_serializer
from pydantic.dataclasses import dataclass

from harness.model.values import STRICT


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Effective:
    """Each setting has the value that was read back, or None if nothing reported it.

    `Attach.expected` and `GuestOptions.expected` also have this type. There, None accepts any value. The values come
    from other programs, so a value of another type raises ValueError.
    """

    machine: str | None = None
    bus: str | None = None
    """The hypervisor's name of the bus."""
    cache: str | None = None
    aio: str | None = None
    iothread: bool | None = None
    pve_drive: str | None = None
    """The drive in the VM's configuration of Proxmox VE."""
    libvirt_disk: str | None = None
    """The options of the disk and of its SCSI controller in libvirt's XML, without what only this guest has."""
    qemu_device: str | None = None
    qemu_host: str | None = None
    qemu_format: str | None = None
    qemu_block_driver: str | None = None
    qemu_cache_direct: bool | None = None
    qemu_cache_no_flush: bool | None = None
    qemu_write_cache: bool | None = None
    qemu_aio: str | None = None
    qemu_iothread: bool | None = None
    qemu_iothreads: int | None = None
    qemu_queues: int | None = None
    qemu_queue_size: int | None = None
    qemu_packed: bool | None = None
    qemu_event_idx: bool | None = None
    qemu_metadata_cache: int | None = None
    """The cache of a qcow2 file's tables in bytes, if it is set."""
    qemu_discard: str | None = None
    qemu_detect_zeroes: str | None = None
    qemu_read_only: bool | None = None
    qemu_iops_limit: str | None = None
    """QEMU's limits of I/Os per second, by the names that a throttle group has for them; `none` without a limit."""
    qemu_bw_limit: str | None = None
    """The same in bytes per second."""
    qemu_throttle_group: str | None = None
    """The group of disks that share these limits."""
    host_io_limit: str | None = None
    """The limits of the control group of QEMU's process for the disks below; `none` without a limit."""
    qemu_logical_block_size: int | None = None
    qemu_physical_block_size: int | None = None
    controller_disks: int | None = None
    """How many disks share its controller."""
    qemu_backing_files: int | None = None
    """The images below a qcow2 image, down to the one with the data."""
    qemu_data_file: bool | None = None
    """Whether the data of a qcow2 image is in a file of its own."""
    pci_address: str | None = None
    iommu_group: str | None = None
    host_driver: str | None = None
    host_encryption: str | None = None
    """What dm-crypt reports of the device below: `luks2`."""
    host_cipher: str | None = None
    """Its cipher, for example `aes-xts-plain64`."""
    host_key_bits: int | None = None
    host_encryption_sector: int | None = None
    """The bytes that it encrypts at once, which are its logical blocks."""
    guest_scheduler: str | None = None
    guest_rotational: bool | None = None
    guest_write_cache: str | None = None
    guest_logical_block_size: int | None = None
    guest_physical_block_size: int | None = None
    guest_nr_requests: int | None = None
    guest_discard_max_bytes: int | None = None
    guest_read_only: bool | None = None
    guest_queues: int | None = None
    guest_queue_size: int | None = None
    """Requests that its driver may have in a queue. QEMU 10.0.13 of Debian offers 1024, whatever its property says."""
    guest_packed: bool | None = None
    """What guest and device agreed on, as the next one."""
    guest_event_idx: bool | None = None
    guest_driver: str | None = None
    guest_controller_driver: str | None = None
    guest_windows_driver: str | None = None
    """The driver of its controller in Windows."""
    qemu_cpu: str | None = None
    qemu_vcpus: int | None = None
    qemu_sockets: int | None = None
    qemu_cores: int | None = None
    """Cores of each socket."""
    qemu_threads: int | None = None
    """Threads of each core."""
    qemu_memory: int | None = None
    qemu_numa_nodes: str | None = None
    qemu_numa_mode: str | None = None
    qemu_poll_max_ns: int | None = None
    """Of the iothreads that serve the disk, as the two below."""
    qemu_poll_grow: int | None = None
    qemu_poll_shrink: int | None = None
    host_page_size: int | None = None
    """The host's pages that back the guest's memory, in bytes."""
    host_vcpu_cpus: Annotated[tuple[str, ...], Strict(strict=False)] | None = None
    """The host's CPUs that the vCPUs may run on: one list for each vCPU, or one if all are the same."""
    host_iothread_cpus: str | None = None
    """The same of the iothreads that serve the disk."""
    host_emulator_cpus: str | None = None
    qemu_emulator: str | None = None
    """The program that runs on the host."""
    qemu_version: str | None = None
    """What this program reports as its version."""
    qemu_kernel: str | None = None
    """The file of the guest's kernel in its arguments, as the one below."""
    qemu_initramfs: str | None = None
    qemu_image: str | None = None
    """The file below the guest's system disk, which it never writes to."""
    qemu_firmware: str | None = None
    guest_fio: str | None = None
    """The program fio in the guest."""
    guest_kernel: str | None = None
    """The release of the kernel that runs in the guest."""
    guest_cpus: int | None = None
    guest_memory: int | None = None

    def settings(self) -> Iterator[tuple[str, JsonValue]]:
        """Every setting that has a value, by name."""
        for setting in fields(self):
            if (value := getattr(self, setting.name)) is not None:
                yield setting.name, list(value) if isinstance(value, tuple) else value

    def merged(self, other: Effective) -> Effective:
        """The settings of both. If both have a value, the value of `other` counts."""
        return Effective(**(dict(self.settings()) | dict(other.settings())))  # type: ignore[arg-type]

    @model_serializer
    def _record(self) -> dict[str, JsonValue]:
        return dict(self.settings())


NOTHING = Effective()
"""Nothing was read back."""
DEFINITIONS = frozenset({"pve_drive", "libvirt_disk"})
"""Whole definitions, which repeat other settings: how to set a guest up, and not in what two guests differ."""
