"""Decides which disks may be written to, and issues the permission that every destructive command needs."""

from harness.lab.guard.room import Room, require_room
from harness.lab.guard.writable import (
    DiskEvidence,
    Writable,
    built_on,
    created,
    created_directory,
    inspect,
    lend,
    refusals,
    require_leading_to,
    require_writable,
    run_all,
    serial_of,
    take_back,
    uses,
)
