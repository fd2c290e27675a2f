"""Temperature and wear of disks before and after a run, and what a RAID controller knows of its volumes.

The kernel of Linux does not show them, so programs of the host are asked, if it has them (`programs.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.feature import DiskPrograms, Feature

if TYPE_CHECKING:
    from harness.lab.facts import Described, HealthFound, HostFacts
    from harness.lab.transport.base import Runner
    from harness.model.disk import DiskFacts

RAID_TOOLS = ("storcli64", "storcli", "perccli64", "perccli")
"""Programs that describe MegaRAID controllers, of Broadcom and of Dell. They print the same JSON."""


def _read_health(runner: Runner, host: HostFacts, disk: DiskFacts) -> HealthFound:
    from harness.features.disk_health.programs import read_health

    return read_health(runner, host, disk)


def _describe_arrays(runner: Runner, host: HostFacts, disks: Mapping[str, DiskFacts]) -> Described:
    from harness.features.disk_health.programs import describe_arrays

    return describe_arrays(runner, host, disks)


FEATURE = Feature(
    name="disk_health",
    disk_programs=DiskPrograms(
        names=("smartctl", "nvme", *RAID_TOOLS), read_health=_read_health, describe_arrays=_describe_arrays
    ),
)
