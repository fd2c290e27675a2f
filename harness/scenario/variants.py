"""Makes each mode of a scenario in each of its variants, and finds what a variant cannot change. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.config.names import LONGEST_NAME
from harness.model.attach import Attach
from harness.model.guest import guest_problems
from harness.model.layout import Qcow2
from harness.model.mode import Mode
from harness.model.variant import ModeVariant, Variant
from harness.scenario.legality import workload_problems
from harness.scenario.mode_legality import mode_problems
from harness.scenario.scenario import Scenario


def in_variants(scenario: Scenario, variants: Sequence[Variant]) -> Scenario:
    """The scenario with each of its modes in each variant: `lvm` becomes `lvm-old` and `lvm-new`.

    The mode `host` stays, because no guest runs in it. The variants of a mode follow each other, the reference first.
    A decomposition with the guest of `lvm` is that of the reference.
    """
    if not variants:
        return scenario
    modes = tuple(made for mode in scenario.modes for made in _made(mode, variants))
    renamed = {f"guest:{mode.name}": f"guest:{mode.name}-{variants[0].name}" for mode in scenario.modes}
    decompositions = tuple(
        replace(decomposition, steps=tuple(renamed.get(step, step) for step in decomposition.steps))
        for decomposition in scenario.decompositions
    )
    return replace(scenario, modes=modes, variants=tuple(variants), decompositions=decompositions)


def legality_problems(scenario: Scenario, variants: Sequence[Variant]) -> Iterator[str]:
    """What the variants cannot change in the modes of this scenario, which has none yet."""
    names = {mode.name for mode in scenario.modes}
    with_settings = [variant.name for variant in variants if variant.settings]
    for mode in scenario.modes:
        if mode.attach is None:
            continue
        if mode.runs_with_others:
            if variants:
                of, key = mode.attached.name, "backup" if mode.backup else "neighbour" if mode.neighbour else "guests"
                yield (
                    f"variant.{variants[0].name}: conflicts with mode.{of}.{key}, because the guests of variants use "
                    "the same volume; allowed: another scenario for one of them"
                )
            continue
        for variant in variants:
            key, name = f"variant.{variant.name}", f"{mode.name}-{variant.name}"
            if name in names:
                yield f'{key}: "{mode.name}" in this variant would have the name of the mode {name}; rename one of them'
            if len(name) > LONGEST_NAME:
                yield f'{key}: the name "{name}" has {len(name)} characters; allowed: at most {LONGEST_NAME}'
            if variant.attach and not isinstance(mode.attach, Attach):
                yield (
                    f'{key}.attach.{variant.attach[0][0]}: conflicts with the mode "{mode.name}", which passes the '
                    "whole disk through; allowed: no attach in the variants, or another scenario for this mode"
                )
                continue
            yield from _of_mode(mode, variant, scenario, key)
    if with_settings and not any(mode.attach is not None for mode in scenario.modes):
        yield f"variant.{with_settings[0]}: conflicts with modes, which have no guest; allowed: a mode with a guest"


def _of_mode(mode: Mode, variant: Variant, scenario: Scenario, key: str) -> Iterator[str]:
    changed = _in(mode, variant, None, alternating=False)
    if changed.attach is not None and changed.attach != mode.attach:
        given = {f"attach.{name}" for name, _ in variant.attach}
        problems = mode_problems(mode.layout, changed.attach, given)
        yield from (f'{key}, in the mode "{mode.name}": {problem}' for problem in problems)
        if isinstance(changed.attach, Attach):
            yield from workload_problems(changed.name, changed.attach, scenario)
    if changed.guest not in (mode.guest, variant.guest):
        yield from (
            f'{key}.guest, in the mode "{mode.name}": {guest_problem}'
            for guest_problem in guest_problems(changed.guest)
        )


def _made(mode: Mode, variants: Sequence[Variant]) -> Iterator[Mode]:
    if mode.attach is None:
        yield mode
        return
    # A host setting is for the whole host, VFIO and a storage daemon are for one guest, a qcow2 file is for one QEMU.
    settings = any(variant.settings for variant in variants)
    alone = isinstance(mode.layout, Qcow2) or not (isinstance(mode.attach, Attach) and mode.attach.in_qemu)
    served = any(dict(variant.attach).get("server", "qemu") != "qemu" for variant in variants)
    alternating = settings or alone or served
    reference = _in(mode, variants[0], None, alternating=alternating)
    yield reference
    for variant in variants[1:]:
        yield _in(mode, variant, reference, alternating=alternating)


def _in(mode: Mode, variant: Variant, reference: Mode | None, *, alternating: bool) -> Mode:
    attach = mode.attach
    if isinstance(attach, Attach):
        attach = replace(attach, **dict(variant.attach))
    against = reference.variant.name if reference is not None and reference.variant is not None else None
    return replace(
        mode,
        name=f"{mode.name}-{variant.name}",
        attach=attach,
        guest=variant.guest.over(mode.guest),
        variant=ModeVariant(variant.name, mode.name, against, variant.settings, alternating=alternating),
        base=mode,
        against=reference,
    )
