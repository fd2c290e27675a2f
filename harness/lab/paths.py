"""Where things of ours are on a lab host."""

from __future__ import annotations

import uuid

STATE_DIRECTORY = "/var/lib/virt-overhead"
IMAGE_DIRECTORY = f"{STATE_DIRECTORY}/images"
CREATED_DIRECTORY = f"{STATE_DIRECTORY}/created"
"""The creation log: a directory per run, a file per thing (harness/lab/created.py)."""
LEFT_DIRECTORY = f"{STATE_DIRECTORY}/left"
"""Samples of the disks that runs have left: by these a later run knows that nobody has written to one since."""
MOUNT_DIRECTORY = f"{STATE_DIRECTORY}/mnt"
LEASE_DIRECTORY = "/run/virt-overhead"
CONSOLE_DIRECTORY = f"{STATE_DIRECTORY}/console"

TAG = "voh"
"""Begins every name that we give on a lab host: partitions `voh:RUN:WHAT`, volume groups and guests `voh-RUN...`.

Names are for people. What is ours is in the creation log (harness/lab/created.py).
"""

MARK = f"VIRT_OVERHEAD={uuid.uuid4()}"
"""In the environment of each fio and perf of this process, which go on when it is killed. No other run has it."""
