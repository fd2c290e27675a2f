"""What a run plans to measure, as it is stored before its first measurement: `provenance.plan` of results.json."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError

from harness.model.values import STRICT as _STRICT
from harness.results.records import PLAN, Run


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group of cells, and the smallest and largest number of its rounds. `fio_s`: seconds of fio in the fewest.

    `seconds`: of all work in these rounds and in usual searches, as estimated. Both are 0 in runs of older versions.
    """

    __pydantic_config__ = _STRICT

    id: str
    cells: int
    rounds: int
    most_rounds: int
    fio_s: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Planned:
    """All groups in the order of measuring.

    `fio_s`: seconds of fio in their fewest rounds and in usual searches; `seconds`: of all work.
    """

    __pydantic_config__ = _STRICT

    groups: tuple[PlannedGroup, ...]
    fio_s: float
    seconds: float

    @classmethod
    def of(cls, run: Run) -> Planned | None:
        """The stored plan; None in runs of older versions and in imported runs."""
        try:
            return _planned().validate_json(json.dumps(run.provenance.get(PLAN)))
        except ValidationError:
            return None

    def seconds_left(self, spent: Mapping[str, float], ended: Collection[str] = ()) -> float:
        """An estimate of the time until every group has its fewest rounds. 0 if only further rounds may follow.

        `spent`: seconds of fio so far, by the id of the group or search. `ended`: the ids of those that need no more.
        A group that has more than its fewest rounds does not shorten the time of the others.
        """
        if all(group.seconds for group in self.groups):
            groups = [group for group in self.groups if group.id not in ended and group.fio_s]
            return sum(group.seconds * max(1 - spent.get(group.id, 0.0) / group.fio_s, 0.0) for group in groups)
        known = {group.id: group.fio_s for group in self.groups if group.fio_s}
        left = sum(max(fio_s - spent.get(name, 0.0), 0.0) for name, fio_s in known.items() if name not in ended)
        others = self.fio_s - sum(known.values()) - sum(fio_s for name, fio_s in spent.items() if name not in known)
        return self.seconds * (left + max(others, 0.0)) / self.fio_s if self.fio_s > 0 else 0.0

    def as_provenance(self) -> dict[str, JsonValue]:
        """The plan under its key in `provenance`."""
        document: dict[str, Any] = asdict(self)
        return {PLAN: document | {"groups": list(document["groups"])}}


@cache
def _planned() -> TypeAdapter[Planned]:
    return TypeAdapter(Planned)
