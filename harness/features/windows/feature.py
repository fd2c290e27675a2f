"""What guests with Windows add to the kernel."""

from __future__ import annotations

from harness.feature import Feature
from harness.features.windows.fio import Windows
from harness.features.windows.guest import WindowsSystem

FEATURE = Feature(name="windows", platforms={"windows": Windows()}, systems={"windows": WindowsSystem})
