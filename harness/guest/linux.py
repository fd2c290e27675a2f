"""Linux in a guest: whether it is ready, its disks, the machine that it runs on, and what it lacks for measuring."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.errors import GuestError, HostError
from harness.files import install_command, read_script
from harness.guest.protocol import BlockDevice, Guest
from harness.lab.transport.base import Runner
from harness.model.attach import ATTACH_OPTIONS, Attach, Attachment
from harness.model.option import Bus, Effective, VirtioFeature, read_from
from harness.untrusted import reading

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

    def unsupported_by_guest_os(self, vm: str, attach: Attachment, *, otherwise: str = "") -> str | None:
        """An `Inside`. `otherwise` is another remedy if it lacks fio."""
        system = self.system
        if system.get("user") != "0":
            user = system.get("user") or "unknown"
            return f"in {vm}, only root can open disks, but the user id is {user}: log in as root"
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


LOOKED_AT = "look"
"""The variant of the guests that are booted to be looked at."""


class OwnSystems:
    """The systems that were looked at in a run, each in a guest without disks under test.

    Such a guest ends before the disks are prepared. A system that runs meanwhile would see what was on them before: it
    might start its volume groups and arrays, and a qcow2 file that a guest has open cannot be filled.
    """

    def __init__(self) -> None:
        self._found: dict[Hashable, LinuxInside] = {}

    def unsupported_by_guest_os(
        self,
        system: Hashable,
        attach: Attachment,
        boot: Callable[[], AbstractContextManager[Guest]],
        *,
        words: str,
        otherwise: str,
    ) -> str | None:
        """What the `system` lacks for measuring a disk that is attached in this way, with the remedy; else None.

        `boot` starts it, `words` name its guest, and `otherwise` is the rest of the remedy if it lacks fio. Raises what
        `boot` raises, and HostError.
        """
        if system not in self._found:
            with boot() as guest:
                self._found[system] = look_inside_linux(guest.runner, guest.fio)
        return self._found[system].unsupported_by_guest_os(words, attach, otherwise=otherwise)


READY_SECONDS = 60

_WAIT = "i=0; until [ -e /run/ready ]; do i=$((i+1)); [ $i -gt $(($1 * 10)) ] && exit 1; usleep 100000; done"

# $value: the first line of the file $1, empty without one. A nested guest takes 50 ms to start a program such as cat.
_FIRST_LINE = r"""
first() { value=; { read -r value <"$1"; } 2>/dev/null; }
"""

_DISKS = _FIRST_LINE + read_script("harness.guest", "list_guest_disks.sh")
_EVIDENCE = _FIRST_LINE + read_script("harness.guest", "describe_guest.sh")


_FEATURES = read_from(VirtioFeature, ATTACH_OPTIONS)
"""The numbers of virtio's features, by the settings that show them."""


@dataclass(frozen=True, slots=True)
class GuestSystem:
    """A `System`: Linux, reached over SSH."""

    runner: Runner
    fio: str = "fio"
    windows: ClassVar[bool] = False

    def wait_ready(self) -> None:
        """Wait until all storage drivers are loaded. Raises GuestError if they are not in time, or the guest hangs."""
        wait = ["sh", "-c", _WAIT, "sh", str(READY_SECONDS)]
        try:
            done = self.runner.run(wait, deadline=READY_SECONDS + 10, check=False)
        except HostError as error:
            raise GuestError(f"{self.runner.name}: it stopped answering while its drivers were loaded") from error
        if done.status != 0:
            raise GuestError(
                f"{self.runner.name}: it answers, but its drivers were not loaded within {READY_SECONDS} s"
            )

    def shell(self, script: str, *arguments: str) -> str:
        words = ["sh", "-s", "--", *arguments] if arguments else ["sh", "-s"]
        return self.runner.run(words, stdin=script, deadline=60).stdout

    def disks(self) -> Mapping[str, BlockDevice]:
        printed = self.shell(_DISKS)
        with reading(f"{self.runner.name}: its list of disks", GuestError):
            return parse_disks(printed)

    def paths(self) -> Mapping[str, str]:
        return {serial: disk.path for serial, disk in self.disks().items()}

    def evidence(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.shell(_EVIDENCE, self.fio).splitlines() if "=" in line)

    def look_inside(self) -> LinuxInside:
        return look_inside_linux(self.runner, self.fio)

    def notes(self, evidence: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG002 - a System
        return ()

    def opened(
        self,
        serials: Mapping[str, bool],  # noqa: ARG002 - a System
        tell: Callable[[str], None],  # noqa: ARG002 - a System
    ) -> AbstractContextManager[None]:
        """Nothing to do: root may read and write every disk."""
        return nullcontext()


def parse_disks(printed: str) -> dict[str, BlockDevice]:
    """The disks by serial, from the output of the script."""
    disks = {}
    for line in printed.splitlines():
        name, serial, scheduler, rotational, write_cache, logical, physical, requests, discard, *rest = line.split("\t")
        read_only, queues, queue_size, driver, controller_driver, features = rest
        disks[serial] = BlockDevice(
            f"/dev/{name}",
            Effective(
                guest_scheduler=scheduler or None,
                guest_rotational=rotational == "1",
                guest_write_cache=write_cache or None,
                guest_logical_block_size=_parse_number(logical),
                guest_physical_block_size=_parse_number(physical),
                guest_nr_requests=_parse_number(requests),
                guest_discard_max_bytes=_parse_number(discard),
                guest_read_only=read_only == "1",
                guest_queues=_parse_number(queues),
                guest_queue_size=_parse_number(queue_size),
                guest_driver=driver or None,
                guest_controller_driver=controller_driver or None,
                **_parse_features(features),
            ),
        )
    return disks


def _parse_features(features: str) -> dict[str, Any]:
    """Whether guest and virtio device agreed on each feature that an option requests; None for other devices."""
    return {
        setting: features[bit.number] == "1" if re.fullmatch(f"[01]{{{bit.number + 1},64}}", features) else None
        for setting, bit in _FEATURES.items()
    }


def _parse_number(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None
