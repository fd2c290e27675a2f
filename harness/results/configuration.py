"""Are a disk and its guest set up as requested? The request against what was read back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import JsonValue

from harness.model.attach import Attachment
from harness.model.effective import NOTHING, Effective
from harness.model.mode import OPTIONS, Mode
from harness.results.cells import ValidityCheck

_OF_THE_DISK = ("pve_drive",)
"""Settings that are names of the disk."""


def configuration_check(requested: Attachment | Mode, effective: Effective) -> ValidityCheck | None:
    """The requested attachment, or mode, against what hypervisor and guest report. None if nothing was read back.

    Each difference fails the check. The detail names each option that was not reported.
    """
    if effective == NOTHING:
        return None
    found = dict(effective.settings())
    expected = dict(requested.expected.settings())
    compared = {name: value for name, value in expected.items() if name in found}
    differ = [
        f"requested {name} = {_shown(value)}, it is {_shown(found[name])}"
        for name, value in compared.items()
        if found[name] != value
    ]
    proven = {OPTIONS[name] for name in compared}
    unproven = dict.fromkeys(OPTIONS[name] for name in expected if OPTIONS[name] not in proven)
    detail = "; ".join(differ) or f"{len(compared)} settings are as requested"
    if unproven:
        detail += f"; not read back: {', '.join(unproven)}"
    return ValidityCheck("configuration", ok=not differ, detail=detail)


def configuration_checks(
    mode: Mode, effective: Effective, against: Effective, others: Sequence[Effective]
) -> list[ValidityCheck]:
    """The checks of a mode's own guest, of the guest that it is compared with, and of the further guests beside it.

    `effective`, `against` and `others` are what was read back of each. If the reference of a difference is not as
    requested, the difference says nothing.
    """
    found = [(mode, effective, "")]
    if mode.against is not None:
        found.append((mode.against, against, f" of {mode.against.name}"))
    found += [(mode, other, f" of guest {number}") for number, other in enumerate(others, start=2)]
    return [
        replace(check, check=f"{check.check}{whose}")
        for requested, read_back, whose in found
        if requested.attach is not None
        if (check := configuration_check(requested, read_back)) is not None
    ]


def differences(before: Effective, after: Effective) -> tuple[str, ...]:
    """What was read back differently, in words: "qemu_version 10.0.2 -> 10.1.0". Only settings that both have."""
    one, other = dict(before.settings()), dict(after.settings())
    return tuple(
        f"{name} {_shown(value)} -> {_shown(other[name])}"
        for name, value in one.items()
        if name in other and other[name] != value and name not in _OF_THE_DISK
    )


def _shown(value: JsonValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
