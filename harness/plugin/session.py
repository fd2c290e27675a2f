"""What the plugin knows of a pytest session: its options, scenarios, cells and engine, each made when first needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from harness.events import Events
from harness.model.cell import Cell
from harness.plugin.engine import Engine
from harness.plugin.options import SCENARIOS, Options, Project, load_scenarios, read_options, read_project
from harness.plugin.screen import KEY as RELAY
from harness.plugin.screen import PytestScreen, Sender
from harness.plugin.selection import cells_of, scenarios_for
from harness.progress import Progress
from harness.results import Measurement, ValidityCheck
from harness.results.assemble import Check
from harness.scenario.classes import ForLab
from harness.scenario.scenario import Scenario

ENGINE = pytest.StashKey[Engine]()
_PROJECT = pytest.StashKey[Project]()
_OPTIONS = pytest.StashKey[Options]()
FOR_LAB = pytest.StashKey[ForLab]()
CELLS = pytest.StashKey[list[Cell]]()


def _project(config: pytest.Config) -> Project:
    if _PROJECT not in config.stash:
        config.stash[_PROJECT] = read_project(config)
    return config.stash[_PROJECT]


def options_of(config: pytest.Config) -> Options:
    if _OPTIONS not in config.stash:
        config.stash[_OPTIONS] = read_options(config, _project(config).directory)
    return config.stash[_OPTIONS]


def _for_lab(config: pytest.Config) -> ForLab:
    if FOR_LAB not in config.stash:
        config.stash[FOR_LAB] = scenarios_for(options_of(config), load_scenarios(_project(config).scenarios))
    return config.stash[FOR_LAB]


def scenarios_of(config: pytest.Config) -> Mapping[str, Scenario]:
    return _for_lab(config).scenarios


def files_of(config: pytest.Config) -> dict[str, str]:
    """The name of the file of each scenario, which is not its own name if the file asks for a class of disks."""
    return {name: scenario.file for name, scenario in scenarios_of(config).items()}


def all_cells(config: pytest.Config) -> list[Cell]:
    if CELLS not in config.stash:
        config.stash[CELLS] = cells_of(options_of(config), _for_lab(config))
    return config.stash[CELLS]


def selects_cells(config: pytest.Config) -> bool:
    """Whether the command line selects the scenarios. If not, the lab file need not be valid."""
    scenarios = config.rootpath / SCENARIOS
    requested = [Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args]
    return any(path.is_relative_to(scenarios) or scenarios.is_relative_to(path) for path in requested)


def engine_of(config: pytest.Config) -> Engine:
    if ENGINE not in config.stash:
        config.stash[ENGINE] = Engine(options_of(config), scenarios_of(config), _events(config), _checks(config))
    return config.stash[ENGINE]


def _checks(config: pytest.Config) -> Check:
    """The checks of users and other plugins, as one."""

    def found(cell: Cell, measurements: Sequence[Measurement]) -> list[ValidityCheck]:
        answers = config.hook.pytest_virt_overhead_checks(cell=cell, measurements=measurements)
        return [check for answer in answers for check in answer]

    return found


def _events(config: pytest.Config) -> Events:
    if hasattr(config, "workerinput"):
        path = config.workerinput.get(RELAY)
        return Events(Sender(path, config.workerinput["workerid"])) if path else Events()
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return Events()
    return Events(Progress(PytestScreen(reporter, config.pluginmanager.get_plugin("capturemanager"))))
