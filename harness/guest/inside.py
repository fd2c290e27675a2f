"""What a guest's own system has for measuring, if it is not that of virt-overhead's guest image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.lab.transport.base import Runner
from harness.model.attach import Attach, Attachment
from harness.model.bus import Bus
from harness.packages import install_command
from harness.shipped import read_script

_DRIVERS: Mapping[Bus, str] = {
    "virtio-blk": "virtio_blk",
    "virtio-scsi": "virtio_scsi",
    "sata": "ahci",
    "ide": "ata_piix",
    "nvme": "nvme",
}
"""The driver of each bus in Linux."""

_CHECK = read_script("harness.guest", "check_guest_os.sh")


@dataclass(frozen=True, slots=True)
class LinuxInside:
    """What a Linux has, by the words of the check. `fio` is the program there."""

    system: Mapping[str, str]
    fio: str = "fio"

    def lacking(self, vm: str, attach: Attachment, *, otherwise: str = "") -> str | None:
        """An `Inside`. `otherwise` is another remedy if it lacks fio."""
        system = self.system
        if system.get("user") != "0":
            found = system.get("user") or "unknown"
            return f"in {vm}, only root can open disks, but the user id is {found}: log in as root"
        if not system.get("fio", "").startswith("fio-"):
            if self.fio != "fio":
                return f"in {vm}, {self.fio} is not fio, or cannot be started: correct the path"
            return f"in {vm}, fio is not installed: {install_command(system.get('os', '').strip(), 'fio')}{otherwise}"
        driver = _DRIVERS[attach.bus if isinstance(attach, Attach) else "nvme"]
        if system.get(driver) != "yes":
            return f"in {vm}, the kernel has no driver {driver}: install a kernel package that has it"
        return None


def look_inside_linux(runner: Runner, fio: str = "fio") -> LinuxInside:
    """What the system behind `runner` has. Raises HostError."""
    words = ["sh", "-s", "--", fio, " ".join(_DRIVERS.values())]
    printed = runner.run(words, stdin=_CHECK, deadline=60, check=False).stdout
    return LinuxInside(dict(line.split("=", 1) for line in printed.splitlines() if "=" in line), fio)
