"""Variants: complete stacks that are measured as arms of the same run, and what is special about each. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model

from harness.config.names import short_name
from harness.model.attach import Attach
from harness.model.guest import ANY_GUEST, GuestOptions, guest_problems
from harness.model.values import VALUE, Table, names_of

_SYSCTL = re.compile(r"[a-z0-9_]+([./][A-Za-z0-9_-]+)+")
_PARAMETER = re.compile(r"([a-z0-9_]+)\.([A-Za-z0-9_]+)")
_WORD = re.compile(r"[A-Za-z0-9_.,:-]+")
_NAME = re.compile(r"[a-z][a-z0-9]*")


def _name(name: str) -> str:
    """The name of a variant. Raises ValueError for a name that cannot be the end of a mode's name."""
    if not _NAME.fullmatch(name):
        raise ValueError("not a valid name of a variant; allowed: lower case letters and digits, for example new")
    return short_name(name)


def _sysctl(name: str) -> str:
    if not _SYSCTL.fullmatch(name):
        raise ValueError("not a name of sysctl; allowed: for example vm.dirty_background_ratio")
    return name


def _parameter(name: str) -> str:
    if not _PARAMETER.fullmatch(name):
        raise ValueError("not a module with its parameter; allowed: for example kvm.halt_poll_ns")
    return name


def _word(value: object) -> object:
    """Numbers and truth values as the kernel writes them."""
    if isinstance(value, bool):
        return "Y" if value else "N"
    return str(value) if isinstance(value, int) else value


def _one_word(value: str) -> str:
    if not _WORD.fullmatch(value):
        raise ValueError('not one word; allowed: a number, true, false or a word, for example "0"')
    return value


VariantName = Annotated[str, AfterValidator(_name)]
Sysctl = Annotated[str, AfterValidator(_sysctl)]
Parameter = Annotated[str, AfterValidator(_parameter)]
Value = Annotated[str, BeforeValidator(_word), AfterValidator(_one_word)]

_HINTS = get_type_hints(Attach, include_extras=True)
_OPTIONS: dict[str, Any] = {name: (_HINTS[name], getattr(Attach(), name)) for name in names_of(Attach())}
ATTACH_CHANGES: type[BaseModel] = create_model("AttachChanges", __base__=Table, **_OPTIONS)
"""A table with options of an attachment. Only those that are set count."""


@dataclass(frozen=True, slots=True)
class HostSetting:
    """A file of the kernel's settings on the host, and its value."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    path: str
    value: str

    @property
    def words(self) -> str:
        return f"{self.path} = {self.value}"


class VariantTable(Table):
    """A variant in a file: what it changes. Without any key, it is the stack as the modes and the lab describe it."""

    reference: bool = False
    guest: GuestOptions = ANY_GUEST
    attach: ATTACH_CHANGES | None = None  # type: ignore[valid-type]
    sysctl: dict[Sysctl, Value] = Field(default_factory=dict)
    module: dict[Parameter, Value] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Variant:
    """One of several complete stacks that are compared. `attach` are the options that it changes, by name."""

    name: str
    reference: bool = False
    """Whether the others are compared with this one."""
    guest: GuestOptions = ANY_GUEST
    attach: tuple[tuple[str, Any], ...] = ()
    settings: tuple[HostSetting, ...] = ()
    """What is set on the host while its guest runs."""

    @classmethod
    def of(cls, name: str, table: VariantTable) -> Variant:
        """The variant that a file describes."""
        changed: dict[str, Any] = table.attach.model_dump(exclude_unset=True) if table.attach is not None else {}
        sysctl = (HostSetting(f"/proc/sys/{key.replace('.', '/')}", value) for key, value in table.sysctl.items())
        module = (
            HostSetting("/sys/module/{}/parameters/{}".format(*key.split(".")), value)
            for key, value in table.module.items()
        )
        return cls(name, table.reference, table.guest, tuple(changed.items()), (*sysctl, *module))


@dataclass(frozen=True, slots=True)
class ModeVariant:
    """Of which mode a mode is a variant, and how it is compared."""

    __pydantic_config__ = VALUE

    name: str
    """The name of the variant."""
    mode: str
    """The name of the mode without the variant."""
    reference: str | None
    """The variant that it is compared with; null for the reference itself."""
    settings: tuple[HostSetting, ...] = field(default=(), compare=False)
    """What is set on the host while its guest runs."""
    alternating: bool = field(default=False, compare=False)
    """Whether its guest and that of the other variants run one after the other. Otherwise they run side by side."""


def variants_of(tables: Mapping[str, VariantTable]) -> tuple[Variant, ...]:
    """The variants of a file, the reference first: the chosen one, or the first. Check them with `variant_problems`."""
    found = [Variant.of(name, table) for name, table in tables.items()]
    return tuple(sorted(found, key=lambda each: not each.reference))


def variant_problems(tables: Mapping[str, VariantTable]) -> Iterator[str]:
    """What is wrong with the variants of a file by themselves, in the form of the schema's messages."""
    if len(tables) == 1:
        (only,) = tables
        yield f"variant.{only}: the only variant; allowed: two or more, which are compared, or none"
    first, *others = [name for name, table in tables.items() if table.reference] or [""]
    for other in others:
        yield f"variant.{other}.reference = true: variant.{first} is the reference already; allowed: one reference"
    for name, table in tables.items():
        yield from (f"variant.{name}.guest.{problem}" for problem in guest_problems(table.guest))
