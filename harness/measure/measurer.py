"""The protocol between a campaign or a calibration and its measurer, and the values that they exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import JsonValue

from harness.errors import GuestError, HostError
from harness.measure.traced_slices import TracingRequest
from harness.model.budget import LabKind
from harness.model.cell import Arm, Cell
from harness.model.disk import DiskRecord
from harness.model.effective import Effective
from harness.results import ConditioningRecord, LabInfo, Measurement, TracedBlock
from harness.scenario.plan import Group, Plan
from harness.scenario.timetable import Slice, Timetable


@dataclass(frozen=True, slots=True)
class LabFound:
    """The properties of the host. `provenance` has its versions and settings, as plain JSON values."""

    info: LabInfo
    kind: LabKind
    provenance: Mapping[str, JsonValue] = field(default_factory=dict)
    builds: bool = False
    """Whether the layouts of the requested group must be built and filled first."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A group that is ready to be measured. Each arm uses `span` bytes.

    `skipped` has the reason for each mode that the host does not support, and `unable` for each cell, by its id, whose
    job its guest cannot run. `effective` has the effective attachment of each mode. `notes` has other differences
    between the arms, by the arm's id. `provenance` is of guest and disks.
    """

    span: int
    conditioning: ConditioningRecord
    skipped: Mapping[str, str] = field(default_factory=dict)
    unable: Mapping[str, str] = field(default_factory=dict)
    effective: Mapping[str, Effective] = field(default_factory=dict)
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    provenance: Mapping[str, JsonValue] = field(default_factory=dict)
    rotational: bool = False
    """Whether the disk is a hard disk, which needs a longer pause between slices."""
    block: int = 512
    """The smallest I/O in bytes that every arm can do."""
    disks: tuple[DiskRecord, ...] = ()
    """The disks, with their health before the first measurement."""
    disks_afterwards: Callable[[], tuple[DiskRecord, ...]] = tuple
    """Reads the health of the disks again, for the time after the last measurement."""

    def supports(self, arm: Arm) -> bool:
        """Whether the host supports the arm's mode."""
        return arm.mode is None or arm.mode.name not in self.skipped

    def why_skipped(self, cell: Cell) -> str | None:
        """Why the cell is not measured; None if it is."""
        return self.skipped.get(cell.mode.name) or self.unable.get(cell.id)


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of round `number`, which is measured without a break. `index` is its number in the round, from 1.

    `boot` is the number of the guest's boot.
    """

    number: int
    index: int
    boot: int
    table: Timetable


class Measurer(Protocol):
    """Prepares groups on one host, and measures the pieces of their rounds."""

    @property
    def restarts(self) -> Sequence[str]:
        """One sentence for each failure of a simulated lab after which it was prepared again."""

    def ready(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> Prepared:
        """Prepare the group. A session that already serves the group stays open.

        `examined` is called with the properties of the host before anything is built, and may raise. Raises
        NothingToCompare, Unsupported, HostError, GuestError, LabUnavailable, SafetyError.
        """

    def boot_again(self) -> None:
        """Boot the guest of the prepared group anew, if it has measured something. Raises HostError, GuestError."""

    def measure(self, group: Group, piece: Piece, began: Callable[[Slice], None]) -> list[Measurement]:
        """Measure a piece of a round of the group that was prepared last, and write it to the journal.

        `began` is called when a block begins, and every few seconds of a long one. Raises MeasurementError, HostError,
        GuestError, SafetyError.
        """

    def trace(self, group: Group, request: TracingRequest) -> Sequence[TracedBlock]:
        """Measure one I/O at a time, with and without tracing, in the group that was prepared last.

        Raises Unsupported, with the remedy, if host or guest cannot trace, and what `measure` raises.
        """

    def start_again(self, error: HostError | GuestError, what: str) -> None:
        """Take down a simulated lab that failed. `ready` prepares it again. `what` describes the failure.

        Raises `error` on a real host, and if the lab fails repeatedly.
        """

    def written(self) -> Mapping[str, int]:
        """The bytes that the run has written to each disk, by the disks' own counters. Only of a run with a limit.

        Raises HostError.
        """

    def may_write(self, step: str, at_most: Mapping[str, float]) -> None:
        """Note in the journal what the next step writes to each disk at most, in bytes. `step` describes it."""

    def round_measured(self) -> None:
        """Note that a round was measured. A later failure is then a new one."""

    def close(self) -> None:
        """Take down everything that was built."""
