"""Which cells of two runs belong together, and what else differs between them. Pure.

Cells belong together if their modes have the same layout and attachment, and their jobs the same id. Names of
scenarios, disks and modes may differ. The bare host belongs together by its job alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from harness.analysis import (
    Verdict,
)
from harness.features.compare.records import (
    Difference,
    LeftOut,
    Side,
)
from harness.model.base import Device
from harness.model.mode import ModeDetail
from harness.results.cells import CellRecord
from harness.results.records import (
    Effect,
    Run,
    judge_effect,
    list_different_facts,
    read_cell_facts,
    read_run_facts,
    read_scenario_facts,
)

CellPair = tuple[CellRecord, CellRecord]
"""A cell of the run before, and its counterpart afterwards."""

NO_SCENARIO = "no counterpart: the other run does not have this scenario, and more than one is left to choose from"
NO_MODE = "no counterpart: the other run has no mode with this layout and attachment"
NO_JOB = "no counterpart: the other run does not have this job in this mode"
NO_HOST_JOB = "no counterpart: the other run has no usable values of its host in this job"
SEVERAL_MODES = "no counterpart: several modes have this layout and attachment, but no two of them the same name"
BETTER = "its guest is better than its host by more than 5 %, which needs an explanation"
_NO_VALUES = "no block in which every arm was measured"


@dataclass(frozen=True, slots=True)
class Matched:
    """The cells of two scenarios that belong together and have usable values."""

    hosts: tuple[CellPair, ...]
    """For each job, the cells that have the values of the bare host."""
    cells: tuple[CellPair, ...]
    """Cells with a twin or a guest."""
    left_out: tuple[LeftOut, ...]
    doubtful: tuple[LeftOut, ...]
    """Cells of `cells` with a figure that needs an explanation."""


def pair_names(before: Iterable[str], after: Iterable[str]) -> list[tuple[str, str]]:
    """The names that belong together: equal ones, and the last one of each side if only one is left on both."""
    names, others = list(before), list(after)
    pairs = [(name, name) for name in names if name in others]
    left = [name for name in names if name not in others]
    other_left = [name for name in others if name not in names]
    return [*pairs, (left[0], other_left[0])] if len(left) == len(other_left) == 1 else pairs


def match(before: Sequence[CellRecord], after: Sequence[CellRecord]) -> Matched:
    """The pairs of cells of two scenarios, in the order of `before`, and the cells that are left out."""
    jobs = dict.fromkeys(cell.job.id for cell in before)
    hosts = [(one, other) for job in jobs if (one := _choose_host(before, job)) if (other := _choose_host(after, job))]
    counterparts = _find_counterparts(before, after)
    pairs = [(cell, counterparts[cell.id]) for cell in before if cell.id in counterparts]
    compared = {one.job.id for one, _ in hosts}
    left_out = [
        *_list_unmatched("before", before, after, {one.id for one, _ in pairs}, compared),
        *_list_unmatched("after", after, before, {other.id for _, other in pairs}, compared),
    ]
    usable: list[CellPair] = []
    doubtful: list[LeftOut] = []
    for pair in pairs:
        doubts = [LeftOut(side, cell.id, why) for side, cell in _add_sides(pair) if (why := explain_unusable(cell))]
        left_out += doubts
        if not doubts:
            usable.append(pair)
            doubtful += [LeftOut(side, cell.id, BETTER) for side, cell in _add_sides(pair) if cell.better_than_host]
    return Matched(tuple(hosts), tuple(usable), tuple(left_out), tuple(doubtful))


def explain_unusable(cell: CellRecord) -> str | None:
    """Why no value of the cell is compared; None if they can be."""
    if cell.skipped is not None:
        return f"skipped: {cell.skipped}"
    if cell.verdict is Verdict.VOID:
        return f"void: {'; '.join(f'{check.check}: {check.detail}' for check in cell.validity if not check.ok)}"
    return None if cell.job.headline in cell.metrics else _NO_VALUES


def _add_sides(pair: CellPair) -> tuple[tuple[Side, CellRecord], tuple[Side, CellRecord]]:
    return ("before", pair[0]), ("after", pair[1])


def _find_counterparts(before: Sequence[CellRecord], after: Sequence[CellRecord]) -> dict[str, CellRecord]:
    """The counterpart of each cell with a twin or a guest, by the cell's id."""
    of_after = _group_by_mode(after)
    counterparts: dict[str, CellRecord] = {}
    for detail, modes in _group_by_mode(before).items():
        others = of_after.get(detail, {})
        for mode, other in pair_names(modes, others):
            jobs = others[other]
            counterparts |= {cell.id: jobs[job] for job, cell in modes[mode].items() if job in jobs}
    return counterparts


def _list_unmatched(
    side: Side, cells: Sequence[CellRecord], others: Sequence[CellRecord], known: set[str], hosts: set[str]
) -> Iterator[LeftOut]:
    """The cells of one side without a counterpart. `known` are the ids of the others, `hosts` the jobs of the host."""
    modes, of_others = _group_by_mode(cells), _group_by_mode(others)
    for cell in cells:
        if _is_bare_host(cell):
            if cell.job.id not in hosts:
                yield LeftOut(side, cell.id, explain_unusable(cell) or NO_HOST_JOB)
        elif cell.id not in known:
            yield LeftOut(side, cell.id, _explain_alone(cell, modes, of_others))


_ByMode = Mapping[ModeDetail, Mapping[str, Mapping[str, CellRecord]]]


def _explain_alone(cell: CellRecord, modes: _ByMode, others: _ByMode) -> str:
    candidates = others.get(cell.mode_detail, {})
    if not candidates:
        return NO_MODE
    paired = [one for one, _ in pair_names(modes[cell.mode_detail], candidates)]
    return NO_JOB if cell.mode in paired else SEVERAL_MODES


def _group_by_mode(cells: Iterable[CellRecord]) -> _ByMode:
    """Cells with a twin or a guest by layout and attachment, then by the mode's name, then by job."""
    by_mode: dict[ModeDetail, dict[str, dict[str, CellRecord]]] = {}
    for cell in cells:
        if not _is_bare_host(cell):
            by_mode.setdefault(cell.mode_detail, {}).setdefault(cell.mode, {})[cell.job.id] = cell
    return by_mode


def _choose_host(cells: Iterable[CellRecord], job: str) -> CellRecord | None:
    """The cell with the bare host's values in this job: that of the mode `host`, or the one with the most blocks.

    None if no cell has usable values.
    """
    candidates = [cell for cell in cells if cell.job.id == job and cell.mode_detail.has_bare_host]
    usable = [cell for cell in candidates if explain_unusable(cell) is None]
    return max(usable, key=lambda cell: (_is_bare_host(cell), len(cell.rounds)), default=None)


def _is_bare_host(cell: CellRecord) -> bool:
    return cell.mode_detail.attach is None and isinstance(cell.mode_detail.layout, Device)


def list_differences(
    before: Run,
    after: Run,
    scenarios: Sequence[tuple[str, str]],
    pairs: Iterable[CellPair],
    *,
    same_machine: bool,
) -> tuple[Difference, ...]:
    """What differs: first what matters most. `scenarios` are the names that are compared, `pairs` their cells.

    With `same_machine`, another CPU or disk rules the comparison out.
    """
    unjudged = [*_compare_run_facts(before, after, scenarios), *_compare_cell_facts(pairs)]
    judged = [
        replace(difference, effect=judge_effect(difference.what, same_machine=same_machine)) for difference in unjudged
    ]
    gravest = list(Effect)
    return tuple(sorted(judged, key=lambda difference: gravest.index(difference.effect)))


def _compare_run_facts(before: Run, after: Run, scenarios: Sequence[tuple[str, str]]) -> Iterator[Difference]:
    yield from _to_differences(read_run_facts(before), read_run_facts(after))
    for one, other in scenarios:
        yield from _to_differences(
            read_scenario_facts(before, one), read_scenario_facts(after, other), prefix=f"{one}."
        )


def _compare_cell_facts(pairs: Iterable[CellPair]) -> Iterator[Difference]:
    """Each difference once, with the cells that have it."""
    differences_found: dict[tuple[str, str, str], Difference] = {}
    for before, after in pairs:
        for difference in _to_differences(read_cell_facts(before), read_cell_facts(after)):
            key = difference.what, repr(difference.before), repr(difference.after)
            cells = differences_found[key].cells if key in differences_found else ()
            differences_found[key] = replace(difference, cells=tuple(dict.fromkeys((*cells, before.id))))
    yield from differences_found.values()


def _to_differences(
    before: Mapping[str, JsonValue], after: Mapping[str, JsonValue], prefix: str = ""
) -> Iterator[Difference]:
    for what, one, other in list_different_facts(before, after):
        yield Difference(f"{prefix}{what}", one, other, (), Effect.CAUSE)
