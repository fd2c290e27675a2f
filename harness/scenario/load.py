"""Reads a scenario file and the fio files that it names into a `Scenario`.

Or raises one ConfigError that lists every problem of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
)

from harness.config.names import LONGEST_NAME, choices, one_line, plain_name, short_name
from harness.config.problems import describe, quoted_key, read_toml, shown
from harness.errors import ConfigError
from harness.feature import FeatureTables, ModeKeys, features, list_brought
from harness.model.attach import AnyAttachment
from harness.model.disk import REQUESTED_CLASSES, RequestedClass
from harness.model.guest import ANY_GUEST, GuestOptions, find_guest_problems
from harness.model.job import Workload
from harness.model.layout import AnyLayout
from harness.model.mode import Budget, Mode
from harness.model.values import Flag, Rate, TomlTable
from harness.model.workloads import PROFILE_TABLE, PROFILES, WorkloadList, is_fio_file, parse_workloads
from harness.scenario.legality import (
    find_mode_problems,
    find_reference_problems,
    find_scenario_problems,
    find_vfio_problems,
)
from harness.scenario.scenario import PRESETS, Requested, Scenario, WorkloadFiles

_PRESET_NAMES = tuple(mode.name for mode in PRESETS)
_PROFILE_NAMES = tuple(profile.name for profile in PROFILES)
_MODE_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
# A mode's volume has the mode's name. Thin pools are in the same volume group, and lvm(8) reserves two prefixes. Tables
# by mode use `device` for what belongs to no mode.
_RESERVED = ("device",)
_RESERVED_BEGINNINGS = ("pool-", "pvmove", "snapshot")


def _own_mode_name(name: str) -> str:
    if name in _PRESET_NAMES:
        raise ValueError("is a preset, and a preset cannot be redefined; allowed: any other name")
    if not _MODE_NAME.fullmatch(name):
        raise ValueError("not a valid name of a mode; allowed: lower case letters, digits and single hyphens")
    if name in _RESERVED or name.startswith(_RESERVED_BEGINNINGS):
        reserved = ", ".join((*_RESERVED, *(f"{beginning}..." for beginning in _RESERVED_BEGINNINGS)))
        raise ValueError(f"is reserved for volumes of LVM or virt-overhead; allowed: any name except {reserved}")
    return short_name(name)


def _known_mode(name: str, info: ValidationInfo) -> str:
    own: tuple[str, ...] = info.context["own_modes"] if info.context else ()
    names = tuple(dict.fromkeys((*_PRESET_NAMES, *own)))
    if name not in names:
        raise ValueError(f"no such mode; {choices(name, names)}")
    return name


def _known_profile(name: str) -> str:
    if name not in _PROFILE_NAMES:
        raise ValueError(f"no such profile; {choices(name, _PROFILE_NAMES)}")
    return name


DiskName = Annotated[str, AfterValidator(plain_name)]
ModeName = Annotated[str, AfterValidator(_known_mode)]
OwnModeName = Annotated[str, AfterValidator(_own_mode_name)]
ProfileName = Annotated[str, AfterValidator(_known_profile)]


def _require_consistent(data: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """The table of a mode that the scenario defines, if its keys do not conflict. Raises ValueError."""
    problems = list(find_vfio_problems(data.get("attach") if isinstance(data, dict) else None))
    if not problems:
        table = handler(data)
        mode = _make_mode("", table)
        problems += find_mode_problems(mode.layout, table.attach, frozenset(_keys(data)))
        problems += (problem for keys in list_brought(ModeKeys) for problem in keys.find_problems(mode, table))
    if problems:
        raise ValueError("\n".join(problems))
    return table


def _make_mode(name: str, table: Any) -> Mode:
    return Mode(name, table.layout, table.attach, table.guest, cached=table.cached)


def _keys(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The keys that the file has, as `layout.on.level` and `attach.bus`."""
    for key, value in table.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{key}.")


class ScenarioFile(TomlTable):
    """The keys of a file without those of features.

    Validate with `context={"own_modes": (...), "fio_files": {...}}`: the modes that the file defines, and the workloads
    of the fio files that it names.
    """

    title: Annotated[str, AfterValidator(one_line)]
    """The title above the results."""
    disk: DiskName | None = None
    """The name of the disk in the lab, or a class of disks; without it and `disks`, the scenario's name."""
    disk_class: Annotated[RequestedClass | None, Field(alias="class")] = None
    """The class of disks to measure in a lab that has no disk of the name in `disk`."""
    disks: Annotated[list[DiskName], Field(min_length=1)] | None = None
    """Instead of `disk`: the disks of the arrays of one host, in the order of their controllers. The first is the
    baseline. An array over n disks takes the first n, or those from its `starts` on."""
    modes: Annotated[list[ModeName], Field(min_length=1)]
    """Presets and modes that the file defines, each once."""
    workloads: WorkloadList
    """Workloads and fio files, each once."""
    write_rate: Rate
    """The highest rate at which the disk can write. The bound of the bytes written follows from it."""
    guest: GuestOptions = ANY_GUEST
    """The size and placement of the guests."""
    published: str | None = None
    """The published figures that the report shows beside the results, for example `"local_disks.optane"`."""
    expect_void: Annotated[list[ModeName], Field(min_length=1)] | None = None
    """Of earlier versions: modes that are cached."""
    mode: dict[OwnModeName, Any] = Field(default_factory=dict)
    """The modes that the file defines."""
    profile: dict[ProfileName, PROFILE_TABLE] = Field(default_factory=dict)  # type: ignore[valid-type]
    """Changes to the profiles."""
    budget: list[Budget] = Field(default_factory=list)
    """How much a guest may lose. A cell without a budget is `unjudged`."""


@cache
def scenario_schema() -> type[ScenarioFile]:
    """The whole file: with the tables of the features that are installed."""
    own_keys: Any = {
        "layout": (AnyLayout, ...),
        "attach": (AnyAttachment, ...),
        "guest": (GuestOptions, ANY_GUEST),
        "cached": (Flag, False),
    }
    of_mode: Any = create_model(Mode.__name__, __base__=TomlTable, **own_keys)
    whole: Any = create_model(Mode.__name__, __base__=(*(keys.table for keys in list_brought(ModeKeys)), of_mode))
    mode = Annotated[whole, WrapValidator(_require_consistent)]
    keys: dict[str, Any] = {"mode": (dict[OwnModeName, mode], Field(default_factory=dict))}
    for tables in list_brought(FeatureTables):
        name_type = tables.name_type or _make_name_type(tables.what)
        keys[tables.key] = (dict[name_type, tables.table], Field(default_factory=dict))  # type: ignore[valid-type, name-defined]
    return create_model(ScenarioFile.__name__, __base__=ScenarioFile, **keys)


def _make_name_type(what: str) -> Any:
    """The type of the names of a feature's tables."""

    def require_valid(name: str) -> str:
        if not _MODE_NAME.fullmatch(name):
            raise ValueError(f"not a valid name of {what}; allowed: lower case letters, digits and single hyphens")
        return short_name(name)

    return Annotated[str, AfterValidator(require_valid)]


_NAME = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
MOST_PROBLEMS = 20
"""Problems of a file that one message lists. Without its [mode] tables, a file of many modes has one for each."""
_HINT = "docs/reference/file-keys.md has every key"


def find_scenarios(directory: Path) -> list[Path]:
    """The scenario files in `directory`, sorted by name. Raises ConfigError if there is no directory or no file."""
    paths = sorted(directory.glob("*.toml"))
    if not paths:
        raise ConfigError(f"{directory}: no scenario files (*.toml) here", hint=_HINT)
    return paths


def load_scenario(path: Path) -> Scenario:
    """The scenario in `path`. Its name is the file's name without `.toml`.

    Raises ConfigError, which lists all problems, one per line: `FILE: KEY = VALUE: what is wrong; allowed: ...`.
    """
    data = read_toml(path, what="scenario", hint=_HINT)
    problems = list(_find_name_problems(path.stem))
    own_modes = data.get("mode")
    files = _read_workload_files(path.parent, data.get("workloads"))
    context = {"own_modes": tuple(own_modes) if isinstance(own_modes, dict) else (), "fio_files": files.workloads}
    try:
        table = scenario_schema().model_validate(data, context=context)
    except ValidationError as error:
        problems += describe(error, data, scenario_schema())
        table = None
    problems += _find_repeated(data)
    problems += _find_unused_modes(data)
    problems += _find_disk_conflicts(data)
    if table is None:
        raise _refused(path, problems)
    problems += _find_contradicting_rounds(table)
    problems += _find_same_ids(table)
    scenario = replace(_make_scenario(path.stem, table), fio_files=files.read)
    problems += _find_guest_problems(table)
    problems += find_scenario_problems(scenario)
    asked = [tables for tables in list_brought(FeatureTables) if scenario.requests_of(tables.table)]
    for tables in asked:
        problems += tables.check_tables(scenario.requests_of(tables.table))
    for keys in list_brought(ModeKeys):
        names = {*keys.table.model_fields}
        if with_keys := {name: mode for name, mode in table.mode.items() if mode.model_fields_set & names}:
            scenario, conflicts = keys.adapt(scenario, with_keys)
            problems += conflicts
    for tables in asked:
        if tables.adapt is not None:
            scenario, conflicts = tables.adapt(scenario)
            problems += conflicts
    problems += find_reference_problems(scenario)
    problems += [problem for tables in asked for problem in tables.find_problems(scenario)]
    problems += [problem for feature in features() for problem in feature.find_problems(scenario)]
    if problems:
        raise _refused(path, problems)
    return scenario


def _read_workload_files(folder: Path, names: object) -> WorkloadFiles:
    """What the files among `names`, the value of `workloads` in a scenario in `folder`, say."""
    paths = [name for name in names if isinstance(name, str) and is_fio_file(name)] if isinstance(names, list) else []
    read = next((feature.read_workloads for feature in features() if feature.read_workloads is not None), None)
    return read(folder, paths) if paths and read is not None else WorkloadFiles()


def _refused(path: Path, problems: Iterable[str]) -> ConfigError:
    shown_first, more = list(islice(found := iter(problems), MOST_PROBLEMS)), sum(1 for _ in found)
    if more:
        shown_first.append(f"{more} more problems are listed when these are corrected")
    return ConfigError("\n".join(f"{path}: {problem}" for problem in shown_first), hint=_HINT)


def _find_name_problems(stem: str) -> Iterator[str]:
    # A hyphen would make an id such as optane-lvm-randread-4k-qd32 ambiguous.
    if not _NAME.fullmatch(stem):
        yield f'file name "{stem}": allowed: lower case letters, digits and single underscores'
    elif len(stem) > LONGEST_NAME:
        yield f'file name "{stem}": allowed: at most {LONGEST_NAME} characters before .toml'


def _find_repeated(data: Mapping[str, Any]) -> Iterator[str]:
    """Values that a list has twice. 4096 and 4k are the same block size."""
    lists = {key: data.get(key) for key in ("disks", "modes", "workloads", "expect_void")}
    profiles = data.get("profile")
    if isinstance(profiles, dict):
        lists |= {f"profile.{name}.iodepth": p.get("iodepth") for name, p in profiles.items() if isinstance(p, dict)}
    for tables in list_brought(FeatureTables):
        requested = data.get(tables.key)
        for name, table in requested.items() if isinstance(requested, dict) else ():
            if isinstance(table, dict):
                lists |= {f"{tables.key}.{name}.{key}": table.get(key) for key in tables.sets}
    budgets = data.get("budget")
    for index, budget in enumerate(budgets if isinstance(budgets, list) else []):
        if isinstance(budget, dict):
            lists |= {f"budget[{index}].{key}": budget.get(key) for key in ("modes", "workloads", "iodepth", "lab")}
    for key, values in lists.items():
        first_at: dict[str, int] = {}
        for index, value in enumerate(values if isinstance(values, list) else []):
            first = first_at.setdefault(_read_meaning(key, value), index)
            if first != index:
                yield f"{key}[{index}] = {shown(value)}: the same as {key}[{first}]; allowed: each value once"


def _read_meaning(key: str, value: object) -> str:
    if key.endswith("workloads") and isinstance(value, str):
        try:
            return repr(parse_workloads(value))
        except ValueError:
            pass
    return repr(value)


def _find_unused_modes(data: Mapping[str, Any]) -> Iterator[str]:
    own, used = data.get("mode"), data.get("modes")
    if isinstance(own, dict) and isinstance(used, list):
        for name in own:
            if name not in used:
                yield f'mode.{quoted_key(name)}: defined but not measured; add "{name}" to modes, or remove it'


def _find_same_ids(table: ScenarioFile) -> Iterator[str]:
    """Workloads of fio files that have the same name as another workload."""
    names: dict[str, Workload] = {}
    for workload in table.workloads:
        if (other := names.setdefault(workload.name, workload)) != workload:
            file = next(each.from_file.file for each in (workload, other) if each.from_file is not None)
            yield f'workloads: "{workload.name}" of {file} has the name of another one; rename its section, or the file'


def _find_disk_conflicts(data: Mapping[str, Any]) -> Iterator[str]:
    if "disk" in data and "disks" in data:
        disk, disks = shown(data["disk"]), shown(data["disks"])
        yield f"disk = {disk}: conflicts with disks = {disks}, which starts with the baseline; allowed: one of the two"
    if "class" in data:
        disk_class, named = shown(data["class"]), shown(data.get("disk"))
        if data.get("disk") in REQUESTED_CLASSES:
            yield f"class = {disk_class}: conflicts with disk = {named}, which is a class; allowed: one of the two"
        if "disks" in data:
            yield f"class = {disk_class}: conflicts with disks = {shown(data['disks'])}; allowed: only with disk"


def _find_contradicting_rounds(table: ScenarioFile) -> Iterator[str]:
    """`most_rounds` below `rounds`. A default `most_rounds` is raised to the file's `rounds` and is not a problem."""
    for profile in PROFILES:
        changes = table.profile.get(profile.name)
        changed: dict[str, Any] = changes.model_dump(exclude_unset=True) if changes is not None else {}
        fewest, origin = changed.get("rounds", profile.rounds), "" if "rounds" in changed else " (the default)"
        if changed.get("most_rounds", fewest) < fewest:
            yield (
                f"profile.{profile.name}.most_rounds = {changed['most_rounds']}: fewer than rounds = {fewest}{origin}; "
                f"allowed: {fewest} or more"
            )


def _find_guest_problems(table: ScenarioFile) -> Iterator[str]:
    """Options of a guest that conflict. A mode's guest also has the options of the scenario's guest."""
    yield from (f"guest.{problem}" for problem in find_guest_problems(table.guest))
    for name, mode in table.mode.items():
        if mode.guest != ANY_GUEST:
            found = find_guest_problems(mode.guest.over(table.guest))
            yield from (f"mode.{name}.guest.{problem}" for problem in found)


def _make_scenario(name: str, table: ScenarioFile) -> Scenario:
    modes = {mode.name: mode for mode in PRESETS} | {key: _make_mode(key, own) for key, own in table.mode.items()}
    disks, old = tuple(table.disks or [table.disk or name]), table.expect_void or ()
    return Scenario(
        name=name,
        title=table.title,
        disk=disks[0],
        disks=disks,
        modes=tuple(
            replace(mode, cached=mode.cached or (mode.name in old and mode.attach is not None)).on(table.guest)
            for mode in (modes[name] for name in table.modes)
        ),
        workloads=tuple(table.workloads),
        write_rate=table.write_rate,
        profiles=tuple(profile.changed(table.profile.get(profile.name)) for profile in PROFILES),
        published=table.published,
        budgets=tuple(table.budget),
        disk_class=table.disk_class or next((name for name in REQUESTED_CLASSES if name == table.disk), None),
        requests=tuple(
            Requested(key, own) for of in list_brought(FeatureTables) for key, own in getattr(table, of.key).items()
        ),
    )
