"""How each group was measured: order of arms, looks, the reason to stop, drift of the host, conditioning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis import SteadyState, steady_state
from harness.report.numbers import count, percent_interval, signed_percent
from harness.results import ConditioningRecord, DriftRecord, GroupRecord, RegionSteadiness, Run


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group's rounds."""

    record: GroupRecord

    @property
    def course(self) -> str:
        """For example "5 rounds, with looks at 3 and 5 rounds (planned: 3, 5, 8, 12). Ended by: budget decided.".

        Abandoned rounds are named before the end.
        """
        done = len(self.record.orders)
        looks = [str(look) for look in self.record.looks if look <= done]
        words = count(done, "round")
        if looks:
            words += f", with looks at {_listed(looks)} rounds"
        else:
            words += ", without an interim look"
        if len(self.record.looks) > 1:
            words += f" (planned: {', '.join(map(str, self.record.looks))})"
        if abandoned := self.record.abandoned:
            numbers = _listed([*map(str, abandoned)])
            words += f". Abandoned and not counted: round{'s' * (len(abandoned) > 1)} {numbers}"
        return (
            f"{words}. {f'Ended by: {self.record.stopped}' if self.record.stopped else 'The group was not finished'}."
        )

    @property
    def orders(self) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """The number of each whole round, and its arms in the order of their first slices."""
        numbers = self.record.rounds or range(1, len(self.record.orders) + 1)
        return tuple(zip(numbers, self.record.orders, strict=True))

    @property
    def drift(self) -> tuple[DriftView, ...]:
        return tuple(map(DriftView, self.record.drift))


@dataclass(frozen=True, slots=True)
class DriftView:
    """The drift of the bare host in one job."""

    record: DriftRecord

    @property
    def change(self) -> str:
        """In percent, with its sign and interval: "+3.1 [-1.2, 7.6]"."""
        return f"{signed_percent(self.record.change.point)} {percent_interval(self.record.change)}".rstrip()


@dataclass(frozen=True, slots=True)
class RegionView:
    """How one region reached its steady state. `key` is the id of its plot in the page."""

    key: str
    record: RegionSteadiness
    window: SteadyState | None
    """The last rounds with the criteria; None before the first round."""


@dataclass(frozen=True, slots=True)
class ConditioningView:
    """How a disk was conditioned, once for all groups that were measured after it."""

    disk: str
    groups: tuple[str, ...]
    record: ConditioningRecord
    regions: tuple[RegionView, ...]

    @property
    def sentence(self) -> str:
        if self.record.method == "fill":
            return (
                "Every region was written once only. A new SSD writes faster than it will later, so compare modes with "
                "each other and not with data sheets."
            )
        steady = sum(region.steady for region in self.record.regions)
        reached = f"{steady} of {count(len(self.record.regions), 'region')} reached a steady state"
        return f"Purged, written twice at 128 KiB, then {self.record.job or 'a job'} was repeated: {reached}."


def groups(run: Run) -> tuple[GroupView, ...]:
    """The groups that were started, in the order of the plan."""
    return tuple(map(GroupView, run.groups))


def conditionings(run: Run) -> tuple[ConditioningView, ...]:
    """Each conditioning of a disk once, with the groups that share it."""
    shared: list[tuple[str, ConditioningRecord, list[str]]] = []
    for group in run.groups:
        if group.conditioning is None:
            continue
        for disk, record, names in shared:
            if (disk, record) == (group.disk, group.conditioning):
                names.append(group.id)
                break
        else:
            shared.append((group.disk, group.conditioning, [group.id]))
    return tuple(
        ConditioningView(disk, tuple(names), record, _regions(f"conditioning{number}", record.regions))
        for number, (disk, record, names) in enumerate(shared, start=1)
    )


def _regions(key: str, records: Sequence[RegionSteadiness]) -> tuple[RegionView, ...]:
    return tuple(
        RegionView(f"{key}-region{number}", record, steady_state(record.values) if record.values else None)
        for number, record in enumerate(records, start=1)
    )


def _listed(words: Sequence[str]) -> str:
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0]
