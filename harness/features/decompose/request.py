"""What a scenario may ask of a decomposition: steps from the bare host to another arm, each of one change. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field

from harness.config.names import choices
from harness.config.problems import shown
from harness.model.attach import Attach, Attachment
from harness.model.base import Device, Kind
from harness.model.job import Job
from harness.model.mode import Arm, Mode, Place, arms_of, find_setting_changes
from harness.model.values import VALUE, format_field, names_of
from harness.model.workloads import WorkloadTuple
from harness.scenario.scenario import Scenario
from harness.scenario.setups import setups

_PLACES = tuple(Place)


@dataclass(frozen=True, slots=True)
class Decomposition:
    """Splits the latency between the bare host and another arm into steps. `steps` are ids of arms, `host` first.

    Each step changes one thing. If `workloads` is None, all workloads of the scenario are decomposed.
    """

    __pydantic_config__ = VALUE

    steps: Annotated[tuple[str, ...], Field(min_length=2)]
    workloads: WorkloadTuple | None = None

    def covers(self, job: Job) -> bool:
        """Whether this job is decomposed."""
        return self.workloads is None or job.workload in self.workloads


def rename_arms(decomposition: Decomposition, names: Mapping[str, str]) -> Decomposition:
    """The decomposition of a scenario whose arms have these other names."""
    return replace(decomposition, steps=tuple(names.get(step, step) for step in decomposition.steps))


@dataclass(frozen=True, slots=True)
class StepDifference:
    """One difference between two arms: its key in a scenario file, and both values in words."""

    key: str
    words: str


def list_steps(scenario: Scenario, decomposition: Decomposition) -> list[tuple[Arm, str]]:
    """The arms of a decomposition that has passed `find_step_problems`, each with its difference from the one before.

    The first one has none.
    """
    by_id = {arm.id: arm for arm in _list_arms(scenario)}
    arms = [by_id[step] for step in decomposition.steps]
    words = ["; ".join(change.words for change in compare_arms(*pair)) for pair in pairwise(arms)]
    return list(zip(arms, ["", *words], strict=True))


def find_step_problems(scenario: Scenario) -> Iterator[str]:
    """One line for each step that is not an arm of the scenario, changes nothing, or changes more than one thing.

    The lines have the form of the schema's messages: `decompose.attach.steps[2] = "guest:lvm": ...; allowed: ...`.
    """
    arms = {arm.id: arm for arm in _list_arms(scenario)}
    for name, decomposition in scenario.requests_of(Decomposition).items():
        key = f"decompose.{name}"
        yield from _find_workload_problems(f"{key}.workloads", decomposition, scenario)
        unknown = [
            f"{_format_place(key, decomposition, number)}: not an arm of this scenario; {choices(step, arms)}"
            for number, step in enumerate(decomposition.steps)
            if step not in arms
        ]
        if unknown:
            yield from unknown
            continue
        steps = [arms[step] for step in decomposition.steps]
        yield from _find_single_step_problems(key, decomposition, steps)
        yield from _find_setup_problems(key, steps, scenario)


def compare_arms(before: Arm, after: Arm) -> list[StepDifference]:
    """All differences between two arms. Empty for the same arm, and for modes that differ only in their names."""
    return [
        *_compare_layouts(_find_layout(before), _find_layout(after)),
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
        yield f'{_format_place(key, decomposition, 0)}: not the bare host; allowed: "host" as the first step'
    for number, (before, after) in enumerate(pairwise(arms), start=1):
        at, against = _format_place(key, decomposition, number), f'against "{before.id}"'
        changes = compare_arms(before, after)
        if _PLACES.index(after.place) < _PLACES.index(before.place):
            yield f"{at}: goes back from {before.place} to {after.place}; allowed: host, then twins, then guests"
        elif not changes and before != after:
            yield f"{at}: changes nothing {against}; allowed: one change per step"
        elif len(changes) > 1:
            all_of_them = ", ".join(f"{change.key} ({change.words})" for change in changes)
            yield f"{at}: changes {len(changes)} things {against}: {all_of_them}; allowed: one change per step"


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


def _format_place(key: str, decomposition: Decomposition, number: int) -> str:
    return f"{key}.steps[{number}] = {shown(decomposition.steps[number])}"


def _find_layout(arm: Arm) -> Kind:
    if arm.mode is None:
        return Device()
    return arm.mode.layout.twin if arm.place is Place.TWIN else arm.mode.layout


def _compare_layouts(before: Kind, after: Kind) -> Iterator[StepDifference]:
    """Compares the bases, then the layers on them. A different kind is one change, else each option is one change."""
    if type(before.base) is not type(after.base):
        yield StepDifference("layout.on", f"{before.base.words} -> {after.base.words}")
    else:
        yield from _compare_options("layout.on", before.base, after.base)
    if before.is_base and after.is_base:
        return
    if type(before) is type(after):
        yield from _compare_options("layout", before, after)
    else:
        yield StepDifference("layout.kind", f"{before.words} -> {after.words}")


def _compare_attachments(before: Arm, after: Arm) -> Iterator[StepDifference]:
    one, other = _find_attachment(before), _find_attachment(after)
    if isinstance(one, Attach) and isinstance(other, Attach):
        yield from _compare_options("attach", one, other)
        return
    if one is None and other is not None:
        yield StepDifference("guest", f"virtualisation ({other.words})")
    elif one is not None and other is not None and type(one) is not type(other):
        yield StepDifference("attach", f"{one.words} -> {other.words}")
    # The twin of a cached mode also uses the page cache, so only its own guest is comparable with it.
    if _is_direct(before) != _is_direct(after):
        one_cache, other_cache = (_format_switch(not _is_direct(arm)) for arm in (before, after))
        yield StepDifference("attach.cache", f"page cache {one_cache} -> {other_cache}")


def _compare_guests(before: Arm, after: Arm) -> Iterator[StepDifference]:
    """The options in which the guests of two arms differ."""
    if before.place is Place.GUEST is after.place and before.mode is not None and after.mode is not None:
        one, other = before.mode.guest, after.mode.guest
        yield from _compare_options("guest", one.unpinned, other.unpinned)
        if one.pins != other.pins:
            # All pins of a guest together place its threads on the host.
            pins = (", ".join(f"{what} on {cpus}" for what, cpus in guest.pins.items()) for guest in (one, other))
            yield StepDifference("guest.pin", " -> ".join(f"pinning {pin}" if pin else "no pinning" for pin in pins))
        yield from (StepDifference(*change) for change in find_setting_changes(before.mode, after.mode))
        yield from _compare_other_guests(before.mode, after.mode)


def _compare_other_guests(before: Mode, after: Mode) -> Iterator[StepDifference]:
    """The other guests that run at the same time."""
    if before.guests != after.guests:
        yield StepDifference("guests", f"guests {before.guests} -> {after.guests}")
    if before.neighbour != after.neighbour:
        one, other = (mode.neighbour.id if mode.neighbour else "none" for mode in (before, after))
        yield StepDifference("neighbour", f"neighbour {one} -> {other}")
    if before.backup != after.backup:
        yield StepDifference("backup", f"backup {_format_switch(before.backup)} -> {_format_switch(after.backup)}")


def _find_attachment(arm: Arm) -> Attachment | None:
    return arm.mode.attach if arm.mode is not None and arm.place is Place.GUEST else None


def _is_direct(arm: Arm) -> bool:
    attach = arm.mode.attach if arm.mode is not None else None
    return attach.direct if attach is not None else True


def _compare_options(table: str, before: Any, after: Any) -> Iterator[StepDifference]:
    """The options in which two values of one type differ."""
    for name in names_of(before):
        if name != "on" and getattr(before, name) != getattr(after, name):
            words = name.replace("_", " ")
            yield StepDifference(
                f"{table}.{name}", f"{words} {_format_option(before, name)} -> {_format_option(after, name)}"
            )


def _format_option(value: Any, name: str) -> str:
    content = getattr(value, name)
    if content is None:
        return "default"
    return _format_switch(content) if isinstance(content, bool) else format_field(value, name).strip('"')


def _format_switch(on: bool) -> str:
    return "on" if on else "off"
