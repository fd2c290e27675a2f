"""The paths and names that the harness uses on a lab host."""

from __future__ import annotations

import uuid

STATE_DIRECTORY = "/var/lib/virt-overhead"
IMAGE_DIRECTORY = f"{STATE_DIRECTORY}/images"
CREATED_DIRECTORY = f"{STATE_DIRECTORY}/created"
"""The creation log: a directory per run, a file per thing (harness/lab/created.py)."""
LEFT_DIRECTORY = f"{STATE_DIRECTORY}/left"
"""Samples of the disks that earlier runs used. A later run compares them, to detect writes by others since then."""
MOUNT_DIRECTORY = f"{STATE_DIRECTORY}/mnt"
BACKUP_DIRECTORY = f"{STATE_DIRECTORY}/backup"
LEASE_DIRECTORY = "/run/virt-overhead"
CONSOLE_DIRECTORY = f"{STATE_DIRECTORY}/console"
STATE_DIRECTORIES = (STATE_DIRECTORY, IMAGE_DIRECTORY, CREATED_DIRECTORY, LEFT_DIRECTORY, MOUNT_DIRECTORY)
"""Nobody but root may write to any of them."""

TAG = "voh"
"""Begins all names that a run gives on a lab host: partitions `voh:RUN:WHAT`, volume groups and guests `voh-RUN...`.

Names are for people only. The creation log (harness/lab/created.py) says what a run created.
"""

MARK = f"VIRT_OVERHEAD={uuid.uuid4()}"
"""In the environment of each fio and perf that this process starts. They continue if this process is killed.

No other run has the same value.
"""
