"""One scenario file as frozen values. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from harness.model.budget import Budget
from harness.model.job import Job, Workload
from harness.model.mode import Mode
from harness.model.profile import Profile


@dataclass(frozen=True, slots=True)
class Decomposition:
    """The latency from the bare host to some arm, step by step. `steps` are ids of arms, `host` first.

    Each changes one thing against the one before. None for `workloads` is all that the scenario measures.
    """

    name: str
    steps: tuple[str, ...]
    workloads: tuple[Workload, ...] | None = None

    def covers(self, job: Job) -> bool:
        """Whether this job is decomposed."""
        return self.workloads is None or job.workload in self.workloads


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario file: which modes and workloads of which disk. `write_rate` in bytes per second.

    `disks` are those that arrays are made of, `disk` first: the baseline of the host arm. Without arrays it is alone.
    `published` is the key of the published figures that this scenario is compared with. Of `budgets` the last that
    covers a cell counts, metric by metric. `expect_void` names modes whose cells the author expects to be void.
    """

    name: str
    title: str
    disk: str
    modes: tuple[Mode, ...]
    workloads: tuple[Workload, ...]
    write_rate: int
    profiles: tuple[Profile, ...]
    published: str | None = None
    budgets: tuple[Budget, ...] = ()
    expect_void: tuple[str, ...] = ()
    decompositions: tuple[Decomposition, ...] = ()
    disks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.disks:
            object.__setattr__(self, "disks", (self.disk,))
