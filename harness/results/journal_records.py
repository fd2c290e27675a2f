"""The lines of journal.jsonl as frozen values: measurements, rounds, and the bytes written before each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from harness.model.cell import Place
from harness.model.counters import Counters
from harness.model.values import STRICT as _STRICT
from harness.model.values import ArmName, Name, RawPath


@dataclass(frozen=True, slots=True)
class PartRecord:
    """One of the jobs that ran at the same time in a slice: that of one guest, or of one fio on the host."""

    __pydantic_config__ = _STRICT

    number: int
    """The number of the guest, from 1, or of the guest whose volume fio on the host used."""
    neighbour: bool
    """Whether it is a neighbour, which is not part of the measurement's own metrics."""
    job: Name
    """The job's id; a neighbour has a job of its own."""
    seconds: float
    """The measured time by fio's clock, without the ramp."""
    metrics: dict[str, float]
    """Values by metric name, as in the measurement."""
    io_bytes: int
    """Bytes that fio counted."""
    raw: RawPath
    """fio's output, as a path relative to the run's directory."""
    histogram: dict[int, int] = field(default_factory=dict)
    """Completions by latency in nanoseconds: fio's own bins."""


@dataclass(frozen=True, slots=True)
class BackupCounts:
    """A backup that ran while a slice was measured."""

    __pydantic_config__ = _STRICT

    share: float
    """The share of the requested time in which it was seen running, 0 to 1."""
    bw: float
    """Bytes per second that it copied, by libvirt's progress of the job."""
    after: float = 0.0
    """Seconds after the requested time until it had ended, and the job's last I/O."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One slice, which is one arm running one job for a short time: one line of journal.jsonl."""

    __pydantic_config__ = _STRICT

    group: Name
    """The group of cells that were measured together and share their host arm."""
    round: int
    """Number of the round."""
    arm: ArmName
    """`host`, `twin:MODE` or `guest:MODE`."""
    repeat: Annotated[int, Field(validation_alias=AliasChoices("repeat", "visit"))]
    """1, or 2 for the second measurement of an arm in the block: the same disk under another name, in a calibration."""
    job: Name
    """The job's id, for example `randread-4k-qd32`."""
    started: float
    """The start of fio, in seconds since 1970-01-01 UTC."""
    seconds: float
    """The measured time by fio's clock, without the ramp."""
    wall: float
    """Seconds that the slice takes, with the ramp."""
    metrics: dict[str, float]
    """Values by metric name, in the metric's unit. A percentile without enough I/Os is absent."""
    io_bytes: int
    """Bytes that fio counted."""
    raw: RawPath
    """fio's output, as a path relative to the run's directory."""
    counters: Counters = field(default_factory=Counters)
    """What was counted during the measurement, by source."""
    histogram: dict[int, int] = field(default_factory=dict)
    """Completions by latency in nanoseconds: fio's own bins."""
    sync_histogram: dict[int, int] = field(default_factory=dict)
    """Calls of fdatasync by latency in nanoseconds; empty if there were none."""
    notes: tuple[str, ...] = ()
    """What a reader must know about this measurement, one sentence each."""
    block: int = 1
    """Number of the block within the round. The slices of one block and job are seconds apart and form a pair."""
    boot: int = 1
    """Number of the guest's boot: that of the first round in it."""
    overlap: str | None = None
    """The arm whose slice ran at the same time. Then the slice is void, and its block does not count for the cell."""
    discarded_s: float = 0.0
    """Seconds before `started` in which the job ran too and that do not count, beside the profile's ramp."""
    rate: int | None = None
    """I/Os per second requested; null for as many as possible, and in version 0.1."""
    write_limit: int | None = None
    """Bytes per second that fio could write at most, so that the run keeps its `max_writes`; null for none."""
    parts: tuple[PartRecord, ...] = ()
    """Each of the jobs that ran at the same time: of several guests, or of a guest and its neighbour. `metrics` and
    histograms are those of all guests together, without the neighbour. Empty for a job that ran alone."""
    together: float | None = None
    """The share of the time in which all of them ran, 0 to 1; null for a job that ran alone."""
    backup: BackupCounts | None = None
    """The backup of the guest's disk that ran meanwhile; null without one."""

    @property
    def in_guest(self) -> bool:
        return self.arm.startswith(f"{Place.GUEST}:")

    @property
    def of_several(self) -> bool:
        """Whether its metrics are those of several guests together, or of several fio on the host."""
        return sum(not part.neighbour for part in self.parts) > 1

    @property
    def neighbour(self) -> PartRecord | None:
        """The job of the neighbour; None without one."""
        return next((part for part in self.parts if part.neighbour), None)


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """The begin of a round, or its end before it was whole: one line of journal.jsonl."""

    __pydantic_config__ = _STRICT

    event: Literal["begun", "abandoned"]
    """`abandoned`: the measurements of this round do not count, and its number is not used again."""
    group: Name
    """The group, as in its measurements."""
    round: int
    """Number of the round. Each round is begun once."""
    measurements: int | None
    """For `begun`, how many measurements a whole round has; null for `abandoned`."""
    why: str | None
    """For `abandoned`, the reason; null for `begun`."""


@dataclass(frozen=True, slots=True)
class WritesEvent:
    """The bytes written to a disk so far, before a step of a run with a limit: one line of journal.jsonl.

    A run that is resumed continues this count.
    """

    __pydantic_config__ = _STRICT

    event: Literal["writes"]
    disk: str
    """The disk's name in the lab file."""
    step: str
    """What follows, in words."""
    written: int
    """Bytes written by the run so far."""
    may_write: int
    """Bytes that the step writes at most; 0 at the end of a run."""
    device: str | None
    """Identity of the block device whose counter was read: boot of the host, number of the device, kernel name; null if
    there was none."""
    counter: int | None
    """Its counter of bytes written."""
