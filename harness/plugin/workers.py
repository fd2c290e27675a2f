"""The controller of pytest-xdist's workers: which tests each of them gets, and what they tell each other."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from harness.errors import ConfigError
from harness.plugin.options import SCENARIOS
from harness.plugin.screen import KEY as RELAY
from harness.plugin.screen import PytestScreen, Relay
from harness.plugin.session import engine_of, options_of, scenarios_of
from harness.signals import ended_like_ctrl_c


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


def scheduler(config: pytest.Config, log: Any, host_of: Callable[[str], str | None]) -> HostScheduling:
    return HostScheduling(config, log, host_of)


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
    found = (
        plugin
        for plugin in config.pluginmanager.get_plugins()
        if hasattr(plugin, "channel") and hasattr(plugin, "torun")
    )
    if (worker := next(found, None)) is None:
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
        return scheduler(config, log, self._host_of)

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
        named = [each for name, each in scenarios_of(self._config).items() if parameter.startswith(f"{name}-")]
        scenario = max(named, key=lambda each: len(each.name), default=None)
        if scenario is None or Path(file.split("::")[0]).parent.name != SCENARIOS:
            return None
        try:
            # The first disk is always among the disks of the selected cells.
            return options_of(self._config).inventory.host_of(scenario.disk).name
        except ConfigError:
            return None
