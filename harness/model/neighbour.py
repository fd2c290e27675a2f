"""A neighbour: a guest with a workload of its own, beside the guest that is measured. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from harness.model.job import Job, Workload
from harness.model.values import Iodepth, Table
from harness.model.workloads import OneWorkload

MOST_GUESTS = 6
"""Guests that a mode has at most. fio on the host runs once for each of them, through one connection: OpenSSH allows 10
sessions in it (MaxSessions in sshd_config(5)), and virt-overhead needs three for itself."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """What a second guest does, on a volume of its own, while a guest is measured."""

    workload: Workload
    iodepth: int

    @property
    def id(self) -> str:
        """The name of its job, for example `randwrite-4k-qd32`."""
        return self.beside(seconds=0.0, ramp=0.0).id

    def beside(self, *, seconds: float, ramp: float) -> Job:
        """Its job beside one that is measured for `seconds` after `ramp` seconds."""
        return self.workload.job(self.iodepth, ramp=ramp, seconds=seconds)


class NeighbourTable(Table):
    """A neighbour in a scenario file."""

    workload: OneWorkload
    iodepth: Iodepth = 32

    @property
    def neighbour(self) -> Neighbour:
        return Neighbour(self.workload, self.iodepth)
