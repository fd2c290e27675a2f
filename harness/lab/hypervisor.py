"""What a lab file says of the hypervisor of a host, as far as others than its backend need to know it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


class HypervisorSpec(Protocol):
    """The hypervisor of a host as the lab file names it. Its backend knows the rest (harness/guest/hypervisors.py)."""

    @property
    def address(self) -> str | None:
        """Where the host answers if the lab file does not say it of SSH."""
        ...

    @property
    def secret_variables(self) -> tuple[str, ...]:
        """The environment variables that hold its secrets."""
        ...

    @property
    def needless_checks(self) -> frozenset[str]:
        """Checks of the doctor that mean nothing with this hypervisor."""
        ...

    @property
    def why_no_devices(self) -> str | None:
        """Why a guest cannot have a device of the host by its path; None if it can."""
        ...

    def why_emulated(self, host: str) -> str | None:
        """Why the host called `host` emulates the CPU of guests; None if KVM is to be probed."""
        ...


@dataclass(frozen=True, slots=True)
class LibvirtSpec:
    """libvirt, of which the lab file says nothing."""

    address: None = None
    secret_variables: tuple[str, ...] = ()
    needless_checks: frozenset[str] = frozenset()
    why_no_devices: None = None

    def why_emulated(self, host: str) -> None:  # noqa: ARG002 - a HypervisorSpec
        return None


LIBVIRT = LibvirtSpec()


@dataclass(frozen=True, slots=True)
class KindRules:
    """What the lab file may say of a kind of host."""

    needless: frozenset[str]
    """Keys that mean nothing to it."""
    ssh: Literal["none", "required", "optional"]
    why_no_files: str | None = None
    """Why a file cannot be a disk of it; None if it can."""
    storages: bool = False
    """Whether its hypervisor has storages of which volumes can be had."""
    several_names: bool = False
    """Whether the same machine may be named by several tables, to be measured with guests of several kinds."""
