"""What a layout yields: a stretch of a block device or a file on the host that fio and QEMU open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class BlockSource:
    """`size` bytes from `offset` of `path` on the host; every arm works on such a span and on nothing else.

    `format` is what QEMU opens `path` as. Offset and size count the bytes that a guest sees.
    """

    path: str
    kind: Literal["block", "file"]
    offset: int
    size: int
    format: Literal["raw", "qcow2"] = "raw"
