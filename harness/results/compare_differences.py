"""What differs between two runs apart from the measured values: lab, versions, settings, the use of the disk. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from pydantic import JsonValue

from harness.model.effective import DEFINITIONS
from harness.results.cells import CellRecord
from harness.results.compare_effects import effect_of
from harness.results.compare_matching import CellPair
from harness.results.compare_records import Difference, Effect
from harness.results.facts import comparable_fact
from harness.results.records import FIO_FILES, IMPORTED, PLAN, Run

_CHANGES_EACH_TIME = frozenset({"acceleration.why", "cycles.why", "guest.boot_seconds"})
"""Facts that differ between any two runs, or that only explain another fact."""
_NO_SETTINGS = frozenset({"calibration", "evaluation", "asked", FIO_FILES, PLAN, IMPORTED})
"""Subjects of the provenance that do not affect the values. Of `asked`, see `_requested`. It has the digests of fio
files. Of `imported`, see `_of_imported`: its files are other ones in each run."""


def differences(
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
    found = [*_run_differences(before, after, scenarios), *_cell_differences(pairs)]
    judged = [replace(each, effect=effect_of(each.what, same_machine=same_machine)) for each in found]
    gravest = list(Effect)
    return tuple(sorted(judged, key=lambda each: gravest.index(each.effect)))


def run_facts(run: Run) -> dict[str, JsonValue]:
    """The facts of a run that may affect its values, by name: lab, versions, settings, and each scenario's disks."""
    scenarios = dict.fromkeys(cell.scenario for cell in run.cells)
    of_scenarios = {f"{name}.{key}": value for name in scenarios for key, value in _of_scenario(run, name).items()}
    return _of_run(run) | of_scenarios


def changed_facts(
    before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]
) -> list[tuple[str, JsonValue, JsonValue]]:
    """The `run_facts` that differ and may have an influence, by name with both values."""
    found = [(each.what, each.before, each.after) for each in _different(before, after)]
    return [each for each in found if effect_of(each[0], same_machine=False) is not Effect.NONE]


def _run_differences(before: Run, after: Run, scenarios: Sequence[tuple[str, str]]) -> Iterator[Difference]:
    yield from _different(_of_run(before), _of_run(after))
    for one, other in scenarios:
        yield from _different(_of_scenario(before, one), _of_scenario(after, other), prefix=f"{one}.")


def _cell_differences(pairs: Iterable[CellPair]) -> Iterator[Difference]:
    """Each difference once, with the cells that have it."""
    found: dict[tuple[str, str, str], Difference] = {}
    for before, after in pairs:
        for each in _different(_of_cell(before), _of_cell(after)):
            key = each.what, repr(each.before), repr(each.after)
            cells = found[key].cells if key in found else ()
            found[key] = replace(each, cells=tuple(dict.fromkeys((*cells, before.id))))
    yield from found.values()


def _different(
    before: Mapping[str, JsonValue], after: Mapping[str, JsonValue], prefix: str = ""
) -> Iterator[Difference]:
    for what in dict.fromkeys((*before, *after)):
        if before.get(what) != after.get(what):
            yield Difference(f"{prefix}{what}", before.get(what), after.get(what), (), Effect.CAUSE)


def _of_run(run: Run) -> dict[str, JsonValue]:
    lab = run.lab
    facts: dict[str, JsonValue] = {
        "run.profile": run.run.profile,
        "run.seed": run.run.seed,
        "run.status": run.run.status,
        "lab.host": lab.host,
        "lab.kind": lab.kind,
        "lab.accel": lab.accel,
        "lab.representative": lab.representative,
        "lab.why": lab.why,
    }
    subjects = {name: value for name, value in run.provenance.items() if name not in _NO_SETTINGS}
    facts |= {key: comparable_fact(key, value) for key, value in _flat(subjects) if not _is_left_out(key)}
    return facts | _of_imported(run)


def _of_imported(run: Run) -> dict[str, JsonValue]:
    """By arm, the versions of fio of the imported files, and by job the values of each option."""
    origin = run.provenance.get(IMPORTED)
    values: dict[str, set[str]] = {}
    for file in (origin if isinstance(origin, dict) else {}).values():
        if not isinstance(file, dict) or "left out" in file:
            continue
        values.setdefault(f"{IMPORTED}.{file.get('arm')}.fio", set()).add(str(file.get("fio")))
        options = file.get("options")
        for name, value in _flat(options if isinstance(options, dict) else {}, f"{IMPORTED}.{file.get('arm')}."):
            values.setdefault(name, set()).add(str(value) or "set")
    return {name: " or ".join(sorted(found)) for name, found in values.items()}


def _is_left_out(key: str) -> bool:
    # The time of the build and the digest of the recipe identify an image. The disks are those of the scenarios.
    return key in _CHANGES_EACH_TIME or ".sha256." in key or key.startswith("disk.")


def _of_scenario(run: Run, scenario: str) -> dict[str, JsonValue]:
    """What was requested of the scenario, its disks and how they were conditioned. Disks are numbered, because the
    names of the disks may differ."""
    requested = _requested(run, scenario)
    names = [key.removeprefix("disk.") for key in requested if key.startswith("disk.")]
    names = names or list(dict.fromkeys(cell.disk for cell in run.cells if cell.scenario == scenario))
    facts = {key: value for key, value in requested.items() if not key.startswith("disk.")}
    for number, name in enumerate(names, start=1):
        key = "disk" if len(names) == 1 else f"disk{number}"
        facts[key] = requested.get(f"disk.{name}", name)
        facts |= dict(_flat({key: run.provenance.get(f"disk.{name}", {})}))
        own = [asdict(disk.facts) for disk in run.disks if disk.name == name]
        facts |= {what: value for each in own for what, value in _flat({key: each}) if value is not None}
    for group in run.groups:
        if group.disk in names and group.conditioning is not None:
            facts["conditioning.method"] = group.conditioning.method
            facts["conditioning.steady"] = group.conditioning.steady
    return facts


def _requested(run: Run, scenario: str) -> dict[str, JsonValue]:
    """The settings that were requested, without the modes, which are the same, and those that each cell has."""
    asked = run.provenance.get("asked")
    found = asked if isinstance(asked, dict) else {}
    own = {key.removeprefix(f"{scenario}."): value for key, value in found.items() if key.startswith(f"{scenario}.")}
    in_cells = ("mode.", "ramp", "runtime", "span", "conditioning")
    return {key: value for key, value in own.items() if not key.startswith(in_cells)}


def _of_cell(cell: CellRecord) -> dict[str, JsonValue]:
    facts: dict[str, JsonValue] = {"span_bytes": cell.span_bytes, "boots": len(set(cell.boots)) or 1}
    facts |= {f"job.{key}": value for key, value in asdict(cell.job).items() if key != "from_file"}
    if cell.job.from_file is not None:
        facts |= {f"job.[{section.name}]": section.text for section in cell.job.from_file.sections}
    if cell.longer_slices is not None:
        facts["discarded_s"] = cell.longer_slices.discarded_s
    settings = {name: value for name, value in cell.effective.settings() if name not in DEFINITIONS}
    return facts | {f"effective.{name}": value for name, value in settings.items()}


def _flat(value: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner
