"""The content of journal.jsonl: measurements, rounds that were begun and abandoned, bytes written. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from harness.results.records import Measurement, RoundEvent, WritesEvent

Entry = Measurement | RoundEvent | WritesEvent


@dataclass(frozen=True, slots=True)
class Journal:
    """The lines of a journal in order, and notes on lines that a crash truncated."""

    measurements: tuple[Measurement, ...] = ()
    rounds: tuple[RoundEvent, ...] = ()
    notes: tuple[str, ...] = ()
    writes: tuple[WritesEvent, ...] = ()

    def numbers(self, group: str) -> set[int]:
        """The numbers of all rounds that the group has used, whole or not."""
        measured = {each.round for each in self.measurements if each.group == group}
        return measured | {each.round for each in self.rounds if each.group == group}

    def abandoned(self, group: str) -> set[int]:
        """The numbers of the group's abandoned rounds. Their measurements do not count."""
        return {each.round for each in self.rounds if each.group == group and each.event == "abandoned"}

    def whole(self, group: str) -> set[int]:
        """The numbers of the group's rounds that have exactly the measurements that they began with."""
        measured = Counter(each.round for each in self.measurements if each.group == group)
        return {
            each.round
            for each in self.rounds
            if each.group == group and each.event == "begun" and measured[each.round] == each.measurements
        } - self.abandoned(group)

    @property
    def unfinished(self) -> tuple[RoundEvent, ...]:
        """The rounds that were begun, but neither finished nor abandoned: the process ended during them."""
        measured = Counter((each.group, each.round) for each in self.measurements)
        return tuple(
            each
            for each in self.rounds
            if each.event == "begun"
            and each.measurements is not None
            and measured[each.group, each.round] < each.measurements
            and each.round not in self.abandoned(each.group)
        )
