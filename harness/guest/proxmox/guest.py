"""A running VM: the guest's disks, and their effective configuration in Proxmox VE and QEMU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from harness.errors import GuestError, HostError
from harness.guest.booting import Booted, BootedGuest
from harness.guest.io_limits import read_io_limit
from harness.guest.placement import seen_by_guest
from harness.guest.protocol import GuestDisk
from harness.guest.proxmox.drive import drive_options
from harness.guest.proxmox.machine import VirtualMachine
from harness.guest.proxmox.process import PID_FILE, drive_of, read_process
from harness.guest.proxmox.size import read_size
from harness.guest.qemu_process import Inspected
from harness.guest.system import block_devices
from harness.lab.transport.base import Runner
from harness.lab.vm_threads import VmThreads
from harness.model.counters import Transferred
from harness.model.effective import Effective
from harness.model.throttle import shown_limits
from harness.untrusted import reading


class ProxmoxGuest(BootedGuest):
    """A booted VM. `node` runs commands on its host. `keys` has the VM's drives by the disks' names."""

    def __init__(
        self,
        booted: Booted[VirtualMachine],
        *,
        threads: VmThreads | None,
        node: Runner,
        disks: Sequence[GuestDisk],
        keys: Mapping[str, str],
    ) -> None:
        super().__init__(booted, threads=threads)
        self._machine = booted.machine
        self._node = node
        self._disks = {disk.name: disk for disk in disks}
        self._keys = keys
        self._devices = block_devices(self.system, [disk.serial for disk in disks], booted.machine.client.host)

    def device(self, disk: str) -> str:
        return self._devices[self._disks[disk].serial].path

    def transferred(self, disks: Sequence[str]) -> Mapping[str, Transferred | None]:
        counted = self._machine.transferred([self._keys[disk] for disk in disks])
        return {disk: counted[self._keys[disk]] for disk in disks}

    def effective(self, disk: str) -> Effective:
        key, vmid = self._keys[disk], self._machine.vmid
        config = self._machine.config()
        if key not in config:
            raise GuestError(
                f"{self._node.name}: VM {self._machine.vmid} no longer has the drive {key}",
                hint="it was detached while the guest was running: see the task log of the node",
            )
        process = read_process(self._node, vmid)
        with reading(f"{self._node.name}: VM {vmid}: how QEMU serves the drive {key}", GuestError):
            drives = self._with_drives(process)
            found = _effective(config, drives, key)
            size = read_size(self._node, vmid, process, self.threads)
            with suppress(HostError):
                # Without the process, only the arguments that it would get are known.
                filename = drive_of(drives, key).filename
                found = found.merged(read_io_limit(self._node, PID_FILE.format(vmid=vmid), filename))
        seen = seen_by_guest(self.evidence, size.qemu_memory)
        return found.merged(size).merged(self._devices[self._disks[disk].serial].effective).merged(seen)

    def _with_drives(self, process: Inspected) -> Inspected:
        """The process with the arguments that show its drives."""
        return process

    @contextmanager
    def holding(self, disk: str) -> Iterator[None]:  # noqa: ARG002 - a Guest
        """Nothing to do: no disk is passed through by VFIO here."""
        yield

    def state(self) -> str:
        status = self._machine.status()
        return f"Proxmox VE reports that VM {self._machine.vmid} is {status.get('qmpstatus', status.get('status'))}"


def _effective(config: Mapping[str, Any], process: Inspected, key: str) -> Effective:
    options, qemu = drive_options(str(config[key])), drive_of(process, key)
    return Effective(
        bus=key.rstrip("0123456789"),
        cache=options.get("cache"),
        aio=options.get("aio"),
        iothread=options.get("iothread") == "1",
        machine=str(config.get("machine", "")),
        pve_drive=f"{key}: {config[key]}",
        qemu_device=qemu.device,
        qemu_format=qemu.format,
        qemu_aio=process.engines.in_effect(qemu.aio, qemu.format),
        qemu_cache_direct=qemu.direct,
        qemu_cache_no_flush=qemu.no_flush,
        qemu_write_cache=qemu.write_cache,
        qemu_iothread=qemu.iothread,
        qemu_discard=qemu.discard,
        qemu_detect_zeroes=qemu.detect_zeroes,
        qemu_read_only=qemu.read_only,
        qemu_queues=qemu.queues,
        controller_disks=qemu.controller_disks,
        qemu_iops_limit=shown_limits(qemu.limits, "iops"),
        qemu_bw_limit=shown_limits(qemu.limits, "bps"),
    )
