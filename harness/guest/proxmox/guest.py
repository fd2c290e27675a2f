"""A running VM with its disks: inside, and as Proxmox VE and QEMU tell it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from harness.errors import GuestError
from harness.guest.guest_system import BlockDevice
from harness.guest.protocol import GuestDisk
from harness.guest.proxmox.drive import drive_options
from harness.guest.proxmox.machine import Machine
from harness.guest.proxmox.process import read_process
from harness.lab.counters import Transferred
from harness.lab.transport.base import Runner
from harness.lab.vm_threads import VmThreads
from harness.model.effective import Effective


@dataclass(frozen=True, slots=True)
class ProxmoxGuest:
    """A booted VM. `keys` are the VM's drives by the disks' names, `devices` what the guest sees by serial."""

    runner: Runner
    boot_seconds: float
    evidence: Mapping[str, str]
    threads: VmThreads | None
    _machine: Machine
    _node: Runner
    _disks: Mapping[str, GuestDisk]
    _keys: Mapping[str, str]
    _devices: Mapping[str, BlockDevice]
    _post_mortem: Callable[[], str | None]

    def device(self, disk: str) -> str:
        return self._devices[self._disks[disk].serial].path

    def transferred(self, disk: str) -> Transferred | None:
        return self._machine.transferred(self._keys[disk])

    def exits(self) -> dict[str, float]:
        """Nothing of QEMU's own: PVE keeps its QMP to itself, and the monitor of its API tells one vCPU alone.

        KVM's counts are read from debugfs with those of the threads, where root of the node sees it; see `VmThreads`.
        """
        return {}

    def effective(self, disk: str) -> Effective:
        key = self._keys[disk]
        config = self._machine.config()
        if key not in config:
            raise GuestError(
                f"host {self._node.name}: VM {self._machine.vmid} has no drive {key} any more",
                hint="somebody detached it while the guest was running: see the task log of the node",
            )
        options = drive_options(str(config[key]))
        process = read_process(self._node, self._machine.vmid)
        qemu = process.drive(key)
        found = Effective(
            bus=key.rstrip("0123456789"),
            cache=options.get("cache"),
            aio=options.get("aio"),
            iothread=options.get("iothread") == "1",
            machine=str(config.get("machine", "")),
            pve_drive=f"{key}: {config[key]}",
            qemu_device=qemu.device,
            qemu_format=qemu.format,
            qemu_aio=process.aio(qemu.aio),
            qemu_cache_direct=qemu.direct,
            qemu_cache_no_flush=qemu.no_flush,
            qemu_write_cache=qemu.write_cache,
            qemu_iothread=qemu.iothread,
            qemu_discard=qemu.discard,
            qemu_detect_zeroes=qemu.detect_zeroes,
            qemu_read_only=qemu.read_only,
            qemu_queues=qemu.queues,
            controller_disks=qemu.controller_disks,
        )
        return found.merged(self._devices[self._disks[disk].serial].effective)

    @contextmanager
    def holding(self, disk: str) -> Iterator[None]:  # noqa: ARG002 - a Guest
        """Nothing to do: no disk is passed through by VFIO here."""
        yield

    def post_mortem(self) -> str | None:
        return self._post_mortem()
