"""An array that is there already, as the owner of a disk or a storage describes it in the lab file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from harness.analysis import Shape
from harness.config.names import choices
from harness.config.values import one_line
from harness.lab.fields import Name
from harness.model.base import Chunk, RaidLevel
from harness.model.disk import ArrayFacts
from harness.model.values import Table, whole_number

SOURCE = "the lab file"
_Text = Annotated[str, AfterValidator(one_line), Field(max_length=100)]


@dataclass(frozen=True, slots=True)
class StatedArray:
    """What the lab file says about an array. What the host reports itself wins over it."""

    facts: ArrayFacts
    reference: str = ""
    """The disk or storage of the same host with a single disk of the same model; empty without one."""


class ArrayTable(Table):
    """`[host.NAME.disk.X.array]` and `[host.NAME.storage.X.array]`: what the host may not report about an array."""

    level: Annotated[RaidLevel, BeforeValidator(whole_number)] | None = None
    disks: Annotated[int, Field(ge=2, le=1024)] | None = None
    legs: Annotated[int, Field(ge=1, le=64)] = 1
    chunk: Chunk | None = None
    controller: _Text | None = None
    cache: _Text | None = None
    reference: Name | None = None


def stated_array(where: str, table: ArrayTable | None, problems: list[str]) -> StatedArray | None:
    """What the table says. If it contradicts itself, `problems` gets a message below `where`."""
    if table is None:
        return None
    missing = [key for key in ("level", "disks") if getattr(table, key) is None]
    if len(missing) == 1:
        problems.append(f"{where}.{missing[0]}: missing; level and disks together say what the array can deliver")
    elif missing and table.legs > 1:
        problems.append(f"{where}.legs = {table.legs}: cannot be used without level and disks")
    elif table.level is not None and table.disks is not None:
        try:
            Shape(table.level, table.disks, table.legs)
        except ValueError as error:
            problems.append(f"{where}: {error}")
    facts = ArrayFacts(
        level=f"raid{table.level}" if table.level is not None else None,
        chunk_bytes=table.chunk,
        disks=table.disks,
        cache_policy=table.cache,
        source=SOURCE,
        legs=table.legs if table.level is not None else None,
        controller=table.controller,
    )
    return StatedArray(facts, table.reference or "")


def reference_problems(
    arrays: Mapping[str, StatedArray], singles: Mapping[str, bool], name_of: Mapping[str, str]
) -> Iterator[str]:
    """One line for each array whose reference cannot be measured.

    `arrays` are those of a host by name. `singles` has its other disks and storages, and whether a run may write to
    them. `name_of` is where each of them is in the lab file.
    """
    for name, array in arrays.items():
        key = f'{name_of[name]}.array.reference = "{array.reference}"'
        if not array.reference:
            continue
        if array.reference == name or array.reference in arrays:
            yield f"{key}: is an array itself; allowed: a single disk of the same model, or a storage on one"
        elif array.reference not in singles:
            yield f"{key}: not on this host; {choices(array.reference, list(singles) or ['(none)'])}"
        elif not singles[array.reference]:
            yield f"{key}: a run overwrites it, but it does not have `destroy = true`; allowed: with it, or a storage"
