"""What a layout yields: a stretch of a block device or a file on the host that fio and QEMU open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from harness.errors import SafetyError
from harness.lab.guard.writable import Writable


@dataclass(frozen=True, slots=True)
class BlockSource:
    """`size` bytes from `offset` of `path` on the host; every arm works on such a span and on nothing else.

    Where `format` is qcow2, the span is what a guest sees in the image: only QEMU can open it.
    """

    path: str
    kind: Literal["block", "file"]
    offset: int
    size: int
    format: Literal["raw", "qcow2"] = "raw"
    grant: Writable | None = field(default=None, compare=False, repr=False)
    """The guard's permission to write there; a description without it cannot be written to."""

    @property
    def writable(self) -> Writable:
        """The permission to write. Raises SafetyError where the guard has issued none."""
        if self.grant is None:
            raise SafetyError(f"{self.path} will not be written to: the guard has not checked it")
        return self.grant


@dataclass(frozen=True, slots=True)
class Sources:
    """What the guest of a mode gets, and what fio on the host works on beside it: mostly the same."""

    guest: BlockSource
    twin: BlockSource

    @classmethod
    def same(cls, source: BlockSource) -> Sources:
        return cls(source, source)
