"""What systems of the user's own lack for measuring: each is booted once, before anything is written to a disk."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager

from harness.guest.inside import LinuxInside, look_inside_linux
from harness.guest.protocol import Guest
from harness.model.attach import Attachment

LOOKED_AT = "look"
"""The variant of the guests that are booted to be looked at."""


class OwnSystems:
    """The systems that were looked at in a run, each in a guest without disks under test.

    Such a guest ends before the disks are prepared. A system that runs meanwhile would see what was on them before: it
    might start its volume groups and arrays, and a qcow2 file that a guest has open cannot be filled.
    """

    def __init__(self) -> None:
        self._found: dict[Hashable, LinuxInside] = {}

    def lacking(
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
        return self._found[system].lacking(words, attach, otherwise=otherwise)
