"""The user's project: the directory of lab.toml, reports/ and pyproject.toml, and the scenarios to select from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.config.problems import describe
from harness.config.toml import read_toml
from harness.errors import ConfigError
from harness.scenario.load import find_scenarios, load_scenario
from harness.scenario.scenario import Scenario
from harness.shipped import shipped

SCENARIOS = "scenarios"
"""The name of the directory with scenario files and the test body, in a checkout and in the package."""

_TABLE = "virt-overhead"
_HINT = "docs/install.md explains the table [tool.virt-overhead]"


class _Table(BaseModel):
    """The table `[tool.virt-overhead]` of pyproject.toml."""

    model_config = ConfigDict(extra="forbid", strict=True)

    scenarios: list[str] = Field(default_factory=list)
    """Directories with further scenarios, relative to pyproject.toml."""


@dataclass(frozen=True, slots=True)
class Project:
    """`directory` is the user's. `scenarios` are the directories with scenario files, each once."""

    directory: Path
    scenarios: tuple[Path, ...]


def read_project(config: pytest.Config) -> Project:
    """The project of this run: `--project`, else pytest's rootdir. Raises ConfigError for a wrong pyproject.toml.

    The scenarios are the project's own `scenarios/`, else those that come with the harness; and those that
    `--scenarios` or pyproject.toml adds. A project that adds its own `scenarios/` has the shipped ones, too.
    """
    directory = config.getoption("--project") or config.rootpath
    added = [*_of_table(directory), *(Path(each).absolute() for each in config.getoption("--scenarios") or ())]
    own = config.rootpath / SCENARIOS
    base = own if own.is_dir() and own.resolve() not in {each.resolve() for each in added} else shipped("scenarios")
    return Project(directory, tuple({each.resolve(): each for each in (base, *added)}.values()))


def load_scenarios(directories: Iterable[Path]) -> dict[str, Scenario]:
    """The scenarios in these directories by name. Raises ConfigError if one is not valid, or two have the same name."""
    found: dict[str, Path] = {}
    for directory in directories:
        for path in find_scenarios(directory):
            if other := found.get(path.stem):
                raise ConfigError(
                    f"{path}: {other} is a scenario of the same name", hint="rename your file: its name is part of ids"
                )
            found[path.stem] = path
    return {name: load_scenario(path) for name, path in found.items()}


def _of_table(directory: Path) -> list[Path]:
    path = directory / "pyproject.toml"
    if not path.is_file():
        return []
    data = read_toml(path, what="project", hint=_HINT).get("tool", {}).get(_TABLE, {})
    try:
        table = _Table.model_validate(data)
    except ValidationError as error:
        problems = "\n".join(f"{path}: [tool.{_TABLE}] {problem}" for problem in describe(error, data, _Table))
        raise ConfigError(problems, hint=_HINT) from None
    return [directory / scenario for scenario in table.scenarios]
