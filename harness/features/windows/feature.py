"""What guests with Windows add to the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import Feature

if TYPE_CHECKING:
    from harness.guest.booting import GuestRunner
    from harness.guest.protocol import System
    from harness.measure.platform import Platform


def _make_platform() -> Platform:
    from harness.features.windows.fio import WINDOWS

    return WINDOWS


def _make_system(runner: GuestRunner) -> System:
    from harness.features.windows.guest import WindowsSystem

    return WindowsSystem(runner)


FEATURE = Feature(name="windows", platforms={"windows": _make_platform}, systems={"windows": _make_system})
