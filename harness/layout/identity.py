"""Shell functions that find things on a host by the UUIDs that a run gave them, and new UUIDs."""

from __future__ import annotations

import secrets
import string

from harness.shipped import read_script

FIND = read_script("harness.layout", "find_partition.sh")

_LVM_GROUPS = (6, 4, 4, 4, 4, 4, 6)


def lvm_uuid() -> str:
    """A UUID in LVM's format: 32 letters and digits."""
    letters = string.ascii_letters + string.digits
    return "-".join("".join(secrets.choice(letters) for _ in range(count)) for count in _LVM_GROUPS)
