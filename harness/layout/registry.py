"""What layouts create on a host, for the creation log and its clean-up: of each kind of layer and of storage in use."""

from __future__ import annotations

from harness.lab.created import HostThing
from harness.layout.device import BackingFile, LoopDevice
from harness.layout.layers import LAYERS
from harness.layout.md import Array
from harness.layout.memory_disk import MemoryDisk
from harness.layout.regions import PartitionTable
from harness.layout.storage import VOLUMES
from harness.layout.udev_inhibit import UdevRule

CREATED: tuple[type[HostThing], ...] = tuple(
    dict.fromkeys(
        [
            *(BackingFile, LoopDevice, MemoryDisk, PartitionTable, UdevRule, Array),
            *(thing for layer in LAYERS for thing in layer.things),
            *(volumes.thing for volumes in VOLUMES.values()),
        ]
    )
)
