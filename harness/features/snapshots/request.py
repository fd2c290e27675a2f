"""What a scenario may ask of snapshots, what it costs in a plan, and the record. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated

from pydantic import Field, Strict

from harness.analysis import CONFIDENCE, Estimate, estimate_overhead
from harness.config.names import choices
from harness.config.problems import shown
from harness.model.attach import Attach
from harness.model.job import Job
from harness.model.layout import LvmThin, Qcow2, Rbd, Zvol
from harness.model.mode import Arm, Cell, Mode, Place
from harness.model.values import Amount, Count, FileValue, Measured, Name, RecordValue, SomeSeconds
from harness.scenario.load import ModeName
from harness.scenario.plan import FollowUp
from harness.scenario.scenario import Scenario
from harness.scenario.setups import Group

_BOTH = 2
"""Slices of a pair: with a snapshot and without."""
_PAUSE = 3.0
"""Seconds between slices, at most: what a snapshot leaves behind ends there."""
_LAYOUTS = (LvmThin, Zvol, Rbd, Qcow2)
_ALLOWED = "allowed: lvm-thin, zvol, rbd, qcow2"


@dataclass(frozen=True, slots=True)
class Snapshots(FileValue):
    """Takes and removes a snapshot of the volume of each mode in one of two slices of `seconds`, `pairs` times.

    If `modes` is None, these are all modes whose layout has snapshots.
    """

    modes: Annotated[tuple[ModeName, ...], Field(min_length=1), Strict(False)] | None = None
    """Names from `modes`; without them, every mode with one guest whose layout has snapshots."""
    pairs: Annotated[Count, Field(ge=3, le=200)] = 10
    """Pairs of slices: one with a snapshot, one without."""
    seconds: SomeSeconds = 5.0
    """The length of each slice. A snapshot must be taken and removed within three quarters of it."""

    def covers(self, cell: Cell) -> bool:
        """Whether a snapshot is taken while this cell's job runs."""
        mode = cell.mode
        if refuse_layout(mode) is not None or mode.runs_with_others or mode.in_container or mode.cached:
            return False
        return self.modes is None or any(name in self.modes for name in mode.names)


def refuse_layout(mode: Mode) -> str | None:
    """Why nobody takes snapshots of the volume of a mode while its guest runs; None if that is done."""
    if not isinstance(mode.attach, Attach):
        return "has no disk that a guest's QEMU serves"
    if isinstance(mode.layout, _LAYOUTS) and not (isinstance(mode.layout, LvmThin) and mode.layout.encrypted):
        return None
    return f"its layout {mode.layout.kind} has no snapshots of its own; {_ALLOWED}"


@dataclass(frozen=True, kw_only=True)
class PlannedSnapshots(FollowUp):
    """The snapshots of one mode during one job: those of its only cell."""

    snapshots: Snapshots

    kind = "snapshot"
    title = "snapshots"
    description = "snapshots under load"

    @property
    def id(self) -> str:
        return f"{self.group}-{self.kind}-{self.name}-{self.cell.mode.name}-{self.job.id}"

    @property
    def cell(self) -> Cell:
        return self.cells[0]

    @property
    def job(self) -> Job:
        """The job in slices of the requested length."""
        return replace(self.cell.job, seconds=self.snapshots.seconds)

    @property
    def guest(self) -> Arm:
        return self.cell.by_role[Place.GUEST]

    @property
    def usual_seconds(self) -> float:
        return _BOTH * self.snapshots.pairs * self.job.wall

    @property
    def most_seconds(self) -> float:
        return _BOTH * self.snapshots.pairs * (self.job.wall + _PAUSE)

    @property
    def writes(self) -> bool:
        return self.job.writes

    def bytes_written(self, write_rate: int, place: int | None = None) -> float:
        if not self.writes or (place is not None and place not in self.guest.places):
            return 0.0
        return _BOTH * self.snapshots.pairs * self.job.wall * write_rate


def plan_snapshots(scenario: Scenario, group: Group) -> Iterator[PlannedSnapshots]:
    """Each request on each mode of this group, during the job of each workload with the fewest I/Os in flight."""
    for name, snapshots in scenario.requests_of(Snapshots).items():
        least: dict[tuple[str, str], Cell] = {}
        for cell in sorted(group.cells, key=lambda cell: cell.job.depth):
            if snapshots.covers(cell):
                least.setdefault((cell.mode.name, cell.job.workload.name), cell)
        for cell in group.cells:
            if cell in least.values():
                yield PlannedSnapshots(group=group.id, name=name, cells=(cell,), snapshots=snapshots)


def find_problems(scenario: Scenario) -> Iterator[str]:
    """One line for each request that no snapshot can answer, in the form of the schema's messages."""
    modes = {mode.name: mode for mode in scenario.modes}
    for name, snapshots in scenario.requests_of(Snapshots).items():
        key = f"snapshot.{name}"
        for number, mode in enumerate(snapshots.modes or ()):
            if mode not in modes:
                yield f"{key}.modes[{number}] = {shown(mode)}: not a mode of this scenario; {choices(mode, modes)}"
            elif why := refuse_layout(modes[mode]):
                yield f"{key}.modes[{number}] = {shown(mode)}: {why}"
        if snapshots.modes is None and all(refuse_layout(mode) for mode in modes.values()):
            yield f"{key}: no mode of this scenario has a layout with snapshots; {_ALLOWED}"


@dataclass(frozen=True, slots=True)
class SnapshotRecord(RecordValue):
    """What snapshots of the volume of one mode did to its guest during one job. All times are in seconds."""

    id: str
    """`GROUP-snapshot-NAME-MODE-JOB`."""
    name: str
    """Name of the request in the scenario."""
    scenario: Name
    """Name of the scenario."""
    host: Name
    """Name of the host in the lab file."""
    disk: Name
    """Name of the disk under test."""
    mode: Name
    """Name of the attach mode."""
    job: Name
    """The job that ran in the guest."""
    kind: str
    """What took the snapshots, and of what."""
    alone: tuple[Measured, ...]
    """I/Os per second without a snapshot, by pair of slices."""
    beside: tuple[Measured, ...]
    """The same in the slices with a snapshot."""
    slowest_alone: tuple[Amount, ...]
    """The longest time of an I/O without a snapshot, by pair."""
    slowest_beside: tuple[Amount, ...]
    """The same in the slices with a snapshot."""
    taking: tuple[Amount, ...]
    """How long taking the snapshot took, by pair."""
    removing: tuple[Amount, ...]
    """How long removing it took, by pair."""
    raw: tuple[str, ...]
    """fio's outputs, as paths relative to the run's directory."""
    problem: str | None
    """Why it ended early, or was not measured; null if all pairs were."""

    def __post_init__(self) -> None:
        """ValueError for a record that no run writes."""
        pairs = (self.alone, self.beside, self.slowest_alone, self.slowest_beside)
        if len(set(map(len, pairs))) > 1:
            raise ValueError("alone, beside, slowest_alone and slowest_beside must have one value for each pair")

    @property
    def loss(self) -> Estimate | None:
        """The share of the throughput that is lost in a slice with a snapshot, by pairs (`estimate_overhead`)."""
        if not self.alone:
            return None
        return estimate_overhead(self.alone, self.beside, higher_is_better=True, confidence=CONFIDENCE)

    @property
    def pause(self) -> float | None:
        """The median over the pairs of how much longer the slowest I/O took with a snapshot; None without pairs."""
        pairs = zip(self.slowest_alone, self.slowest_beside, strict=True)
        longer = [beside - alone for alone, beside in pairs]
        return max(median(longer), 0.0) if longer else None

    @property
    def longest(self) -> float | None:
        """The slowest I/O of all slices with a snapshot."""
        return max(self.slowest_beside, default=None)
