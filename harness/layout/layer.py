"""What is built on a region of a base: one class per kind of layer, all with the same three members."""

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
        """What its region is called in the partition table: at most 11 characters, once per base."""
        ...

    @property
    def need(self) -> Need:
        """How large the region has to be."""
        ...

    def built(
        self, log: CreationLog, region: Region, name: str, span: int
    ) -> AbstractContextManager[Mapping[str, Sources]]:
        """`span` bytes per mode, by the modes' names; gone at the end.

        `log` has the runner, and records what is made before it exists. All names on the host begin with `name`, which
        is the run's own and that of the base. Raises HostError.
        """
        ...
