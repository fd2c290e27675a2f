"""What was found of a host: a value, whether it is fine for measuring, why it matters, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

NOT_AVAILABLE = "not available here"


class Level(StrEnum):
    """How much a finding speaks against measuring on the host as it is now."""

    OK = "ok"
    UNKNOWN = "unknown"
    """The host does not tell: containers and virtual machines lack much of sysfs."""
    ADVICE = "advice"
    """Figures get noisier, slower or harder to compare; they are not wrong."""
    PROBLEM = "problem"
    """Figures measured now would be wrong, or cannot be had."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A file of sysfs on the host and the word to write to it.

    `resets` are files that the kernel sets anew when `path` is written; those that are there are put back after it.
    """

    path: str
    value: str
    resets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of one host.

    `advice` is a command to run on the host where there is one, else words; empty where all is well. `settings` are
    what `--tune` would write: safe while guests run, and reversible.
    """

    check: str
    value: str
    level: Level
    why: str
    advice: str = ""
    settings: tuple[Setting, ...] = ()


def not_available(check: str, why: str) -> Finding:
    """The finding where the host does not tell."""
    return Finding(check, NOT_AVAILABLE, Level.UNKNOWN, why)


def as_records(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """The findings as plain JSON values, for `--json` and for what is stored of a run: check, value, level, advice."""
    return [
        {"check": each.check, "value": each.value, "level": each.level.value, "advice": each.advice}
        for each in findings
    ]


def has_problem(findings: Sequence[Finding]) -> bool:
    """Whether measuring on this host now would give wrong figures, or none."""
    return any(each.level is Level.PROBLEM for each in findings)
