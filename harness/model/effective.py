"""How a disk is really attached, as read back from the hypervisor, QEMU, the host and the guest. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, fields
from typing import Any

from pydantic import JsonValue, ValidationInfo, field_validator, model_serializer
from pydantic.dataclasses import dataclass

from harness.model.values import STORED, STRICT


def _shows(option: str) -> Any:
    """A setting that shows the effect of this option of the attachment."""
    return field(default=None, metadata={"option": option})


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Effective:
    """Each setting has the value that was read back, or None if nothing reported it.

    `Attach.expected` also has this type. There, None accepts any value. The values come from other programs, so a
    value of another type raises ValueError.
    """

    machine: str | None = None
    bus: str | None = _shows("bus")
    """The hypervisor's name of the bus."""
    cache: str | None = _shows("cache")
    aio: str | None = _shows("aio")
    iothread: bool | None = _shows("iothread")
    pve_drive: str | None = None
    qemu_device: str | None = _shows("device")
    qemu_host: str | None = None
    qemu_format: str | None = None
    qemu_block_driver: str | None = None
    qemu_cache_direct: bool | None = _shows("cache")
    qemu_cache_no_flush: bool | None = _shows("cache")
    qemu_write_cache: bool | None = _shows("cache")
    qemu_aio: str | None = _shows("aio")
    qemu_iothread: bool | None = _shows("iothread")
    qemu_iothreads: int | None = _shows("iothread_vq_mapping")
    qemu_queues: int | None = _shows("queues")
    qemu_queue_size: int | None = _shows("queue_size")
    qemu_discard: str | None = _shows("discard")
    qemu_detect_zeroes: str | None = _shows("detect_zeroes")
    qemu_read_only: bool | None = _shows("read_only")
    qemu_logical_block_size: int | None = _shows("logical_block_size")
    qemu_physical_block_size: int | None = _shows("physical_block_size")
    controller_disks: int | None = _shows("controller")
    """How many disks share its controller."""
    pci_address: str | None = None
    iommu_group: str | None = None
    host_driver: str | None = _shows("device")
    guest_scheduler: str | None = None
    guest_rotational: bool | None = None
    guest_write_cache: str | None = _shows("cache")
    guest_logical_block_size: int | None = _shows("logical_block_size")
    guest_physical_block_size: int | None = _shows("physical_block_size")
    guest_nr_requests: int | None = None
    guest_discard_max_bytes: int | None = None
    guest_read_only: bool | None = _shows("read_only")
    guest_queues: int | None = _shows("queues")
    guest_driver: str | None = _shows("bus")
    guest_controller_driver: str | None = _shows("bus")

    @field_validator("*", mode="before")
    @classmethod
    def _of_version_1(cls, value: object, info: ValidationInfo) -> object:
        """Reads results of virt-overhead 0.1, which have "" for a setting that the guest did not report."""
        return None if value == "" and info.context == STORED else value

    def settings(self) -> Iterator[tuple[str, JsonValue]]:
        """Every setting that has a value, by name."""
        for each in fields(self):
            if (value := getattr(self, each.name)) is not None:
                yield each.name, value

    def merged(self, other: Effective) -> Effective:
        """The settings of both. If both have a value, the value of `other` counts."""
        return Effective(**(dict(self.settings()) | dict(other.settings())))  # type: ignore[arg-type]

    @model_serializer
    def _record(self) -> dict[str, JsonValue]:
        return dict(self.settings())


NOTHING = Effective()
"""Nothing was read back."""

OPTIONS: dict[str, str] = {
    each.name: each.metadata["option"] for each in fields(Effective) if "option" in each.metadata
}
"""The name of the option for each setting that shows the effect of an option."""
