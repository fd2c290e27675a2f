"""Programs that a run starts on a host and that continue if the run is killed: fio, perf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from harness.lab.created import HostThing
from harness.shipped import read_script

END = read_script("harness.lab", "end_marked_processes.sh")
"""Ends all processes that have the variable $1 in their environment."""


class Processes(HostThing):
    """All processes with `mark` in their environment, a variable whose value no other run has."""

    kind: Literal["processes"] = "processes"
    mark: str

    removal: ClassVar[str] = END

    @property
    def words(self) -> str:
        return "processes that measure"

    def arguments(self) -> Sequence[str]:
        return [self.mark]
