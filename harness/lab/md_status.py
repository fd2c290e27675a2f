"""The state of md arrays as the kernel lists it in /proc/mdstat: missing members, and how far a recovery is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MDSTAT = "/proc/mdstat"

_KIB = 1024
_NAME = re.compile(r"(md\S+) : ")
_MEMBERS = re.compile(r" blocks .*\[(\d+)/(\d+)\]")
_RECOVERY = re.compile(r" *\[[=>.]*\] +recovery = *[0-9.]+% \((\d+)/(\d+)\)")


@dataclass(frozen=True, slots=True)
class ArrayStatus:
    """One array at one moment. `missing` members are not there or not yet rebuilt.

    `rebuilt` is the number of bytes of each member that a running recovery has completed; None without one. md/degraded
    and md/sync_action have the same facts, but md/sync_completed advances in steps of a sixteenth of a member.
    """

    missing: int = 0
    rebuilt: int | None = None


def parse_mdstat(lines: Iterable[str]) -> dict[str, ArrayStatus]:
    """The arrays in these lines of /proc/mdstat, by kernel name. Source: status_resync and md_seq_show in md.c."""
    found: dict[str, ArrayStatus] = {}
    name = ""
    for line in lines:
        if match := _NAME.match(line):
            name = match[1]
            found[name] = ArrayStatus()
        elif name and (match := _MEMBERS.search(line)):
            found[name] = ArrayStatus(int(match[1]) - int(match[2]))
        elif name and (match := _RECOVERY.match(line)):
            found[name] = ArrayStatus(found[name].missing, int(match[1]) * _KIB)
    return found
