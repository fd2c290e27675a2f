"""The schema of a scenario file: every key, its type, and its allowed values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    ValidationInfo,
    create_model,
    model_validator,
)

from harness.config.names import choices, plain_name, short_name
from harness.config.values import one_line
from harness.feature import feature_tables, mode_keys
from harness.model.attach import AnyAttachment
from harness.model.budget import Budget
from harness.model.disk import RequestedClass
from harness.model.guest import ANY_GUEST, GuestOptions
from harness.model.layout import AnyLayout
from harness.model.profile import PROFILE_TABLE, PROFILES
from harness.model.values import Rate, Table
from harness.model.workloads import WorkloadList
from harness.published import link_names
from harness.scenario.legality import find_mode_problems, find_vfio_problems
from harness.scenario.scenario import PRESETS

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


def _decomposition_name(name: str) -> str:
    if not _MODE_NAME.fullmatch(name):
        raise ValueError("not a valid name of a decomposition; allowed: lower case letters, digits and single hyphens")
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


def _known_figures(name: str) -> str:
    if name not in link_names():
        raise ValueError(f"no such published figures; {choices(name, link_names())}")
    return name


DiskName = Annotated[str, AfterValidator(plain_name)]
ModeName = Annotated[str, AfterValidator(_known_mode)]
OwnModeName = Annotated[str, AfterValidator(_own_mode_name)]
DecompositionName = Annotated[str, AfterValidator(_decomposition_name)]
ProfileName = Annotated[str, AfterValidator(_known_profile)]
PublishedName = Annotated[str, AfterValidator(_known_figures)]


class ModeTable(Table):
    """A mode that the scenario defines, without the keys of features."""

    layout: AnyLayout
    attach: AnyAttachment
    guest: GuestOptions = ANY_GUEST

    @model_validator(mode="wrap")
    @classmethod
    def _consistent(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if problems := list(find_vfio_problems(data.get("attach") if isinstance(data, dict) else None)):
            raise ValueError("\n".join(problems))
        table = handler(data)
        problems = list(find_mode_problems(table.layout, table.attach, frozenset(_keys(data))))
        for keys in mode_keys():
            problems += keys.find_problems(table, table)
        if problems:
            raise ValueError("\n".join(problems))
        return table


def _keys(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The keys that the file has, as `layout.on.level` and `attach.bus`."""
    for key, value in table.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _keys(value, f"{prefix}{key}.")


class DecomposeTable(Table):
    """A decomposition. `find_step_problems` checks later that each step is an arm and changes one thing."""

    steps: Annotated[list[str], Field(min_length=2)]
    workloads: WorkloadList | None = None


class ScenarioTable(Table):
    """The keys of a file without those of features.

    Validate with `context={"own_modes": (...), "fio_files": {...}}`: the modes that the file defines, and the workloads
    of the fio files that it names.
    """

    title: Annotated[str, AfterValidator(one_line)]
    disk: DiskName | None = None
    disk_class: Annotated[RequestedClass | None, Field(alias="class")] = None
    disks: Annotated[list[DiskName], Field(min_length=1)] | None = None
    modes: Annotated[list[ModeName], Field(min_length=1)]
    workloads: WorkloadList
    write_rate: Rate
    guest: GuestOptions = ANY_GUEST
    published: PublishedName | None = None
    expect_void: Annotated[list[str], Field(min_length=1)] | None = None
    mode: dict[OwnModeName, ModeTable] = Field(default_factory=dict)
    profile: dict[ProfileName, PROFILE_TABLE] = Field(default_factory=dict)  # type: ignore[valid-type]
    budget: list[Budget] = Field(default_factory=list)
    decompose: dict[DecompositionName, DecomposeTable] = Field(default_factory=dict)


@cache
def scenario_schema() -> type[ScenarioTable]:
    """The whole file: with the tables of the features that are installed."""
    bases: Any = (*(keys.table for keys in mode_keys()), ModeTable)
    mode: Any = create_model(ModeTable.__name__, __base__=bases)
    keys: dict[str, Any] = {"mode": (dict[OwnModeName, mode], Field(default_factory=dict))}
    for tables in feature_tables():
        name_type = tables.name_type or _make_name_type(tables.what)
        keys[tables.key] = (dict[name_type, tables.table], Field(default_factory=dict))  # type: ignore[valid-type, name-defined]
    return create_model(ScenarioTable.__name__, __base__=ScenarioTable, **keys)


def _make_name_type(what: str) -> Any:
    """The type of the names of a feature's tables."""

    def require_valid(name: str) -> str:
        if not _MODE_NAME.fullmatch(name):
            raise ValueError(f"not a valid name of {what}; allowed: lower case letters, digits and single hyphens")
        return short_name(name)

    return Annotated[str, AfterValidator(require_valid)]
