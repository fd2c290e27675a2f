"""Temperature and wear of disks before and after a run, and what a RAID controller knows of its volumes.

The kernel of Linux does not show them, so programs of the host are asked, if it has them (`programs.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import DiskPrograms, Feature, import_later

if TYPE_CHECKING:
    from harness.features.disk_health import programs
else:
    (programs,) = import_later(__name__, "programs")

RAID_TOOLS = ("storcli64", "storcli", "perccli64", "perccli")
"""Programs that describe MegaRAID controllers, of Broadcom and of Dell. They print the same JSON."""


FEATURE = Feature(
    name="disk_health",
    brings=(
        DiskPrograms(
            names=("smartctl", "nvme", *RAID_TOOLS),
            read_health=lambda runner, host, disk: programs.read_health(runner, host, disk),
            describe_arrays=lambda runner, host, disks: programs.describe_arrays(runner, host, disks),
        ),
    ),
)
