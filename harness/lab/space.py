"""Checks the space for an allocation, and that enough space stays free for the owner of the storage. Pure."""

from __future__ import annotations

from harness.units import format_size

RESERVE_SHARE = 0.05
RESERVE_BYTES = 1 << 30
"""A storage of another owner must keep the larger of the two free. A full storage stops its owner's work."""
METADATA_SHARE = 0.80
"""How full the metadata of a thin pool may become. A pool without space for metadata stops all of its volumes."""
METADATA_BYTES_PER_CHUNK = 64
"""An upper bound of the metadata per written chunk of a thin pool. Source: kernel's admin-guide/device-mapper."""


def reserve_bytes(total_bytes: int) -> int:
    """The bytes that must stay free on a storage of this size."""
    return max(int(total_bytes * RESERVE_SHARE), RESERVE_BYTES)


def shortage(available_bytes: int, total_bytes: int, needed_bytes: int) -> str | None:
    """Why `needed_bytes` more cannot be allocated, as text; None if the reserve stays free."""
    reserve = reserve_bytes(total_bytes)
    if available_bytes - needed_bytes >= reserve:
        return None
    return (
        f"the run needs {format_size(needed_bytes)}, {format_size(max(available_bytes, 0))} are free, and "
        f"{format_size(reserve)} of them must stay free for others"
    )


def metadata_shortage(used_share: float, total_bytes: int, chunks: int) -> str | None:
    """Why a thin pool cannot record `chunks` more, as text; None if its metadata stays below METADATA_SHARE.

    `total_bytes` is the size of its metadata, and `used_share` of it (0 to 1) is in use.
    """
    needed = chunks * METADATA_BYTES_PER_CHUNK
    if total_bytes > 0 and used_share + needed / total_bytes <= METADATA_SHARE:
        return None
    return (
        f"its metadata of {format_size(total_bytes)} is {used_share:.0%} full, the run needs {format_size(needed)} "
        f"more, and it must not become more than {METADATA_SHARE:.0%} full"
    )
