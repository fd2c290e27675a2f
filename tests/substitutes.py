"""Substitutes for what touches this machine, in a project of a test whose conftest.py cannot use pytest's monkeypatch.

An assignment does nothing if the code that uses the name has imported it into another module. Here, that is an error.
"""

from __future__ import annotations

import sys
from types import ModuleType

_SUBSTITUTED: list[tuple[ModuleType, str, object]] = []


def substitute(module: ModuleType, **values: object) -> None:
    """Replace these names of a module. Raises AttributeError if the module has no such name."""
    for name, value in values.items():
        _SUBSTITUTED.append((module, name, getattr(module, name)))
        setattr(module, name, value)


def find_bypasses() -> list[str]:
    """The modules of the harness that have imported the original of a substitute, and so do not use the substitute."""
    loaded = [other for name, other in list(sys.modules.items()) if name.partition(".")[0] == "harness"]
    return [
        f"{other.__name__}.{name}"
        for module, name, original in _SUBSTITUTED
        for other in loaded
        if other.__name__ not in (module.__name__, getattr(original, "__module__", None))
        and vars(other).get(name) is original
    ]


def require_no_bypass() -> None:
    """Raises AssertionError if a module of the harness bypasses a substitute. Call it at the end of the session."""
    assert not (bypasses := find_bypasses()), f"not substituted: {', '.join(bypasses)}"
