"""The pytest plugin: translates between pytest's hooks and the engine, and does nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from harness.analysis import Verdict
from harness.errors import ConfigError, HarnessError, LabUnavailable, NotTried, ResultsError, SafetyError, Unsupported
from harness.feature import features
from harness.lab.lab_file import LAB_FILE, find_lab
from harness.model.mode import Cell
from harness.plugin import options
from harness.plugin.engine import Engine, cell_properties, explain, write_summary
from harness.plugin.session import (
    CELLS,
    ENGINE,
    FOR_LAB,
    HookSpecs,
    all_cells,
    clean_output,
    engine_of,
    explain_interruption,
    files_of,
    is_worker,
    project_of,
    scenarios_of,
    selects_cells,
)
from harness.signals import cleaning_up, ended_like_ctrl_c, was_interrupted
from harness.terminal import write_error

if TYPE_CHECKING:
    from harness.results import CellRecord


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(HookSpecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


@pytest.hookimpl(trylast=True)  # after the terminal's reporter exists
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "cell(scenario, disk, mode, pattern, bs, iodepth, numjobs): what a cell measures, for -m selection",
    )
    if (reporter := config.pluginmanager.get_plugin("terminalreporter")) is not None:
        clean_output(reporter)
    for feature in features():
        if (plugin := feature.make_plugin(config)) is not None:
            config.pluginmanager.register(plugin, f"virt-overhead-{feature.name}")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Read the user's files before the collection, to report a mistake as one message instead of a failed test."""
    config = session.config
    if is_worker(config):
        return
    try:
        options.check_selection(config, project_of(config).scenarios)
        if selects_cells(config):
            all_cells(config)
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_report_header(config: pytest.Config) -> str | None:
    if CELLS not in config.stash:
        return None
    embedded = f"the embedded lab, as neither --lab nor {LAB_FILE} in this directory names another"
    return f"lab: {find_lab(config.getoption('--lab'), project_of(config).directory) or embedded}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cell" not in metafunc.fixturenames:
        return
    cells, files = all_cells(metafunc.config), files_of(metafunc.config)
    marks = [pytest.mark.cell(**cell.facets | {"scenario": files[cell.scenario]}) for cell in cells]
    parameters = [pytest.param(cell, id=cell.id, marks=mark) for cell, mark in zip(cells, marks, strict=True)]
    metafunc.parametrize("cell", parameters)


def pytest_itemcollected(item: pytest.Item) -> None:
    """`-k` finds a cell also by its scenario's file, if the scenario is named after the disk."""
    if (cell := _cell(item)) is not None:
        item.extra_keyword_matches.add(scenarios_of(item.config)[cell.scenario].file)


@pytest.hookimpl(trylast=True)  # after pytest has selected items by -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.keyword and (cell_of := {item: cell for item in items if (cell := _cell(item)) is not None}):
        names = [name for cell in all_cells(config) for name in (cell.scenario, cell.disk)]
        options.deselect_across(config, items, cell_of, names)


@pytest.hookimpl(tryfirst=True)  # the terminal's implementation of this hook needs the plan
def pytest_collection_finish(session: pytest.Session) -> None:
    cells = [cell for item in session.items if (cell := _cell(item)) is not None]
    if cells:
        try:
            engine_of(session.config).select(cells)
        except (ConfigError, ResultsError) as error:
            # A worker cannot end the run. Its cells are skipped one by one with this reason.
            if not is_worker(session.config):
                raise pytest.UsageError(str(error)) from None
        # A signal such as SIGTERM then takes the guests down in the same way as Ctrl-C.
        stack = ExitStack()
        stack.enter_context(ended_like_ctrl_c())
        session.config.add_cleanup(stack.close)


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    engine, verbose = config.stash.get(ENGINE, None), config.get_verbosity() > 0
    notes = list(config.stash[FOR_LAB].notes) if FOR_LAB in config.stash else []
    if engine is None:
        is_empty = CELLS in config.stash and not items and bool(config.option.keyword or config.option.markexpr)
        return options.explain_empty(config, project_of(config).directory, notes, all_cells(config)) if is_empty else []
    chosen = [engine.scenarios[name] for name in engine.plans]
    lines = options.choice_lines(engine.options.inventory, chosen) + engine.describe(verbose=verbose)
    return lines + notes if verbose else lines


@pytest.fixture
def record(cell: Cell, request: pytest.FixtureRequest) -> CellRecord:
    """The measured cell. If it cannot be measured, this fixture has the error or the skip, not the test."""
    engine = engine_of(request.config)
    cell_record = _measured(engine, cell)
    if isinstance(cell_record, SafetyError):
        request.session.shouldfail = "nothing is written after a safety error"
    if isinstance(cell_record, NotTried) or (
        isinstance(cell_record, Unsupported | LabUnavailable) and not engine.options.require_lab
    ):
        pytest.skip(str(cell_record))
    if isinstance(cell_record, HarnessError):
        pytest.fail(str(cell_record), pytrace=False)
    request.node.user_properties += cell_properties(cell_record)
    if cell_record.skipped and engine.options.require_lab and not engine.left_out_by_limit(cell):
        pytest.fail(cell_record.skipped, pytrace=False)
    if cell_record.skipped:
        pytest.skip(cell_record.skipped)
    if cell_record.verdict is Verdict.VOID:
        pytest.fail(explain(cell_record), pytrace=False)
    if cell_record.verdict is Verdict.INCONCLUSIVE and engine.options.inconclusive == "skip":
        pytest.skip(explain(cell_record))
    if cell_record.verdict is Verdict.INCONCLUSIVE:
        pytest.fail(explain(cell_record), pytrace=False)
    return cell_record


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


def pytest_keyboard_interrupt(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Say what an interrupted run could not remove: pytest shows no notes of a KeyboardInterrupt."""
    for note in getattr(excinfo.value, "__notes__", ()):
        write_error(f"virt-overhead: {note}")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    engine = session.config.stash.get(ENGINE, None)
    explain_interruption(session.config, engine)
    if engine is None:
        return
    with cleaning_up():
        try:
            engine.close(interrupted=exitstatus == pytest.ExitCode.INTERRUPTED)
        except HarnessError as error:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            for failure in (str(error), *getattr(error, "__notes__", ())):
                write_error(f"virt-overhead: at the end of the run: {failure}")
        if was_interrupted():
            session.exitstatus = pytest.ExitCode.INTERRUPTED
    if session.exitstatus == pytest.ExitCode.OK and engine.late:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if session.exitstatus == pytest.ExitCode.OK and engine.unavailable and not engine.measured:
        # Only skips, with exit status 0, would look like a successful run.
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if exitstatus != pytest.ExitCode.INTERRUPTED and not (
        is_worker(session.config) or session.config.option.collectonly
    ):
        report_failures(session, engine)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    engine = config.stash.get(ENGINE, None)
    if engine is None or is_worker(config):
        return  # A worker calls this as well, and nobody sees what it writes.
    for path in engine.runs:
        try:
            write_summary(terminalreporter, path, verbose=config.get_verbosity() > 0)
        except ResultsError as error:
            terminalreporter.write_line(str(error), red=True)
    for feature in features():
        feature.print_runs(engine.session_runs, terminalreporter)
    for option, value in engine.options.of_features:
        option.print(value, engine.session_runs, terminalreporter)
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
    parameter = getattr(getattr(item, "callspec", None), "params", {}).get("cell")
    return parameter if isinstance(parameter, Cell) else None


def _measured(engine: Engine, cell: Cell) -> CellRecord | HarnessError:
    # Returned as a value. Then pytest shows only the message, and not the exception that was being handled.
    try:
        return engine.record(cell)
    except HarnessError as error:
        return error


__all__: Sequence[str] = ("record", "verdict")


_TEST = f"{options.SCENARIOS}/test_overhead.py"


def report_failures(session: pytest.Session, engine: Engine) -> None:
    """Report a failed test for each thing that fails only now: --require-verdict, and the options of features."""
    failures = [*_without_verdict(engine), *_judge_by_features(engine)]
    for name, why in failures:
        failed = pytest.TestReport(
            nodeid=f"{_TEST}::{name}",
            location=(_TEST, None, name),
            keywords={},
            outcome="failed",
            longrepr=why,
            when="call",
        )
        session.config.hook.pytest_runtest_logreport(report=failed)
    if failures and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _judge_by_features(engine: Engine) -> Iterator[tuple[str, str]]:
    for option, value in engine.options.of_features:
        yield from option.judge(value, engine.session_runs)


def _without_verdict(engine: Engine) -> Iterator[tuple[str, str]]:
    for place, why in engine.without_verdict.items() if engine.options.require_verdict else ():
        yield f"verdict[{place}]", f"{options.REQUIRE_VERDICT}: nothing was judged on {place}: {why}"
