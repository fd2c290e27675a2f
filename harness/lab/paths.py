"""Where things of ours are on a lab host."""

from __future__ import annotations

STATE_DIRECTORY = "/var/lib/virt-overhead"
IMAGE_DIRECTORY = f"{STATE_DIRECTORY}/images"
CREATED_DIRECTORY = f"{STATE_DIRECTORY}/created"
"""The creation log: a directory per run, a file per thing (harness/lab/created.py)."""
LEFT_DIRECTORY = f"{STATE_DIRECTORY}/left"
"""For each disk that a run has left, samples of its contents: by these a later run knows that nobody wrote to it since."""
MOUNT_DIRECTORY = f"{STATE_DIRECTORY}/mnt"
LEASE_DIRECTORY = "/run/virt-overhead"
CONSOLE_DIRECTORY = f"{STATE_DIRECTORY}/console"

TAG = "voh"
"""Begins every name that we give on a lab host: partitions `voh:RUN:WHAT`, volume groups and guests `voh-RUN...`."""

MARK = "VIRT_OVERHEAD=measuring"
"""In the environment of each fio and perf of ours, which go on when the run that started them is killed."""
