"""The probes of the guard on a host. Each probe has one of three results: found, not found, could not tell."""

from __future__ import annotations

from harness.lab.paths import LEFT_DIRECTORY
from harness.lab.pin import FACTS
from harness.shipped import read_script

SAMPLE_BYTES = 65536
"""Bytes of each sample that is read."""
SAMPLES = 64
"""Samples at random positions, not at the ends. If a share p of the disk holds data, all miss it with (1 - p)^64."""
WHOLE_BYTES = 128 << 20
"""A disk of this size or less is read as a whole."""
END_BYTES = 1 << 20
"""Bytes at each end of a disk that are all read, because most formats have their signatures there."""

SAMPLED = read_script(
    "harness.lab.guard",
    "sample_disk.sh",
    SAMPLE_BYTES=SAMPLE_BYTES,
    WHOLE_BYTES=WHOLE_BYTES,
    LEFT_DIRECTORY=LEFT_DIRECTORY,
)

INSPECT = FACTS + SAMPLED + read_script("harness.lab.guard", "inspect_disk.sh")
