"""What the API needs of the machine behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pve_double.qemu.drives import Drive
from pve_double.qemu.machine import Config
from pve_double.storage.disks import DiskBacking
from pve_double.storage.store import Backing


class QemuFailed(Exception):
    """QEMU did not start; the text is what it printed."""


class GuestFailed(Exception):
    """The guest agent refused a command; the text is its description of why."""


class GuestHungUp(Exception):
    """The worker behind the API ends in the middle of an agent's answer: the proxy says 596."""


class GuestSilent(Exception):
    """No agent answers."""


class Executor(Backing, DiskBacking, Protocol):
    """Volumes, disks and running VMs. All times are in seconds, all names as PVE has them.

    `real` says that guests really run, and so answer when they are up, not after a while. `saves_state` says that a
    snapshot of a running VM works: its QEMU has the patches of Proxmox VE, or is stopped meanwhile.
    """

    real: bool
    saves_state: bool

    @property
    def group_device(self) -> str:
        """The device below the volume group of `local-lvm`, and of others that exist from the beginning."""
        ...

    def pci_devices(self) -> list[str]:
        """The addresses of the node's PCI devices."""
        ...

    def start(self, vmid: int, config: Config, command: list[str]) -> int:
        """Start the VM of this QEMU command line; its process id. Raises QemuFailed."""
        ...

    def alive(self, vmid: int) -> bool: ...

    def kill(self, vmid: int) -> None: ...

    def power_down(self, vmid: int, config: Config) -> None:
        """Ask the guest to shut down, by its agent where it has one."""
        ...

    def reset(self, vmid: int) -> None: ...

    def pause(self, vmid: int, *, resume: bool) -> None: ...

    def plug(self, vmid: int, drive: Drive, arguments: list[str]) -> None: ...

    def unplug(self, vmid: int, drive: Drive) -> None: ...

    def fill_container(self, vmid: int, root: str, archive: str) -> None:
        """Make a file system on the volume at `root`, and unpack the template `archive` there. Raises PveError."""
        ...

    def start_container(self, vmid: int, config: Config, root: str) -> None:
        """Start the container whose root file system is on the volume at `root`. Raises QemuFailed."""
        ...

    def container_runs(self, vmid: int) -> bool: ...

    def stop_container(self, vmid: int) -> None: ...

    def has_device(self, path: str) -> bool:
        """Whether the node has this device."""
        ...

    def begin_backup(self, vmid: int, keys: list[str], path: str, total: int) -> None:
        """Copy these drives of the running VM, `total` bytes, to a file. Raises PveError."""
        ...

    def backed_up(self, vmid: int) -> int | None:
        """The bytes that are copied so far; None where nothing is copied any more."""
        ...

    def cancel_backup(self, vmid: int) -> None:
        """End the copy, and remove its file."""
        ...

    def agent(self, vmid: int, command: str, arguments: Mapping[str, Any]) -> Any:
        """What the guest agent returns. Raises GuestFailed or GuestHungUp."""
        ...

    def monitor(self, vmid: int, command: str) -> str | None:
        """What QEMU's human monitor prints; None where the caller has to answer from the configuration."""
        ...

    def block_statistics(self, vmid: int) -> Mapping[str, Mapping[str, Any]] | None:
        """QEMU's counters by drive; None where nothing counts."""
        ...
