"""Decompositions: steps from the bare host to another arm. Each step changes one thing. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from harness.config.names import choices
from harness.config.problems import shown
from harness.model.attach import Attach, Attachment
from harness.model.base import Device, Kind
from harness.model.cell import Arm, Place, arms_of
from harness.model.mode import Mode
from harness.model.values import names_of, shown_field
from harness.scenario.scenario import Decomposition, Scenario
from harness.scenario.setups import setups

_PLACES = tuple(Place)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two arms: its key in a scenario file, and both values in words."""

    key: str
    words: str


@dataclass(frozen=True, slots=True)
class Step:
    """One arm of a decomposition. `change` is its difference from the previous arm. It is empty for the first arm."""

    arm: Arm
    change: str


def steps_of(scenario: Scenario, decomposition: Decomposition) -> tuple[Step, ...]:
    """The steps of a decomposition that has passed `find_step_problems`."""
    by_id = {arm.id: arm for arm in _list_arms(scenario)}
    arms = [by_id[step] for step in decomposition.steps]
    words = ["; ".join(change.words for change in changes(*pair)) for pair in pairwise(arms)]
    return tuple(Step(arm, change) for arm, change in zip(arms, ["", *words], strict=True))


def find_step_problems(scenario: Scenario) -> Iterator[str]:
    """One line for each step that is not an arm of the scenario, changes nothing, or changes more than one thing.

    The lines have the form of the schema's messages: `decompose.attach.steps[2] = "guest:lvm": ...; allowed: ...`.
    """
    arms = {arm.id: arm for arm in _list_arms(scenario)}
    for decomposition in scenario.decompositions:
        key = f"decompose.{decomposition.name}"
        yield from _find_workload_problems(f"{key}.workloads", decomposition, scenario)
        unknown = [
            f"{_at(key, decomposition, number)}: not an arm of this scenario; {choices(step, arms)}"
            for number, step in enumerate(decomposition.steps)
            if step not in arms
        ]
        if unknown:
            yield from unknown
            continue
        steps = [arms[step] for step in decomposition.steps]
        yield from _find_single_step_problems(key, decomposition, steps)
        yield from _find_setup_problems(key, steps, scenario)


def changes(before: Arm, after: Arm) -> list[Change]:
    """All differences between two arms. Empty for the same arm, and for modes that differ only in their names."""
    return [
        *_compare_layouts(_layout(before), _layout(after)),
        *_compare_attachments(before, after),
        *_compare_guests(before, after),
    ]


def _list_arms(scenario: Scenario) -> list[Arm]:
    """Every arm of the scenario's cells, the host first."""
    arms = [Arm(Place.HOST)]
    for mode in scenario.modes:
        arms += arms_of(mode).values()
    return list(dict.fromkeys(arms))


def _find_workload_problems(key: str, decomposition: Decomposition, scenario: Scenario) -> Iterator[str]:
    measured = [workload.name for workload in scenario.workloads]
    for number, workload in enumerate(decomposition.workloads or ()):
        if workload.name not in measured:
            known = choices(workload.name, measured)
            yield f"{key}[{number}] = {shown(workload.name)}: not a workload of this scenario; {known}"


def _find_single_step_problems(key: str, decomposition: Decomposition, arms: Sequence[Arm]) -> Iterator[str]:
    if arms[0].place is not Place.HOST:
        yield f'{_at(key, decomposition, 0)}: not the bare host; allowed: "host" as the first step'
    for number, (before, after) in enumerate(pairwise(arms), start=1):
        at, against = _at(key, decomposition, number), f'against "{before.id}"'
        found = changes(before, after)
        if _PLACES.index(after.place) < _PLACES.index(before.place):
            yield f"{at}: goes back from {before.place} to {after.place}; allowed: host, then twins, then guests"
        elif not found and before != after:
            yield f"{at}: changes nothing {against}; allowed: one change per step"
        elif len(found) > 1:
            all_of_them = ", ".join(f"{change.key} ({change.words})" for change in found)
            yield f"{at}: changes {len(found)} things {against}: {all_of_them}; allowed: one change per step"


def _find_setup_problems(key: str, arms: Sequence[Arm], scenario: Scenario) -> Iterator[str]:
    """Arms of different setups share no rounds, so their values cannot be paired."""
    modes = {arm.mode for arm in arms if arm.mode is not None}
    together = [setup for setup in setups(scenario.modes) if modes.intersection(setup)]
    if len(together) > 1:
        apart = " and ".join(", ".join(mode.name for mode in setup if mode in modes) for setup in together)
        yield (
            f"{key}.steps: the modes of these steps are in different setups ({apart}) and share no rounds; "
            "allowed: modes of one setup; list them next to each other in modes"
        )


def _at(key: str, decomposition: Decomposition, number: int) -> str:
    return f"{key}.steps[{number}] = {shown(decomposition.steps[number])}"


def _layout(arm: Arm) -> Kind:
    if arm.mode is None:
        return Device()
    return arm.mode.layout.twin if arm.place is Place.TWIN else arm.mode.layout


def _compare_layouts(before: Kind, after: Kind) -> Iterator[Change]:
    """Compares the bases, then the layers on them. A different kind is one change, else each option is one change."""
    if type(before.base) is not type(after.base):
        yield Change("layout.on", f"{before.base.words} -> {after.base.words}")
    else:
        yield from _compare_options("layout.on", before.base, after.base)
    if before.is_base and after.is_base:
        return
    if type(before) is type(after):
        yield from _compare_options("layout", before, after)
    else:
        yield Change("layout.kind", f"{before.words} -> {after.words}")


def _compare_attachments(before: Arm, after: Arm) -> Iterator[Change]:
    one, other = _attached(before), _attached(after)
    if isinstance(one, Attach) and isinstance(other, Attach):
        yield from _compare_options("attach", one, other)
        return
    if one is None and other is not None:
        yield Change("guest", f"virtualisation ({other.words})")
    elif one is not None and other is not None and type(one) is not type(other):
        yield Change("attach", f"{one.words} -> {other.words}")
    # The twin of a cached mode also uses the page cache, so only its own guest is comparable with it.
    if _direct(before) != _direct(after):
        yield Change("attach.cache", f"page cache {_switch(not _direct(before))} -> {_switch(not _direct(after))}")


def _compare_guests(before: Arm, after: Arm) -> Iterator[Change]:
    """The options in which the guests of two arms differ."""
    if before.place is Place.GUEST is after.place and before.mode is not None and after.mode is not None:
        one, other = before.mode.guest, after.mode.guest
        yield from _compare_options("guest", one.unpinned, other.unpinned)
        if one.pins != other.pins:
            # All pins of a guest together place its threads on the host.
            words = (", ".join(f"{what} on {cpus}" for what, cpus in each.pins.items()) for each in (one, other))
            yield Change("guest.pin", " -> ".join(f"pinning {found}" if found else "no pinning" for found in words))
        yield from setting_changes(before.mode, after.mode)
        yield from _compare_other_guests(before.mode, after.mode)


def _compare_other_guests(before: Mode, after: Mode) -> Iterator[Change]:
    """The other guests that run at the same time."""
    if before.guests != after.guests:
        yield Change("guests", f"guests {before.guests} -> {after.guests}")
    if before.neighbour != after.neighbour:
        one, other = (mode.neighbour.id if mode.neighbour else "none" for mode in (before, after))
        yield Change("neighbour", f"neighbour {one} -> {other}")
    if before.backup != after.backup:
        yield Change("backup", f"backup {_switch(before.backup)} -> {_switch(after.backup)}")


def setting_changes(before: Mode, after: Mode) -> Iterator[Change]:
    """The settings of the host in which two variants differ."""
    one, other = ({setting.path: setting.value for setting in mode.settings} for mode in (before, after))
    for path in dict.fromkeys([*one, *other]):
        if one.get(path) != other.get(path):
            values = " -> ".join(values.get(path, "unchanged") for values in (one, other))
            yield Change(path, f"{path} {values}")


def _attached(arm: Arm) -> Attachment | None:
    return arm.mode.attach if arm.mode is not None and arm.place is Place.GUEST else None


def _direct(arm: Arm) -> bool:
    attach = arm.mode.attach if arm.mode is not None else None
    return attach.direct if attach is not None else True


def _compare_options(table: str, before: Any, after: Any) -> Iterator[Change]:
    """The options in which two values of one type differ."""
    for name in names_of(before):
        if name != "on" and getattr(before, name) != getattr(after, name):
            words = name.replace("_", " ")
            yield Change(f"{table}.{name}", f"{words} {_shown(before, name)} -> {_shown(after, name)}")


def _shown(value: Any, name: str) -> str:
    content = getattr(value, name)
    if content is None:
        return "default"
    return _switch(content) if isinstance(content, bool) else shown_field(value, name).strip('"')


def _switch(on: bool) -> str:
    return "on" if on else "off"
