"""The facts of a run that may affect its values, and what a difference in one of them means for a comparison. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from enum import StrEnum
from fnmatch import fnmatchcase

from pydantic import JsonValue

from harness.report.numbers import NONE, shorten
from harness.results import FIO_FILES, Run
from harness.results.records import IMPORTED, PLAN, comparable_fact

_CHANGES_EACH_TIME = frozenset({"acceleration.why", "cycles.why", "guest.boot_seconds"})
"""Facts that differ between any two runs, or that only explain another fact."""
_NO_SETTINGS = frozenset({"calibration", "evaluation", "asked", FIO_FILES, PLAN, IMPORTED})
"""Subjects of the provenance that do not affect the values. Of `asked`, see `_read_requested`; it has the digests of
fio files. Of `imported`, see `_read_imported`: its files are other ones in each run."""
_NO_INFLUENCE = ("run.seed", "run.status", "lab.why", "host.hostname", "boots")
"""The seed only chooses the random order of the arms."""
_TIMES = ("job.seconds", "job.ramp")
"""How long a slice takes has no influence on its rate in a steady state. A longer slice only has less noise."""
_MEASURED = (
    "run.profile",
    "lab.accel",
    "lab.representative",
    "acceleration.accel",
    "host.fio",
    "images.guest.fio",
    "imported.*.fio",
    "span_bytes",
    "*.span",
    "*.conditioning",
    "*.conditioning.method",
    "job.*",
)
"""How the values were measured: by which fio, with which profile and job, where on the disk, and in which state of it.
A lab that emulates its disks, or its CPUs, measures something else than one with real ones."""
_MACHINE = ("host.cpu", "host.cpus", "*.disk", "*.disk[0-9]*[0-9]", "*.disk[0-9]")
"""What was measured on: the CPU and the disks."""


class Effect(StrEnum):
    """What a difference between the runs means for their comparison."""

    RULES_OUT = "rules out"
    """The runs were measured differently, so no change of the figures says anything about what was measured."""
    CAUSE = "possible cause"
    """It may have caused a change."""
    NONE = "none"
    """It has no influence on the values."""


def list_different_facts(
    before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]
) -> Iterator[tuple[str, JsonValue, JsonValue]]:
    """The facts that differ, by name with both values; None for one that is missing."""
    for what in dict.fromkeys((*before, *after)):
        if before.get(what) != after.get(what):
            yield what, before.get(what), after.get(what)


def judge_effect(what: str, *, same_machine: bool) -> Effect:
    """What the difference with this name means. `same_machine`: both runs must be of the same CPU and disks."""
    if what in _NO_INFLUENCE:
        return Effect.NONE
    if what in _TIMES:
        return Effect.CAUSE
    ruling_out = (*_MEASURED, *_MACHINE) if same_machine else _MEASURED
    return Effect.RULES_OUT if any(fnmatchcase(what, pattern) for pattern in ruling_out) else Effect.CAUSE


def format_fact(value: JsonValue, most: int) -> str:
    """A recorded version or setting on one line of `most` characters: a text as it is, anything else as JSON."""
    text = NONE if value in (None, "") else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shorten(" ".join(text.split()), most)


def read_run_facts(run: Run) -> dict[str, JsonValue]:
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
    facts |= {key: comparable_fact(key, value) for key, value in _flatten(subjects) if not _is_left_out(key)}
    return facts | _read_imported(run)


def _read_imported(run: Run) -> dict[str, JsonValue]:
    """By arm, the versions of fio of the imported files, and by job the values of each option."""
    origin = run.provenance.get(IMPORTED)
    values: dict[str, set[str]] = {}
    for file in (origin if isinstance(origin, dict) else {}).values():
        if not isinstance(file, dict) or "left out" in file:
            continue
        values.setdefault(f"{IMPORTED}.{file.get('arm')}.fio", set()).add(str(file.get("fio")))
        options = file.get("options")
        for name, value in _flatten(options if isinstance(options, dict) else {}, f"{IMPORTED}.{file.get('arm')}."):
            values.setdefault(name, set()).add(str(value) or "set")
    return {name: " or ".join(sorted(options)) for name, options in values.items()}


def _is_left_out(key: str) -> bool:
    # The time of the build and the digest of the recipe identify an image. The disks are those of the scenarios.
    return key in _CHANGES_EACH_TIME or ".sha256." in key or key.startswith("disk.")


def read_scenario_facts(run: Run, scenario: str) -> dict[str, JsonValue]:
    """What was requested of the scenario, its disks and how they were conditioned. Disks are numbered, because the
    names of the disks may differ."""
    requested = _read_requested(run, scenario)
    names = [key.removeprefix("disk.") for key in requested if key.startswith("disk.")]
    names = names or list(dict.fromkeys(cell.disk for cell in run.cells if cell.scenario == scenario))
    facts = {key: value for key, value in requested.items() if not key.startswith("disk.")}
    for number, name in enumerate(names, start=1):
        key = "disk" if len(names) == 1 else f"disk{number}"
        facts[key] = requested.get(f"disk.{name}", name)
        facts |= dict(_flatten({key: run.provenance.get(f"disk.{name}", {})}))
        records = [asdict(disk.facts) for disk in run.disks if disk.name == name]
        facts |= {what: value for record in records for what, value in _flatten({key: record}) if value is not None}
    for group in run.groups:
        if group.disk in names and group.conditioning is not None:
            facts["conditioning.method"] = group.conditioning.method
            facts["conditioning.steady"] = group.conditioning.steady
    return facts


def _read_requested(run: Run, scenario: str) -> dict[str, JsonValue]:
    """The settings that were requested, without the modes, which are the same, and those that each cell has."""
    asked = run.provenance.get("asked")
    requested = asked if isinstance(asked, dict) else {}
    of_scenario = {
        key.removeprefix(f"{scenario}."): value for key, value in requested.items() if key.startswith(f"{scenario}.")
    }
    in_cells = ("mode.", "ramp", "runtime", "span", "conditioning")
    return {key: value for key, value in of_scenario.items() if not key.startswith(in_cells)}


def _flatten(value: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _flatten(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner
