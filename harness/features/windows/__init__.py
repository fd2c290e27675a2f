"""Guests with Windows: how fio runs there by a timetable, and its clock.

A borrowed VM with Windows is measured as one with Linux: fio gets a job for each slice, and each job waits until its
time. There, it waits for a line from a named pipe, which the PowerShell script that starts fio writes. Another script
answers with the machine's clock. guest.py has both, and what the system reports about itself and its disks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import Feature, import_later

if TYPE_CHECKING:
    from harness.features.windows import guest
else:
    (guest,) = import_later(__name__, "guest")


FEATURE = Feature(
    name="windows",
    platforms={"windows": lambda: guest.WINDOWS},
    systems={"windows": lambda runner: guest.open_windows(runner)},
)
