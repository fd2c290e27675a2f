"""Reads the properties of a host with one command: versions, CPU and its mitigations, programs, kernel modules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import HostError
from harness.lab.counters import CLOCK
from harness.lab.transport.base import Runner
from harness.model.layout import every_requirement
from harness.model.requirement import Module, Tools
from harness.shipped import install_command, read_script

_SCRIPT = read_script("harness.lab", "read_host.sh")

RAID_TOOLS = ("storcli64", "storcli", "perccli64", "perccli")
"""Programs that describe MegaRAID controllers, of Broadcom and of Dell. They print the same JSON."""

# Programs for every disk, in addition to those that layouts need; the second line only describes disks.
_TOOLS = (
    *("sfdisk", "wipefs", "blkid", "losetup", "fallocate", "udevadm"),
    *("smartctl", "nvme", *RAID_TOOLS),
    "qemu-storage-daemon",
)
_NUMBERS = ("cpus", "memory_bytes", "swap_bytes", "user")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A host's properties as text by name. The text is empty if the host does not report the property."""

    values: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        return self.values.get(name, "")

    def has_tool(self, name: str) -> bool:
        return bool(self[f"tool_{name}"])

    def has_module(self, name: str) -> bool:
        """Whether the kernel has the module: loaded, built in, or loadable."""
        return bool(self[f"module_{name}"])

    def install(self, *packages: str) -> str:
        """The command that installs Debian's `packages` on the host's distribution."""
        return install_command(self["os_id"].strip(), *packages)

    @property
    def has_device_mapper(self) -> bool:
        return bool(self["device_mapper"])

    @property
    def provenance(self) -> dict[str, str]:
        """The properties that a report shows."""
        return {
            name: value
            for name, value in self.values.items()
            if value and not name.startswith(("tool_", "module_")) and name not in ("user", "device_mapper", "os_id")
        }


def read_facts(runner: Runner, fio: str = "fio") -> HostFacts:
    """The facts of the machine behind `runner`, in one round trip. `fio` is the program there."""
    needed = list(every_requirement())
    tools = [*_TOOLS, *(name for need in needed if isinstance(need, Tools) for name in need.names)]
    modules = [need.name for need in needed if isinstance(need, Module)]
    script = ["sh", "-s", "--", " ".join(dict.fromkeys(tools)), " ".join(dict.fromkeys(modules)), fio, CLOCK]
    printed = runner.run(script, stdin=_SCRIPT, deadline=60, check=False).stdout
    values = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    if "kernel" not in values:
        raise HostError(
            f"{runner.name}: it did not report its kernel version",
            hint="a host must be a Linux machine with a POSIX shell",
        )
    for name in _NUMBERS:
        if not re.fullmatch("[0-9]{0,18}", values.get(name, "")):
            raise HostError(
                f"{runner.name}: {name} is {values[name][:60]!r}, which is not a number",
                hint=f"check what /proc/cpuinfo and /proc/meminfo show on {runner.name}",
            )
    return HostFacts(values)


def require_fio(facts: HostFacts, host: str, fio: str = "fio") -> None:
    """Raise HostError if the host does not have the program fio, which measures the baseline."""
    if facts["fio"].startswith("fio-"):
        return
    if fio != "fio":
        raise HostError(
            f"host {host}: {fio} is not fio, or cannot be started", hint=f"correct host.{host}.fio in the lab file"
        )
    raise HostError(
        f"host {host}: fio is not installed, so there is no baseline to compare guests with",
        hint=f"install it on {host}: {facts.install('fio')}",
    )
