"""The partition table that a run wrote to a disk, as the creation log records it, and its removal."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar, Literal

from harness.lab.created import HostThing
from harness.lab.guard.probes import END_BYTES, SAMPLE_BYTES, SAMPLED, SAMPLES
from harness.lab.pin import FACTS
from harness.layout.identity import FIND
from harness.shipped import read_script

_REMOVE = FACTS + SAMPLED + FIND + read_script("harness.layout", "remove_partition_table.sh")


class PartitionTable(HostThing):
    """A GPT on a disk, found by `link` or by the `file` behind its loop device. The other fields identify it.

    `samples` are positions in bytes. The data at them are recorded at the end, see `harness.lab.guard`.
    """

    kind: Literal["partition-table"] = "partition-table"
    link: str
    file: str
    identity: str
    sectors: int
    ptuuid: str
    partuuids: tuple[str, ...]
    samples: tuple[int, ...]

    removal: ClassVar[str] = _REMOVE
    seconds: ClassVar[float] = 600.0

    @property
    def words(self) -> str:
        return f"the partitions on {self.link or self.file}"

    def arguments(self) -> Sequence[str]:
        where = [self.link, self.file, self.identity, str(self.sectors), self.ptuuid, " ".join(self.partuuids)]
        return [*where, *(str(position) for position in self.samples)]


def sample_positions(size_bytes: int) -> tuple[int, ...]:
    """Random positions of samples between the ends of a disk, in bytes, each a multiple of the size of a sample."""
    first, last = END_BYTES // SAMPLE_BYTES, (size_bytes - END_BYTES) // SAMPLE_BYTES - 1
    chance = random.SystemRandom()
    return tuple(sorted(SAMPLE_BYTES * chance.randint(first, last) for _ in range(SAMPLES)))
