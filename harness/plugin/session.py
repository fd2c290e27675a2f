"""A pytest session: its scenarios, cells and engine, made when first needed; its terminal; its hooks for users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

import pytest
from _pytest.capture import CaptureManager

from harness.events import Events, Listener, Progress
from harness.model.mode import Cell
from harness.plugin.engine import Engine
from harness.plugin.options import (
    SCENARIOS,
    Options,
    Project,
    cells_of,
    load_scenarios,
    read_options,
    read_project,
    scenarios_for,
)
from harness.scenario.scenario import ForLab, Scenario
from harness.terminal import CleanStream, clean, one_line

if TYPE_CHECKING:
    from harness.results import Measurement, ValidityCheck
    from harness.results.assemble import Check


class HookSpecs:
    """What users and other plugins may add to a run."""

    @pytest.hookspec
    def pytest_virt_overhead_checks(self, cell: Cell, measurements: Sequence[Measurement]) -> Iterable[ValidityCheck]:
        """Checks of the measurements of one cell. One that is not ok makes the cell void, like one of the harness.

        `measurements` are those of all arms and rounds so far, in the order of time. The hook is called again after
        later rounds. It must not change anything, and needs no lab: it works on what is stored.
        """
        raise NotImplementedError


def clean_output(reporter: pytest.TerminalReporter) -> None:
    """Clean all that pytest prints, for example the messages of failed tests. pytest's own colours stay."""
    writer = reporter._tw
    if not isinstance(writer._file, CleanStream):
        writer._file = cast("TextIO", CleanStream(writer._file, styles=writer.hasmarkup, rewrites=reporter.isatty()))


def explain_interruption(config: pytest.Config, engine: Engine | None) -> None:
    """Let pytest say in one line what an interrupted run stored and how to go on, instead of where its code was."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    crash = getattr(getattr(reporter, "_keyboardinterrupt_memo", None), "reprcrash", None)
    if crash is not None and CELLS in config.stash and not config.option.fulltrace:
        runs = engine.list_begun() if engine else []
        stored = f"what was measured is stored; to go on, add to the same command: --resume={' or '.join(runs)}"
        crash.message = f"interrupted: {stored if runs else 'nothing was measured yet'}"


class PytestScreen:
    """A screen on the terminal reporter. `capture` is None if capturing is off (`-s`)."""

    def __init__(self, reporter: pytest.TerminalReporter, capture: CaptureManager | None) -> None:
        self._reporter = reporter
        self._capture = capture

    def isatty(self) -> bool:
        return bool(self._reporter.isatty())

    def write_line(self, line: str) -> None:
        with self._uncaptured():
            self._reporter.write_line(clean(line))

    def rewrite(self, line: str, *, erase: bool) -> None:
        with self._uncaptured():
            self._reporter.rewrite(clean(one_line(line)), erase=erase)

    @contextmanager
    def _uncaptured(self) -> Iterator[None]:
        if self._capture is None:
            yield
        else:
            with self._capture.global_and_fixture_disabled():
                yield


ENGINE = pytest.StashKey[Engine]()
_PROJECT = pytest.StashKey[Project]()
_OPTIONS = pytest.StashKey[Options]()
FOR_LAB = pytest.StashKey[ForLab]()
CELLS = pytest.StashKey[list[Cell]]()
LISTENER = pytest.StashKey[Listener]()
"""What shows the progress if this process has no terminal: a plugin of a feature sets it."""


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is a worker of pytest-xdist. Then its controller talks to the user."""
    return hasattr(config, "workerinput")


def project_of(config: pytest.Config) -> Project:
    if _PROJECT not in config.stash:
        config.stash[_PROJECT] = read_project(config)
    return config.stash[_PROJECT]


def options_of(config: pytest.Config) -> Options:
    if _OPTIONS not in config.stash:
        config.stash[_OPTIONS] = read_options(config, project_of(config).directory)
    return config.stash[_OPTIONS]


def _for_lab(config: pytest.Config) -> ForLab:
    if FOR_LAB not in config.stash:
        config.stash[FOR_LAB] = scenarios_for(options_of(config), load_scenarios(project_of(config).scenarios))
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

    def collect_checks(cell: Cell, measurements: Sequence[Measurement]) -> list[ValidityCheck]:
        answers = config.hook.pytest_virt_overhead_checks(cell=cell, measurements=measurements)
        return [check for answer in answers for check in answer]

    return collect_checks


def _events(config: pytest.Config) -> Events:
    if LISTENER in config.stash:
        return Events(config.stash[LISTENER])
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return Events()
    return Events(Progress(PytestScreen(reporter, config.pluginmanager.get_plugin("capturemanager"))))
