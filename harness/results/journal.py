"""The content of journal.jsonl: measurements, rounds that were begun and abandoned, bytes written. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from harness.results.journal_records import Measurement, RoundEvent, WritesEvent

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
        return {each.round for each in (*self.of_group(group), *self._rounds_of.get(group, ()))}

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
        return _by_group(self.measurements)

    @cached_property
    def _rounds_of(self) -> dict[str, list[RoundEvent]]:
        return _by_group(self.rounds)


def _by_group(entries: Iterable[E]) -> dict[str, list[E]]:
    round_events: dict[str, list[E]] = {}
    for entry in entries:
        round_events.setdefault(entry.group, []).append(entry)
    return round_events
