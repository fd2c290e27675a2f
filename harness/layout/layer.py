"""The protocol of a layer, which is built on a region of a base. There is one class per kind of layer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from harness.lab.created import CreationLog
from harness.layout.regions import Need, Region
from harness.layout.source import Sources


class Layer(Protocol):
    """The modes of one kind that share a region of a base: one volume group, one file system, one pool."""

    @property
    def region(self) -> str:
        """The name of its region in the partition table: at most 11 characters, unique per base."""
        ...

    @property
    def need(self) -> Need:
        """The size that the region must have."""
        ...

    def built(
        self, log: CreationLog, region: Region, name: str, span: int
    ) -> AbstractContextManager[Mapping[str, Sources]]:
        """A source of `span` bytes per mode, by the name of the mode. The layer is removed at the end.

        `log` has the runner, and records everything before it is created. All names on the host begin with `name`,
        which is unique for the run and the base. Raises HostError.
        """
        ...
