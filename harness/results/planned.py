"""What a run plans to measure, as it is stored before its first measurement: `provenance.plan` of results.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError

from harness.model.values import STRICT as _STRICT
from harness.results.records import PLAN, Run


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group of cells, and the smallest and largest number of its rounds."""

    __pydantic_config__ = _STRICT

    id: str
    cells: int
    rounds: int
    most_rounds: int


@dataclass(frozen=True, slots=True)
class Planned:
    """All groups in the order of measuring. `fio_s`: seconds of fio in their fewest rounds; `seconds`: of all work."""

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

    def as_provenance(self) -> dict[str, JsonValue]:
        """The plan under its key in `provenance`."""
        document: dict[str, Any] = asdict(self)
        return {PLAN: document | {"groups": list(document["groups"])}}


@cache
def _planned() -> TypeAdapter[Planned]:
    return TypeAdapter(Planned)
