"""What a layout yields: a span of a block device or a file on the host that fio and QEMU open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from harness.errors import SafetyError
from harness.lab.guard.writable import Writable


@dataclass(frozen=True, slots=True)
class NetworkDisk:
    """How QEMU opens a volume over the network by itself: protocol and name. `login` has the user and libvirt's secret.

    `config` is a file on the host. Without them, QEMU uses those of the protocol's client.
    """

    protocol: Literal["rbd"]
    name: str
    config: str | None = None
    login: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class BlockSource:
    """`size` bytes from `offset` of `path` on the host. Every arm works only on such a span.

    If `format` is qcow2, the span is the guest's view of the image, which only QEMU can open.
    """

    path: str
    kind: Literal["block", "file"]
    offset: int
    size: int
    format: Literal["raw", "qcow2"] = "raw"
    grant: Writable | None = field(default=None, compare=False, repr=False)
    """The guard's permission to write there. A source without it cannot be written to."""
    data_file: str = field(default="", kw_only=True)
    """The file with the data of a qcow2 image that has it elsewhere."""
    data: BlockSource | None = field(default=None, compare=False, repr=False, kw_only=True)
    """The image that holds the data, if `path` is a snapshot on top of it; the volume of the file system of a file."""
    network: NetworkDisk | None = field(default=None, kw_only=True)
    """How the guest's QEMU opens the same volume, if it does not use the host's device at `path`."""

    @property
    def writable(self) -> Writable:
        """The permission to write. Raises SafetyError if the guard has not issued one."""
        if self.grant is None:
            raise SafetyError(f"{self.path} will not be written to: the guard has not checked it")
        return self.grant


@dataclass(frozen=True, slots=True)
class Sources:
    """The source that the guest of a mode gets, and its twin for fio on the host. Usually they are the same."""

    guest: BlockSource
    twin: BlockSource

    @classmethod
    def same(cls, source: BlockSource) -> Sources:
        return cls(source, source)
