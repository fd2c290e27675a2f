"""A pytest session: its scenarios, cells and engine, made when first needed; its terminal; workers of pytest-xdist."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TextIO, cast, get_args

import pytest
from _pytest.capture import CaptureManager
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from harness.errors import ConfigError
from harness.events import Event, Events, Listener
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
from harness.progress import Progress, Screen
from harness.scenario.scenario import ForLab, Scenario
from harness.signals import ended_like_ctrl_c
from harness.terminal import CleanStream, clean, one_line

if TYPE_CHECKING:
    from harness.results import Measurement, ValidityCheck
    from harness.results.assemble import Check


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
        # The runs of pytest-xdist's workers are not known here.
        runs = ["RUN"] if config.pluginmanager.has_plugin("dsession") else engine.list_begun() if engine else []
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


RELAY = "virt_overhead_progress"
"""The key of `workerinput` with the path of the controller's socket."""

_MOST_BYTES = 65536
_EVENTS = {arg.__name__: arg for arg in get_args(Event)}


class Sender:
    """A worker's listener. Progress that cannot be sent is lost: the measurement is more important."""

    def __init__(self, path: str, worker: str) -> None:
        self._path = path
        self._worker = worker

    def __call__(self, event: Event) -> None:
        message = json.dumps([self._worker, type(event).__name__, asdict(event)])
        _send(self._path, message.encode())


def _send(path: str, message: bytes) -> None:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.settimeout(0.1)
        out.sendto(message, path)


class Relay:
    """The controller's side: each worker's events, with its name before them, on one screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._progress: dict[str, Listener] = {}
        self._directory = tempfile.mkdtemp(prefix="virt-overhead-")
        self.path = str(Path(self._directory, "progress"))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Show what has arrived, and end."""
        _send(self.path, b"")
        self._thread.join(timeout=5)
        self._socket.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _serve(self) -> None:
        while message := self._socket.recv(_MOST_BYTES):
            worker, name, fields = json.loads(message)
            if worker not in self._progress:
                self._progress[worker] = Progress(_Named(self._screen, worker))
            self._progress[worker](_EVENTS[name](**fields))


class _Named:
    """A screen whose lines begin with a name."""

    def __init__(self, screen: Screen, name: str) -> None:
        self._screen = screen
        self._name = name
        self.isatty: Callable[[], bool] = screen.isatty

    def write_line(self, line: str) -> None:
        self._screen.write_line(f"  [{self._name}]{line}")

    def rewrite(self, line: str, *, erase: bool) -> None:
        self._screen.rewrite(f"  [{self._name}]{line}" if line else line, erase=erase)


ENGINE = pytest.StashKey[Engine]()
_PROJECT = pytest.StashKey[Project]()
_OPTIONS = pytest.StashKey[Options]()
FOR_LAB = pytest.StashKey[ForLab]()
CELLS = pytest.StashKey[list[Cell]]()


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
    if hasattr(config, "workerinput"):
        path = config.workerinput.get(RELAY)
        return Events(Sender(path, config.workerinput["workerid"])) if path else Events()
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return Events()
    return Events(Progress(PytestScreen(reporter, config.pluginmanager.get_plugin("capturemanager"))))


class _Collection(list[str]):
    """The ids of a worker's tests. It finds each at once: xdist looks every test up, and a lab may have 100,000."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(ids)
        self._places = {nodeid: place for place, nodeid in enumerate(ids)}

    def index(self, nodeid: str, *_: Any) -> int:
        return self._places[nodeid]


class HostScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives tests for which `host_of` returns the same name to one worker.

    All other tests are distributed as `--dist` says: by file, by module or class, else one by one. This replaces
    `--dist loadgroup`: with pytest 9.2, xdist 3.8 no longer finds the group of an item.
    """

    def __init__(self, config: pytest.Config, log: Producer, host_of: Callable[[str], str | None]) -> None:
        super().__init__(config, log)
        self._host_of = cache(host_of)

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        if node in self.registered_collections:
            self.registered_collections[node] = _Collection(collection)

    def _split_scope(self, nodeid: str) -> str:
        if host := self._host_of(nodeid):
            return host
        match self.config.getoption("dist"):
            case "loadfile":
                return nodeid.partition("::")[0]
            case "loadscope":
                return str(super()._split_scope(nodeid))
        return nodeid


OUTCOME = "overhead"
"""The key of a worker's output with the outcome of its engine."""


_END_SECONDS = 900.0
"""How long the controller waits for workers that remove what they created. Each removal has a deadline."""
_FINISH_SECONDS = 5.0
"""As in execnet: the time in which a worker that has finished ends by itself."""


def interrupt_once(config: pytest.Config) -> None:
    """When the controller ends, interrupt this worker like Ctrl-C, and wait until it has removed what it created.

    execnet itself kills a worker 10 s after that.
    """
    workers = (
        plugin
        for plugin in config.pluginmanager.get_plugins()
        if hasattr(plugin, "channel") and hasattr(plugin, "torun")
    )
    if (worker := next(workers, None)) is None:
        return
    gateway = worker.channel.gateway

    def end() -> None:
        gateway._execpool.trigger_shutdown()
        if not gateway._execpool.waitall(_FINISH_SECONDS):
            os.kill(os.getpid(), signal.SIGINT)
            gateway._execpool.waitall(_END_SECONDS)
            os._exit(1)

    gateway._terminate_execution = end


class XdistHooks:
    """The hooks that pytest-xdist calls only in the controller of its workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._relay: Relay | None = None
        self._handles_signals = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LoadScopeScheduling:
        return HostScheduling(config, log, self._host_of)

    @pytest.hookimpl
    def pytest_configure_node(self, node: Any) -> None:
        if not self._handles_signals:
            self._handles_signals = True
            stack = ExitStack()
            stack.enter_context(ended_like_ctrl_c())
            self._config.add_cleanup(stack.close)
            # After this time, xdist kills a worker; by default after 10 s.
            node.nodemanager.EXIT_TIMEOUT = _END_SECONDS
        if self._relay is None and (reporter := self._config.pluginmanager.get_plugin("terminalreporter")):
            # The controller runs no test, so its output is not captured.
            self._relay = Relay(PytestScreen(reporter, None))
            self._config.add_cleanup(self._relay.close)
        if self._relay is not None:
            node.workerinput[RELAY] = self._relay.path

    @pytest.hookimpl
    def pytest_testnodedown(self, node: Any) -> None:
        if outcome := getattr(node, "workeroutput", {}).get(OUTCOME):
            engine_of(self._config).add(outcome)

    def _host_of(self, nodeid: str) -> str | None:
        """The host of the cell with this node id. The parameter in a node id begins with the scenario."""
        file, _, parameter = nodeid.partition("[")
        # The name of a disk, which may be the scenario's name, may have hyphens.
        named = [scenario for name, scenario in scenarios_of(self._config).items() if parameter.startswith(f"{name}-")]
        scenario = max(named, key=lambda scenario: len(scenario.name), default=None)
        if scenario is None or Path(file.split("::")[0]).parent.name != SCENARIOS:
            return None
        try:
            # The first disk is always among the disks of the selected cells.
            return options_of(self._config).inventory.host_of(scenario.disk).name
        except ConfigError:
            return None
