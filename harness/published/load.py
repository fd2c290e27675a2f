"""Reads the published figures that come with virt-overhead, once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from pydantic import ValidationError

from harness.config.problems import describe
from harness.config.toml import read_toml
from harness.errors import ConfigError
from harness.published.schema import Figures, Link

FIGURES = Path(__file__).parent / "figures.toml"
_HINT = "harness/published/schema.py declares every key; if you did not change the file, install virt-overhead again"


@cache
def links() -> Mapping[str, Link]:
    """What each value of a scenario's key `published` selects, by value. ConfigError if the file is damaged."""
    return MappingProxyType(read_figures(FIGURES).links)


def link_names() -> tuple[str, ...]:
    """The values of the key `published`."""
    return tuple(links())


def read_figures(path: Path) -> Figures:
    """The figures in `path`. ConfigError names the file and lists every problem with its key."""
    data = read_toml(path, what="figures", hint=_HINT)
    try:
        return Figures.model_validate(data)
    except ValidationError as error:
        problems = describe(error, data, Figures)
        raise ConfigError("\n".join(f"{path}: {problem}" for problem in problems), hint=_HINT) from None
