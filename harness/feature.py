"""What a feature adds to the kernel, and the features that are installed. The kernel never imports one of them by name.

Each feature is a package of `harness/features`. Its types may be of any package, so they are imported for mypy only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_PACKAGE = "harness.features"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """What one feature adds. Every hook but the name may be left out."""

    name: str
    """The name of its package."""


@cache
def features() -> tuple[Feature, ...]:
    """The features that add something to the kernel, in the order of the list."""
    return tuple(module.FEATURE for module in _load_modules("feature"))


def load_verbs() -> Iterator[Callable[[Any], None]]:
    """For each feature with verbs, the function that adds them to the subparsers of the command line.

    Only `commands.py` of the feature is loaded, so that a help text does not wait for the rest.
    """
    return (module.add_commands for module in _load_modules("commands"))


def _load_modules(name: str) -> Iterator[Any]:
    for feature in import_module(_PACKAGE).NAMES:
        module = f"{_PACKAGE}.{feature}.{name}"
        if find_spec(module) is not None:
            yield import_module(module)
