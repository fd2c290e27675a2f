"""Windows in a borrowed VM as a `System`: its facts, its disks by serial number, and taking them for raw I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from pydantic import BaseModel

from harness.errors import GuestError, HostError
from harness.guest.system import BlockDevice
from harness.guest.windows.facts import Disks, Facts, Numbers, Taken, notes_of
from harness.guest.windows.scripts import DISKS, GIVE_BACK, LOOK, NUMBERS, TAKE
from harness.lab.transport.base import Runner
from harness.lab.transport.shells import PROGRAM
from harness.untrusted import parse_json, reading

SECONDS = 120.0
"""Get-CimInstance Win32_PnPSignedDriver and a first Get-PhysicalDisk can take many seconds."""

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class WindowsSystem:
    """A `System`: Windows, reached over SSH."""

    runner: Runner
    windows: ClassVar[bool] = True

    def disks(self) -> Mapping[str, BlockDevice]:
        return _asked(self.runner, Disks, "its list of disks", DISKS).by_serial

    def paths(self) -> Mapping[str, str]:
        return _asked(self.runner, Numbers, "its list of disks", NUMBERS).by_serial

    def evidence(self) -> dict[str, str]:
        return look_inside_windows(self.runner).evidence

    def look_inside(self) -> Facts:
        return look_inside_windows(self.runner)

    def notes(self, evidence: Mapping[str, str]) -> Iterator[str]:
        return notes_of(evidence)

    @contextmanager
    def opened(self, serials: Mapping[str, bool], tell: Callable[[str], None]) -> Iterator[None]:
        """Offline, because Windows refuses raw writes where a volume is. At the end they are as they were before."""
        with ExitStack() as stack:
            for serial, writes in serials.items():
                before = _asked(self.runner, Taken, f"the disk {serial}", TAKE, serial, str(writes))
                stack.callback(self._give_back, serial, before, tell)
            yield

    def _give_back(self, serial: str, before: Taken, tell: Callable[[str], None]) -> None:
        words = (PROGRAM, GIVE_BACK, serial, str(before.IsOffline), str(before.IsReadOnly))
        try:
            self.runner.run(words, deadline=SECONDS)
        except HostError as error:
            state = "offline" if not before.IsOffline else "as it is"
            tell(f"Windows may keep the next disk in the place of {serial} {state}: {error.message}")


def look_inside_windows(runner: Runner) -> Facts:
    """What the system in the VM has. Raises HostError, also if its PowerShell is too old."""
    return _asked(runner, Facts, "what it has", LOOK)


def _asked(runner: Runner, model: type[_Model], what: str, script: str, *arguments: str) -> _Model:
    printed = runner.run((PROGRAM, script, *arguments), deadline=SECONDS).stdout
    source = f"{runner.name}: {what}"
    document = parse_json(printed, source, GuestError)
    with reading(source, GuestError):
        return model.model_validate(document)
