"""The pytest plugin: translates between pytest's hooks and the engine, and does nothing else."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from harness.analysis import Verdict
from harness.errors import (
    ConfigError,
    HarnessError,
    LabUnavailable,
    NotTried,
    ResultsError,
    SafetyError,
    Unsupported,
)
from harness.events import Events
from harness.model.cell import Cell
from harness.plugin import hooks
from harness.plugin.after import report_failures, write_comparisons
from harness.plugin.engine import Engine
from harness.plugin.options import Options, add_options, read_options
from harness.plugin.project import SCENARIOS, Project, load_scenarios, read_project
from harness.plugin.relay import KEY as RELAY
from harness.plugin.relay import Relay, Sender
from harness.plugin.scheduling import scheduler
from harness.plugin.screen import PytestScreen
from harness.plugin.selection import cells_of, choice_lines, nearest_lines, scenarios_for
from harness.plugin.summary import cell_properties, explain, write_summary
from harness.plugin.together import add_to_history, write_hosts
from harness.progress import Progress
from harness.results import CellRecord, Measurement, ValidityCheck
from harness.results.assemble import Check
from harness.scenario.classes import ForLab
from harness.scenario.scenario import Scenario
from harness.signals import ended_like_ctrl_c

_ENGINE = pytest.StashKey[Engine]()
_PROJECT = pytest.StashKey[Project]()
_OPTIONS = pytest.StashKey[Options]()
_FOR_LAB = pytest.StashKey[ForLab]()
_CELLS = pytest.StashKey[list[Cell]]()
_WORKER = "overhead"


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "cell(scenario, disk, mode, pattern, bs, iodepth, numjobs): what a cell measures, for -m selection",
    )
    if config.pluginmanager.has_plugin("xdist"):
        config.pluginmanager.register(_XdistHooks(config), "virt-overhead-xdist")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Read the user's files before the collection, to report a mistake as one message instead of a failed test."""
    config = session.config
    if hasattr(config, "workerinput") or not _selects_cells(config):
        return
    try:
        _all_cells(config)
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from None


class _XdistHooks:
    """The hooks that pytest-xdist calls only in the controller of its workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._relay: Relay | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LoadScopeScheduling:
        return scheduler(config, log, self._host_of)

    @pytest.hookimpl
    def pytest_configure_node(self, node: Any) -> None:
        if self._relay is None and (reporter := self._config.pluginmanager.get_plugin("terminalreporter")):
            # The controller runs no test, so its output is not captured.
            self._relay = Relay(PytestScreen(reporter, None))
            self._config.add_cleanup(self._relay.close)
        if self._relay is not None:
            node.workerinput[RELAY] = self._relay.path

    @pytest.hookimpl
    def pytest_testnodedown(self, node: Any) -> None:
        if outcome := getattr(node, "workeroutput", {}).get(_WORKER):
            _engine(self._config).add(outcome)

    def _host_of(self, nodeid: str) -> str | None:
        """The host of the cell with this node id. The parameter in a node id begins with the scenario."""
        file, _, parameter = nodeid.partition("[")
        # The name of a disk, which may be the scenario's name, may have hyphens.
        named = [each for name, each in _scenarios(self._config).items() if parameter.startswith(f"{name}-")]
        scenario = max(named, key=lambda each: len(each.name), default=None)
        if scenario is None or Path(file.split("::")[0]).parent.name != SCENARIOS:
            return None
        try:
            # The first disk is always among the disks of the selected cells.
            return _options(self._config).inventory.host_of(scenario.disk).name
        except ConfigError:
            return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cell" not in metafunc.fixturenames:
        return
    cells, files = _all_cells(metafunc.config), _files(metafunc.config)
    marks = [pytest.mark.cell(**cell.facets | {"scenario": files[cell.scenario]}) for cell in cells]
    parameters = [pytest.param(cell, id=cell.id, marks=mark) for cell, mark in zip(cells, marks, strict=True)]
    metafunc.parametrize("cell", parameters)


def pytest_itemcollected(item: pytest.Item) -> None:
    """`-k` finds a cell also by its scenario's file, if the scenario is named after the disk."""
    if (cell := _cell(item)) is not None:
        item.extra_keyword_matches.add(_scenarios(item.config)[cell.scenario].file)


@pytest.hookimpl(tryfirst=True)  # the terminal's implementation of this hook needs the plan
def pytest_collection_finish(session: pytest.Session) -> None:
    cells = [cell for item in session.items if (cell := _cell(item)) is not None]
    if cells:
        try:
            _engine(session.config).select(cells)
        except (ConfigError, ResultsError) as error:
            # A worker cannot end the run. Its cells are skipped one by one with this reason.
            if not hasattr(session.config, "workerinput"):
                raise pytest.UsageError(str(error)) from None
        # A signal such as SIGTERM then takes the guests down in the same way as Ctrl-C.
        stack = ExitStack()
        stack.enter_context(ended_like_ctrl_c())
        session.config.add_cleanup(stack.close)


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    engine, verbose = config.stash.get(_ENGINE, None), config.get_verbosity() > 0
    notes = list(config.stash[_FOR_LAB].notes) if _FOR_LAB in config.stash else []
    if engine is None:
        keyword = config.option.keyword if _CELLS in config.stash and not items else ""
        return [*notes, *(nearest_lines(keyword, _all_cells(config)) if keyword else ())]
    chosen = [engine.scenarios[name] for name in engine.plans]
    lines = choice_lines(engine.options.inventory, chosen) + engine.describe(verbose=verbose)
    return lines + notes if verbose else lines


@pytest.fixture
def record(cell: Cell, request: pytest.FixtureRequest) -> CellRecord:
    """The measured cell. If it cannot be measured, this fixture has the error or the skip, not the test."""
    engine = _engine(request.config)
    found = _measured(engine, cell)
    if isinstance(found, SafetyError):
        request.session.shouldfail = "nothing is written after a safety error"
    if isinstance(found, NotTried) or (
        isinstance(found, Unsupported | LabUnavailable) and not engine.options.require_lab
    ):
        pytest.skip(str(found))
    if isinstance(found, HarnessError):
        pytest.fail(str(found), pytrace=False)
    request.node.user_properties += cell_properties(found)
    if found.skipped and engine.options.require_lab and not engine.left_out_by_limit(cell):
        pytest.fail(found.skipped, pytrace=False)
    if found.skipped:
        pytest.skip(found.skipped)
    if found.verdict is Verdict.VOID and engine.expects_void(cell):
        pytest.xfail(explain(found))
    if found.verdict is Verdict.VOID:
        pytest.fail(explain(found), pytrace=False)
    if found.verdict is Verdict.INCONCLUSIVE and engine.options.inconclusive == "skip":
        pytest.skip(explain(found))
    if found.verdict is Verdict.INCONCLUSIVE:
        pytest.fail(explain(found), pytrace=False)
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Gives a cell that the rounds did not decide its own outcome. It is neither a pass nor an ordinary skip."""
    if report.skipped and ("verdict", str(Verdict.INCONCLUSIVE)) in getattr(report, "user_properties", ()):
        return "inconclusive", "i", "INCONCLUSIVE"
    return None


@pytest.fixture
def verdict(record: CellRecord) -> str:
    """The cell's verdict in words, for the message of a failed test."""
    return explain(record)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    engine = session.config.stash.get(_ENGINE, None)
    if engine is None:
        return
    try:
        engine.close(interrupted=exitstatus == pytest.ExitCode.INTERRUPTED)
    except HarnessError as error:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        for failure in (str(error), *getattr(error, "__notes__", ())):
            sys.stderr.write(f"virt-overhead: at the end of the run: {failure}\n")
    if session.exitstatus == pytest.ExitCode.OK and engine.late:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if session.exitstatus == pytest.ExitCode.OK and engine.unavailable and not engine.measured:
        # Only skips, with exit status 0, would look like a successful run.
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_WORKER] = engine.outcome
    elif exitstatus != pytest.ExitCode.INTERRUPTED and not session.config.option.collectonly:
        report_failures(session, engine)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    engine = config.stash.get(_ENGINE, None)
    if engine is None or hasattr(config, "workerinput"):
        return  # A worker calls this as well, and nobody sees what it writes.
    for path in engine.runs:
        try:
            write_summary(terminalreporter, path, verbose=config.get_verbosity() > 0)
        except ResultsError as error:
            terminalreporter.write_line(str(error), red=True)
    write_hosts(terminalreporter, engine.runs)
    add_to_history(terminalreporter, engine.runs, engine.options.history)
    write_comparisons(terminalreporter, engine)
    if engine.late:
        terminalreporter.section("exceeds, after the correction for all cells of the run", red=True)
        terminalreporter.write_line(", ".join(engine.late))
    for place, why in engine.undecided.items():
        terminalreporter.section(f"nothing was judged on {place}", yellow=True, bold=True)
        terminalreporter.write_line(why)
    if engine.unavailable and not engine.measured:
        places = ", ".join(engine.unavailable)
        terminalreporter.section("nothing was measured", red=True)
        terminalreporter.write_line(f"no cell could be measured on {places}; therefore the exit status is 1")


def _cell(item: pytest.Item) -> Cell | None:
    found = getattr(getattr(item, "callspec", None), "params", {}).get("cell")
    return found if isinstance(found, Cell) else None


def _project(config: pytest.Config) -> Project:
    if _PROJECT not in config.stash:
        config.stash[_PROJECT] = read_project(config)
    return config.stash[_PROJECT]


def _options(config: pytest.Config) -> Options:
    if _OPTIONS not in config.stash:
        config.stash[_OPTIONS] = read_options(config, _project(config).directory)
    return config.stash[_OPTIONS]


def _for_lab(config: pytest.Config) -> ForLab:
    if _FOR_LAB not in config.stash:
        config.stash[_FOR_LAB] = scenarios_for(_options(config), load_scenarios(_project(config).scenarios))
    return config.stash[_FOR_LAB]


def _scenarios(config: pytest.Config) -> Mapping[str, Scenario]:
    return _for_lab(config).scenarios


def _files(config: pytest.Config) -> dict[str, str]:
    """The name of the file of each scenario, which is not its own name if the file asks for a class of disks."""
    return {name: scenario.file for name, scenario in _scenarios(config).items()}


def _all_cells(config: pytest.Config) -> list[Cell]:
    if _CELLS not in config.stash:
        config.stash[_CELLS] = cells_of(_options(config), _for_lab(config))
    return config.stash[_CELLS]


def _selects_cells(config: pytest.Config) -> bool:
    """Whether the command line selects the scenarios. If not, the lab file need not be valid."""
    scenarios = config.rootpath / SCENARIOS
    requested = [Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args]
    return any(path.is_relative_to(scenarios) or scenarios.is_relative_to(path) for path in requested)


def _engine(config: pytest.Config) -> Engine:
    if _ENGINE not in config.stash:
        config.stash[_ENGINE] = Engine(_options(config), _scenarios(config), _events(config), _checks(config))
    return config.stash[_ENGINE]


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


def _measured(engine: Engine, cell: Cell) -> CellRecord | HarnessError:
    # Returned as a value. Then pytest shows only the message, and not the exception that was being handled.
    try:
        return engine.record(cell)
    except HarnessError as error:
        return error


__all__: Sequence[str] = ("record", "verdict")
