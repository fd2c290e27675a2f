"""A finding about a host: a value, whether it is fine for measuring, why it matters, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

NOT_AVAILABLE = "not available here"


class Level(StrEnum):
    """How serious a finding is for measurements on the host in its present state."""

    OK = "ok"
    UNKNOWN = "unknown"
    """The host does not report it: containers and virtual machines lack much of sysfs."""
    ADVICE = "advice"
    """Figures become noisier, slower or harder to compare, but not wrong."""
    PROBLEM = "problem"
    """Figures measured now would be wrong, or cannot be measured."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A file of sysfs on the host and the word to write to it.

    `resets` are files that the kernel resets when `path` is written. Those that exist are restored after `path`.
    """

    path: str
    value: str
    resets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of one host.

    `advice` is a command to run on the host, or a text if there is no command. It is empty if nothing needs to be done.
    `settings` are what `--tune` would write: safe while guests run, and reversible.
    """

    check: str
    value: str
    level: Level
    why: str
    advice: str = ""
    settings: tuple[Setting, ...] = ()


def not_available(check: str, why: str) -> Finding:
    """The finding if the host does not report the value."""
    return Finding(check, NOT_AVAILABLE, Level.UNKNOWN, why)


def as_records(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """The findings as plain JSON values, for `--json` and for the stored run: check, value, level, advice."""
    return [
        {"check": finding.check, "value": finding.value, "level": finding.level.value, "advice": finding.advice}
        for finding in findings
    ]


def list_settings(findings: Iterable[Finding]) -> list[Setting]:
    """The settings that the findings request."""
    return [setting for finding in findings for setting in finding.settings]


def has_problem(findings: Sequence[Finding]) -> bool:
    """Whether measurements on this host would give wrong figures, or none."""
    return any(finding.level is Level.PROBLEM for finding in findings)
