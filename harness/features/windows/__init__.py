"""Guests with Windows: how fio runs there by a timetable, and its clock.

A borrowed VM with Windows is measured as one with Linux: fio gets a job for each slice, and each job waits until its
time. There, it waits for a line from a named pipe, which the PowerShell script that starts fio writes. Another script
answers with the machine's clock. guest.py has both, and what the system reports about itself and its disks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import Feature

if TYPE_CHECKING:
    from harness.guest.booting import GuestRunner
    from harness.guest.protocol import System
    from harness.measure.platform import Platform


def _make_platform() -> Platform:
    from harness.features.windows.guest import WINDOWS

    return WINDOWS


def _make_system(runner: GuestRunner) -> System:
    from harness.features.windows.guest import WindowsSystem

    return WindowsSystem(runner)


FEATURE = Feature(name="windows", platforms={"windows": _make_platform}, systems={"windows": _make_system})
