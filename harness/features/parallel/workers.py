"""The hooks of pytest-xdist in the controller and in its workers: which worker measures what, progress, outcomes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any, get_args

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from harness.errors import ConfigError
from harness.events import Event, Listener, Progress, Screen
from harness.plugin.engine import Engine
from harness.plugin.options import SCENARIOS
from harness.plugin.session import (
    ENGINE,
    LISTENER,
    PytestScreen,
    engine_of,
    is_worker,
    options_of,
    scenarios_of,
)
from harness.signals import ended_like_ctrl_c


def make_plugin(config: pytest.Config) -> object | None:
    """The hooks of this process of a session; None without pytest-xdist."""
    if not config.pluginmanager.has_plugin("xdist"):
        return None
    return WorkerHooks(config) if is_worker(config) else ControllerHooks(config)


RELAY = "virt_overhead_progress"
"""The key of `workerinput` with the path of the controller's socket."""

_MOST_BYTES = 65536
_EVENTS = {arg.__name__: arg for arg in get_args(Event)}


class Sender:
    """A worker's listener. Progress that cannot be sent is lost: the measurement is more important."""

    def __init__(self, path: str, worker: str) -> None:
        self._path = path
        self._worker = worker
        self.engine: Engine | None = None
        """That of the worker, which knows the runs that it has begun."""

    def __call__(self, event: Event) -> None:
        begun = self.engine.list_begun() if self.engine is not None else []
        message = json.dumps([self._worker, type(event).__name__, asdict(event), begun])
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
        self.begun: dict[str, list[str]] = {}
        """The directories of the runs that each worker has begun."""
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
            worker, name, fields, self.begun[worker] = json.loads(message)
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


def read_outcome(engine: Engine) -> dict[str, Any]:
    """The results that a worker sends to its controller, as plain values."""
    return {
        "runs": [str(path) for path in engine.runs],
        "measured": engine.measured,
        "unavailable": engine.unavailable,
        "late": engine.late,
        "undecided": engine.undecided,
    }


def add_outcome(engine: Engine, outcome: Mapping[str, Any]) -> None:
    """Add the outcome of a worker to the engine of its controller."""
    engine.runs += [Path(run) for run in outcome["runs"]]
    engine.measured += outcome["measured"]
    engine.unavailable |= outcome["unavailable"]
    engine.late += outcome["late"]
    engine.undecided |= outcome["undecided"]


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


class ControllerHooks:
    """The hooks that pytest-xdist calls only in the controller of its workers, and also where there are none."""

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
            add_outcome(engine_of(self._config), outcome)

    @pytest.hookimpl
    def pytest_keyboard_interrupt(self) -> None:
        if self._relay is not None:
            engine_of(self._config).begun_by_workers = [run for runs in self._relay.begun.values() for run in runs]

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


class WorkerHooks:
    """The hooks of pytest in a worker. Its progress goes to the controller, which has a terminal."""

    def __init__(self, config: pytest.Config) -> None:
        # xdist adds both names to the configuration of a worker.
        given: dict[str, Any] = getattr(config, "workerinput")  # noqa: B009
        if RELAY in given:
            listener: Listener = Sender(given[RELAY], given["workerid"])
            config.stash[LISTENER] = listener

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if ENGINE in session.config.stash:
            if isinstance(listener := session.config.stash.get(LISTENER, None), Sender):
                listener.engine = session.config.stash[ENGINE]
            interrupt_once(session.config)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (engine := session.config.stash.get(ENGINE, None)) is not None:
            getattr(session.config, "workeroutput")[OUTCOME] = read_outcome(engine)  # noqa: B009
