"""Variants: `[variant.NAME]` of a scenario or lab file. Each mode is measured in several complete stacks.

A variant has another emulator or machine type, other options of the attachment, or other settings of the host's kernel.
Its guests run beside those of the reference, or by turns with them where they cannot: then each round boots them anew.
This feature makes a mode of each mode in each variant; the kernel measures modes that have another one to be compared
with (`Mode.against`) and judges the difference. `report.py` shows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, create_model

from harness.config.names import LONGEST_NAME, short_name
from harness.feature import Feature, FeatureTables, list_brought
from harness.model.attach import Attach
from harness.model.guest import ANY_GUEST, GuestOptions, find_guest_problems
from harness.model.layout import Qcow2
from harness.model.mode import HostSetting, Mode, ModeVariant
from harness.model.values import FileValue, Flag, TomlTable, names_of
from harness.scenario.legality import find_mode_problems, find_workload_problems
from harness.scenario.scenario import Scenario

_SYSCTL = re.compile(r"[a-z0-9_]+([./][A-Za-z0-9_-]+)+")
_PARAMETER = re.compile(r"([a-z0-9_]+)\.([A-Za-z0-9_]+)")
_WORD = re.compile(r"[A-Za-z0-9_.,:-]+")
_NAME = re.compile(r"[a-z][a-z0-9]*")


def _require_name(name: str) -> str:
    """The name of a variant. Raises ValueError for a name that cannot be the end of a mode's name."""
    if not _NAME.fullmatch(name):
        raise ValueError("not a valid name of a variant; allowed: lower case letters and digits, for example new")
    return short_name(name)


def _require_sysctl(name: str) -> str:
    if not _SYSCTL.fullmatch(name):
        raise ValueError("not a name of sysctl; allowed: for example vm.dirty_background_ratio")
    return name


def _require_parameter(name: str) -> str:
    if not _PARAMETER.fullmatch(name):
        raise ValueError("not a module with its parameter; allowed: for example kvm.halt_poll_ns")
    return name


def _write_word(value: object) -> object:
    """Numbers and truth values as the kernel writes them."""
    if isinstance(value, bool):
        return "Y" if value else "N"
    return str(value) if isinstance(value, int) else value


def _require_word(value: str) -> str:
    if not _WORD.fullmatch(value):
        raise ValueError('not one word; allowed: a number, true, false or a word, for example "0"')
    return value


VariantName = Annotated[str, AfterValidator(_require_name)]
Sysctl = Annotated[str, AfterValidator(_require_sysctl)]
Parameter = Annotated[str, AfterValidator(_require_parameter)]
Value = Annotated[str, BeforeValidator(_write_word), AfterValidator(_require_word)]

_HINTS = get_type_hints(Attach, include_extras=True)
_OPTIONS: dict[str, Any] = {name: (_HINTS[name], getattr(Attach(), name)) for name in names_of(Attach())}
ATTACH_CHANGES: type[BaseModel] = create_model("AttachChanges", __base__=TomlTable, **_OPTIONS)
"""A table with options of an attachment. Only those that are set count."""


@dataclass(frozen=True, slots=True)
class Variant(FileValue):
    """A complete stack: what it changes of the stack as the modes and the lab describe it. Without a key: nothing."""

    reference: Flag = False
    """Whether the others are compared with this one. Without one that says so, they are compared with the first."""
    guest: GuestOptions = ANY_GUEST
    """Options of the guest, which win over those of the mode."""
    attach: ATTACH_CHANGES | None = None  # type: ignore[valid-type]
    """Options of the attachment, which win over those of the mode."""
    sysctl: dict[Sysctl, Value] = field(default_factory=dict)
    """Set on the host while the guest of the variant runs, for example `{ "vm.dirty_ratio" = 5 }`."""
    module: dict[Parameter, Value] = field(default_factory=dict)
    """Parameters of kernel modules, in the same way: `{ "kvm.halt_poll_ns" = 0 }`."""

    @property
    def attach_changes(self) -> dict[str, Any]:
        """The options of the attachment that it changes, by name."""
        changes: dict[str, Any] = self.attach.model_dump(exclude_unset=True) if self.attach is not None else {}
        return changes

    @property
    def settings(self) -> tuple[HostSetting, ...]:
        """What is set on the host while its guest runs."""
        sysctl = (HostSetting(f"/proc/sys/{key.replace('.', '/')}", value) for key, value in self.sysctl.items())
        module = (
            HostSetting("/sys/module/{}/parameters/{}".format(*key.split(".")), value)
            for key, value in self.module.items()
        )
        return (*sysctl, *module)


def check_tables(variants: Mapping[str, Variant]) -> Iterator[str]:
    """What is wrong with the variants of a file by themselves, in the form of the schema's messages."""
    if len(variants) == 1:
        (only,) = variants
        yield f"variant.{only}: the only variant; allowed: two or more, which are compared, or none"
    first, *others = [name for name, variant in variants.items() if variant.reference] or [""]
    for other in others:
        yield f"variant.{other}.reference = true: variant.{first} is the reference already; allowed: one reference"
    for name, variant in variants.items():
        yield from (f"variant.{name}.guest.{problem}" for problem in find_guest_problems(variant.guest))


def adapt(scenario: Scenario) -> tuple[Scenario, list[str]]:
    """The scenario in the variants that it asks for, and what they cannot change in its modes."""
    variants = scenario.requests_of(Variant)
    return in_variants(scenario, variants), list(find_conflicts(scenario, variants))


def in_variants(scenario: Scenario, variants: Mapping[str, Variant]) -> Scenario:
    """The scenario with each of its modes in each variant: `lvm` becomes `lvm-old` and `lvm-new`.

    The mode `host` stays, because no guest runs in it. The variants of a mode follow each other, the reference first.
    Requests of other features with the guest of `lvm` are for that of the reference.
    """
    if not variants:
        return scenario
    reference = _reference_of(variants)
    in_order = {reference: variants[reference], **variants}
    modes = tuple(in_variant for mode in scenario.modes for in_variant in _vary(mode, in_order))
    renamed = {f"guest:{mode.name}": f"guest:{mode.name}-{reference}" for mode in scenario.modes}
    return _rename_arms(replace(scenario, modes=modes), renamed)


def find_conflicts(scenario: Scenario, variants: Mapping[str, Variant]) -> Iterator[str]:
    """What the variants cannot change in the modes of this scenario, which has none yet."""
    names = {mode.name for mode in scenario.modes}
    with_settings = [name for name, variant in variants.items() if variant.settings]
    for mode in scenario.modes:
        if mode.attach is None:
            continue
        if mode.runs_with_others or mode.in_container:
            if variants:
                of = mode.base.name if mode.in_container and mode.base else mode.attached.name
                key = "backup" if mode.backup else "neighbour" if mode.neighbour else "guests"
                key = "container" if mode.in_container else key
                yield (
                    f"variant.{_reference_of(variants)}: conflicts with mode.{of}.{key}, because the guests of "
                    "variants use the same volume; allowed: another scenario for one of them"
                )
            continue
        for own_name, variant in variants.items():
            key, name = f"variant.{own_name}", f"{mode.name}-{own_name}"
            if name in names:
                yield f'{key}: "{mode.name}" in this variant would have the name of the mode {name}; rename one of them'
            if len(name) > LONGEST_NAME:
                yield f'{key}: the name "{name}" has {len(name)} characters; allowed: at most {LONGEST_NAME}'
            if variant.attach_changes and not isinstance(mode.attach, Attach):
                option = next(iter(variant.attach_changes))
                yield (
                    f'{key}.attach.{option}: conflicts with the mode "{mode.name}", which passes the '
                    "whole disk through; allowed: no attach in the variants, or another scenario for this mode"
                )
                continue
            yield from _find_mode_problems(mode, own_name, variant, scenario)
    if with_settings and not any(mode.attach is not None for mode in scenario.modes):
        yield f"variant.{with_settings[0]}: conflicts with modes, which have no guest; allowed: a mode with a guest"


def _find_mode_problems(mode: Mode, name: str, variant: Variant, scenario: Scenario) -> Iterator[str]:
    key = f"variant.{name}"
    changed = _change(mode, name, variant, None, alternating=False)
    if changed.attach is not None and changed.attach != mode.attach:
        given = {f"attach.{option}" for option in variant.attach_changes}
        problems = find_mode_problems(mode.layout, changed.attach, given)
        yield from (f'{key}, in the mode "{mode.name}": {problem}' for problem in problems)
        if isinstance(changed.attach, Attach):
            yield from find_workload_problems(changed.name, changed.attach, scenario)
    if changed.guest not in (mode.guest, variant.guest):
        yield from (
            f'{key}.guest, in the mode "{mode.name}": {guest_problem}'
            for guest_problem in find_guest_problems(changed.guest)
        )


def _reference_of(variants: Mapping[str, Variant]) -> str:
    """The name of the variant that the others are compared with."""
    return next((name for name, variant in variants.items() if variant.reference), next(iter(variants)))


def _vary(mode: Mode, variants: Mapping[str, Variant]) -> Iterator[Mode]:
    """The mode in each variant. The reference is the first of them."""
    if mode.attach is None:
        yield mode
        return
    # A host setting is for the whole host, VFIO and a storage daemon are for one guest, a qcow2 file is for one QEMU.
    settings = any(variant.settings for variant in variants.values())
    alone = isinstance(mode.layout, Qcow2) or not (isinstance(mode.attach, Attach) and mode.attach.in_qemu)
    # A guest whose CPUs never halt takes them from the others all the time.
    busy = any(variant.guest.over(mode.guest).idle == "poll" for variant in variants.values())
    served = any(variant.attach_changes.get("server", "qemu") != "qemu" for variant in variants.values())
    reference: Mode | None = None
    for name, variant in variants.items():
        changed = _change(mode, name, variant, reference, alternating=settings or alone or served or busy)
        reference = reference or changed
        yield changed


def _change(mode: Mode, name: str, variant: Variant, reference: Mode | None, *, alternating: bool) -> Mode:
    attach = mode.attach
    if isinstance(attach, Attach):
        attach = replace(attach, **variant.attach_changes)
    against = reference.variant.name if reference is not None and reference.variant is not None else None
    return replace(
        mode,
        name=f"{mode.name}-{name}",
        attach=attach,
        guest=variant.guest.over(mode.guest),
        variant=ModeVariant(name, mode.name, against, variant.settings, alternating=alternating),
        base=mode,
        against=reference,
    )


def _rename_arms(scenario: Scenario, names: Mapping[str, str]) -> Scenario:
    """The scenario whose requests name arms by these other names."""
    renamed = {tables.table: tables.rename_arms for tables in list_brought(FeatureTables)}
    requests = (
        replace(request, value=renamed[type(request.value)](request.value, names)) for request in scenario.requests
    )
    return replace(scenario, requests=tuple(requests))


FEATURE = Feature(
    name="variants",
    brings=(
        FeatureTables(
            key="variant",
            table=Variant,
            what="variants",
            name_type=VariantName,
            in_lab=True,
            check_tables=check_tables,
            adapt=adapt,
        ),
    ),
)
