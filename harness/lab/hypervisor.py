"""The part of a lab file about a host's hypervisor that code outside of the hypervisor's backend needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class HypervisorSpec(Protocol):
    """The hypervisor of a host, from the lab file. The rest is in its backend (harness/guest.py)."""

    @property
    def address(self) -> str | None:
        """The address of the host if the lab file has none for SSH."""
        ...

    @property
    def secret_variables(self) -> tuple[str, ...]:
        """The environment variables that hold its secrets."""
        ...

    @property
    def needless_checks(self) -> frozenset[str]:
        """Checks of the doctor that do not apply to this hypervisor."""
        ...

    @property
    def why_no_devices(self) -> str | None:
        """Why a device of the host cannot be attached to a guest by its path; None if it can."""
        ...

    @property
    def boots_guests(self) -> bool:
        """Whether runs boot the guests. If not, all rounds are in one boot."""
        ...

    def why_emulated(self, host: str) -> str | None:
        """Why the host with the name `host` emulates the CPU of guests; None if KVM must be probed."""
        ...


@dataclass(frozen=True, slots=True)
class VmLogin:
    """The login to a VM over SSH, through its host or directly. Without `host_key`, the first contact's is stored."""

    address: str
    port: int
    user: str
    key: Path
    host_key: str | None
    through_host: bool


@dataclass(frozen=True, slots=True)
class BorrowedVm:
    """A running VM of others: its name in libvirt or its id, and the login to it."""

    name: str
    login: VmLogin | None
    """None if commands run through its guest agent."""


@dataclass(frozen=True, slots=True)
class LibvirtSpec:
    """libvirt. `borrowed` is the VM that disks are plugged into; None if runs make their own guests."""

    borrowed: BorrowedVm | None = None
    address: None = None
    secret_variables: tuple[str, ...] = ()
    needless_checks: frozenset[str] = frozenset()
    why_no_devices: None = None

    @property
    def boots_guests(self) -> bool:
        return self.borrowed is None

    def why_emulated(self, host: str) -> None:  # noqa: ARG002 - a HypervisorSpec
        return None


LIBVIRT = LibvirtSpec()
