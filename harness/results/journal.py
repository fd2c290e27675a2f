"""The lines of journal.jsonl: measurements, rounds that were begun and abandoned, bytes written. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import Field

from harness.model.counters import Counters
from harness.model.mode import Place
from harness.model.values import Amount, ArmName, Counted, Moment, Name, Number, RawPath, RecordValue


@dataclass(frozen=True, slots=True)
class PartRecord(RecordValue):
    """One of the jobs that ran at the same time in a slice: that of one guest, or of one fio on the host."""

    number: Number
    """The number of the guest, from 1, or of the guest whose volume fio on the host used."""
    neighbour: bool
    """Whether it is a neighbour, which is not part of the measurement's own metrics."""
    job: Name
    """The job's id; a neighbour has a job of its own."""
    seconds: Amount
    """The measured time by fio's clock, without the ramp."""
    metrics: dict[str, Amount]
    """Values by metric name, as in the measurement."""
    io_bytes: Counted
    """Bytes that fio counted."""
    raw: RawPath
    """fio's output, as a path relative to the run's directory."""
    histogram: dict[Counted, Counted] = field(default_factory=dict)
    """Completions by latency in nanoseconds: fio's own bins."""


@dataclass(frozen=True, slots=True)
class BackupCounts(RecordValue):
    """A backup that ran while a slice was measured."""

    share: Amount
    """The share of the requested time in which it was seen running, 0 to 1."""
    bw: Amount
    """Bytes per second that it copied, by libvirt's progress of the job."""
    after: Amount = 0.0
    """Seconds after the requested time until it had ended, and the job's last I/O."""


class Length(NamedTuple):
    """The seconds that a slice has beyond the plan's. Of the slices of one job, only the longest count."""

    longer_s: float = 0.0
    discarded_s: float = 0.0


CLOCK_CHANGED = "clock"
"""As `overlap`: a guest's clock stopped or was set during the timetable, so it is not known when its slices ran."""


@dataclass(frozen=True, slots=True)
class Measurement(RecordValue):
    """One slice, which is one arm running one job for a short time: one line of journal.jsonl."""

    group: Name
    """The group of cells that were measured together and share their host arm."""
    round: Number
    """Number of the round."""
    arm: ArmName
    """`host`, `twin:MODE` or `guest:MODE`."""
    repeat: Number
    """1, or 2 for the second measurement of an arm in the block: the same disk under another name, in a calibration."""
    job: Name
    """The job's id, for example `randread-4k-qd32`."""
    started: Moment
    """The start of fio, in seconds since 1970-01-01 UTC."""
    seconds: Amount
    """The measured time by fio's clock, without the ramp."""
    wall: Amount
    """Seconds that the slice takes, with the ramp."""
    metrics: dict[str, Amount]
    """Values by metric name, in the metric's unit. A percentile without enough I/Os is absent."""
    io_bytes: Counted
    """Bytes that fio counted."""
    raw: RawPath
    """fio's output, as a path relative to the run's directory."""
    counters: Counters = field(default_factory=Counters)
    """What was counted during the measurement, by source."""
    histogram: dict[Counted, Counted] = field(default_factory=dict)
    """Completions by latency in nanoseconds: fio's own bins."""
    sync_histogram: dict[Counted, Counted] = field(default_factory=dict)
    """Calls of fdatasync by latency in nanoseconds; empty if there were none."""
    notes: tuple[str, ...] = ()
    """What a reader must know about this measurement, one sentence each."""
    block: Number = 1
    """Number of the block within the round. The slices of one block and job are seconds apart and form a pair."""
    boot: Number = 1
    """Number of the guest's boot: that of the first round in it."""
    overlap: str | None = None
    """The arm whose slice ran at the same time, or `clock` if that is not known, because a guest's clock stopped or was
    set. Then the slice is void, and its block does not count for the cell."""
    discarded_s: Amount = 0.0
    """Seconds before `started` in which the job ran too and that do not count, beside the profile's ramp."""
    longer_s: Amount = 0.0
    """Seconds by which it was longer than planned, because such I/Os are too slow for the plan's slices."""
    rate: Counted | None = None
    """I/Os per second requested; null for as many as possible."""
    write_limit: Counted | None = None
    """Bytes per second that fio could write at most, so that the run keeps its `max_writes`; null for none."""
    parts: tuple[PartRecord, ...] = ()
    """Each of the jobs that ran at the same time: of several guests, or of a guest and its neighbour. `metrics` and
    histograms are those of all guests together, without the neighbour. Empty for a job that ran alone."""
    together: Amount | None = None
    """The share of the time in which all of them ran, 0 to 1; null for a job that ran alone."""
    backup: BackupCounts | None = None
    """The backup of the guest's disk that ran meanwhile; null without one."""

    @property
    def in_guest(self) -> bool:
        return self.arm.startswith(f"{Place.GUEST}:")

    @property
    def length(self) -> Length:
        return Length(self.longer_s, self.discarded_s)

    @property
    def neighbour(self) -> PartRecord | None:
        """The job of the neighbour; None without one."""
        return next((part for part in self.parts if part.neighbour), None)


@dataclass(frozen=True, slots=True)
class RoundEvent(RecordValue):
    """The begin of a round, or its end before it was whole: one line of journal.jsonl."""

    event: Literal["begun", "abandoned"]
    """`abandoned`: the measurements of this round do not count, and its number is not used again."""
    group: Name
    """The group, as in its measurements."""
    round: Number
    """Number of the round. Each round is begun once."""
    measurements: Number | None
    """For `begun`, how many measurements a whole round has; null for `abandoned`."""
    why: str | None
    """For `abandoned`, the reason; null for `begun`."""
    slices: Annotated[dict[Name, dict[ArmName, Number]], Field(exclude_if=lambda slices: not slices)] = field(
        default_factory=dict
    )
    """For `begun`, the measurements of each arm in a block, by job and arm; left out in runs of older versions."""

    def has(self, slice_: Measurement) -> bool:
        """Whether the round begins with this measurement of it. True if that is not known."""
        if not self.slices or self.measurements is None:
            return self.measurements is not None
        blocks = self.measurements // max(sum(sum(arms.values()) for arms in self.slices.values()), 1)
        return slice_.block <= blocks and slice_.repeat <= self.slices.get(slice_.job, {}).get(slice_.arm, 0)


@dataclass(frozen=True, slots=True)
class WritesEvent(RecordValue):
    """The bytes written to a disk so far, before a step of a run with a limit: one line of journal.jsonl.

    A run that is resumed continues this count.
    """

    event: Literal["writes"]
    disk: str
    """The disk's name in the lab file."""
    step: str
    """What follows, in words."""
    written: Counted
    """Bytes written by the run so far."""
    may_write: Counted
    """Bytes that the step writes at most; 0 at the end of a run."""
    device: str | None
    """Identity of the block device whose counter was read: boot of the host, number of the device, kernel name; null if
    there was none."""
    counter: Counted | None
    """Its counter of bytes written."""


Entry = Measurement | RoundEvent | WritesEvent
E = TypeVar("E", Measurement, RoundEvent)


@dataclass(frozen=True)
class Journal:
    """The lines of a journal in order, and notes on lines that a crash truncated."""

    measurements: tuple[Measurement, ...] = ()
    rounds: tuple[RoundEvent, ...] = ()
    notes: tuple[str, ...] = ()
    writes: tuple[WritesEvent, ...] = ()

    def of_group(self, group: str) -> Sequence[Measurement]:
        """The group's measurements in order, also those that do not count."""
        return self._measurements_of.get(group, ())

    def numbers(self, group: str) -> set[int]:
        """The numbers of all rounds that the group has used, whole or not."""
        return {entry.round for entry in (*self.of_group(group), *self._rounds_of.get(group, ()))}

    def abandoned(self, group: str) -> set[int]:
        """The numbers of the group's abandoned rounds. Their measurements do not count."""
        return {round_event.round for round_event in self._rounds_of.get(group, ()) if round_event.event == "abandoned"}

    def whole(self, group: str) -> set[int]:
        """The numbers of the group's rounds that have exactly the measurements that they began with."""
        measured = Counter(measurement.round for measurement in self.of_group(group))
        return {
            round_event.round
            for round_event in self._rounds_of.get(group, ())
            if round_event.event == "begun" and measured[round_event.round] == round_event.measurements
        } - self.abandoned(group)

    def misplaced(self) -> Iterator[Measurement]:
        """The measurements that no run has there: not as their round began, another one of it, or of another length."""
        begun = {(begin.group, begin.round): begin for begin in self.rounds if begin.event == "begun"}
        places: set[tuple[object, ...]] = set()
        lengths: dict[tuple[object, ...], Length] = {}
        for slice_ in self.measurements:
            of = slice_.group, slice_.round
            place = *of, slice_.job, slice_.arm, slice_.repeat, slice_.block
            of_job = lengths.setdefault((*of, slice_.job), slice_.length)
            if of not in begun or not begun[of].has(slice_) or place in places or slice_.length != of_job:
                yield slice_
            places.add(place)

    @property
    def unfinished(self) -> tuple[RoundEvent, ...]:
        """The rounds that were begun, but neither finished nor abandoned: the process ended during them."""
        measured = Counter((measurement.group, measurement.round) for measurement in self.measurements)
        return tuple(
            round_event
            for round_event in self.rounds
            if round_event.event == "begun"
            and round_event.measurements is not None
            and measured[round_event.group, round_event.round] < round_event.measurements
            and round_event.round not in self.abandoned(round_event.group)
        )

    @cached_property
    def _measurements_of(self) -> dict[str, list[Measurement]]:
        return _sort_by_group(self.measurements)

    @cached_property
    def _rounds_of(self) -> dict[str, list[RoundEvent]]:
        return _sort_by_group(self.rounds)


def _sort_by_group(entries: Iterable[E]) -> dict[str, list[E]]:
    round_events: dict[str, list[E]] = {}
    for entry in entries:
        round_events.setdefault(entry.group, []).append(entry)
    return round_events
