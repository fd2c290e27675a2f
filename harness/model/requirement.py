"""What a host must have: programs and kernel modules. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class HostFeatures(Protocol):
    """The features that a host reports."""

    @property
    def has_device_mapper(self) -> bool: ...

    def has_tool(self, name: str) -> bool: ...

    def has_module(self, name: str) -> bool: ...

    def install(self, *packages: str) -> str:
        """The command that installs Debian's `packages` there."""
        ...


@dataclass(frozen=True, slots=True)
class Tools:
    """Programs that must be installed. `package` is the Debian package that has them."""

    names: tuple[str, ...]
    what: str
    package: str

    def unsupported_by(self, host: HostFeatures) -> str | None:
        """What the host lacks, with the remedy. None if it has everything."""
        if all(host.has_tool(name) for name in self.names):
            return None
        return f"{self.what} not installed there: {host.install(self.package)}"


@dataclass(frozen=True, slots=True)
class Module:
    """A kernel module that must be loaded, or that the kernel can load. `remedy` says how to get it."""

    name: str
    what: str
    remedy: str = ""

    def unsupported_by(self, host: HostFeatures) -> str | None:
        """What the host lacks, with the remedy. None if it has the module."""
        if host.has_module(self.name):
            return None
        return f"its kernel has no {self.what}: {self.remedy or f'load {self.name}, or measure on another host'}"


@dataclass(frozen=True, slots=True)
class DeviceMapper:
    """The kernel's device-mapper."""

    def unsupported_by(self, host: HostFeatures) -> str | None:
        """What the host lacks, with the remedy. None if it has device-mapper."""
        if host.has_device_mapper:
            return None
        return "its kernel has no device-mapper, which LVM and LUKS need: load dm_mod, or measure on another host"


Requirement = Tools | Module | DeviceMapper
