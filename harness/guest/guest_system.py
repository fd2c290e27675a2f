"""Linux in a guest: whether it is ready, its disks, and the machine that it runs on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.errors import GuestError, HostError
from harness.guest.system import BlockDevice
from harness.lab.transport.base import Runner
from harness.model.attach import ATTACH_OPTIONS
from harness.model.effective import Effective
from harness.model.option import VirtioFeature, read_from
from harness.shipped import read_script
from harness.untrusted import reading

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

    def opened(
        self,
        serials: Mapping[str, bool],  # noqa: ARG002 - a System
        tell: Callable[[str], None],  # noqa: ARG002 - a System
    ) -> AbstractContextManager[None]:
        """Nothing to do: root may read and write every disk."""
        return nullcontext()


def parse_disks(printed: str) -> dict[str, BlockDevice]:
    """The disks by serial, from the output of the script."""
    found = {}
    for line in printed.splitlines():
        name, serial, scheduler, rotational, write_cache, logical, physical, requests, discard, *rest = line.split("\t")
        read_only, queues, queue_size, driver, controller_driver, features = rest
        found[serial] = BlockDevice(
            f"/dev/{name}",
            Effective(
                guest_scheduler=scheduler or None,
                guest_rotational=rotational == "1",
                guest_write_cache=write_cache or None,
                guest_logical_block_size=_number(logical),
                guest_physical_block_size=_number(physical),
                guest_nr_requests=_number(requests),
                guest_discard_max_bytes=_number(discard),
                guest_read_only=read_only == "1",
                guest_queues=_number(queues),
                guest_queue_size=_number(queue_size),
                guest_driver=driver or None,
                guest_controller_driver=controller_driver or None,
                **_agreed(features),
            ),
        )
    return found


def _agreed(features: str) -> dict[str, Any]:
    """Whether guest and virtio device agreed on each feature that an option requests; None for other devices."""
    return {
        setting: features[bit.number] == "1" if re.fullmatch(f"[01]{{{bit.number + 1},64}}", features) else None
        for setting, bit in _FEATURES.items()
    }


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None
