"""What tests of the double, and tests that use it, start from."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from proxmoxer import ProxmoxAPI
from proxmoxer.core import ResourceException

from pve_double.executor.memory import MemoryExecutor
from pve_double.pace import Pace
from pve_double.permissions import ROOT
from pve_double.server import Serving
from pve_double.state import Node, Settings, make_node

PASSWORD = "a password of the double"
FAST = Pace(factor=0.01, boot_seconds=2.0)
"""A hundred times a real node's pace."""
NODE = "nodes/pve"
QEMU = f"{NODE}/qemu"
TASK_SECONDS = 30.0


def memory_node(pace: Pace = FAST, **settings: Any) -> Node:
    """A node as the recordings', with nothing behind it."""
    return make_node(ROOT, PASSWORD, MemoryExecutor(pace.factor), Settings(pace=pace, **settings))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call: an HTTP status with PVE's text, or a result; of a task also how it ended and its log."""

    status: int = 200
    text: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)
    result: Any = None
    exitstatus: str | None = None
    log: tuple[str, ...] = ()


class Client:
    """proxmoxer as one user or token of a double. Its calls answer outcomes, tasks waited for, and never raise."""

    def __init__(self, serving: Serving, user: str = ROOT, **how: str) -> None:
        self._api = ProxmoxAPI(
            f"{serving.host}:{serving.port}",
            user=user,
            verify_ssl=str(serving.authority),
            timeout=60,
            **(how or {"password": PASSWORD}),
        )

    def get(self, path: str, /, **params: Any) -> Outcome:
        return self.call("get", path, params)

    def post(self, path: str, /, **params: Any) -> Outcome:
        return self.call("post", path, params)

    def put(self, path: str, /, **params: Any) -> Outcome:
        return self.call("put", path, params)

    def delete(self, path: str, /, **params: Any) -> Outcome:
        return self.call("delete", path, params)

    def call(self, method: str, path: str, params: Mapping[str, Any]) -> Outcome:
        try:
            result = getattr(self._api(path), method)(**params)
        except ResourceException as refused:
            errors = {name: str(text) for name, text in (refused.errors or {}).items()}
            return Outcome(refused.status_code, refused.content, errors)
        if isinstance(result, str) and result.startswith("UPID:"):
            return self.finished(result)
        return Outcome(result=result)

    def finished(self, upid: str) -> Outcome:
        """The task's end, waited for."""
        path, deadline = self._api(f"{NODE}/tasks/{upid}"), time.monotonic() + TASK_SECONDS
        while (status := path("status").get())["status"] != "stopped":
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{upid} still runs")
            time.sleep(0.002)
        log = tuple(line["t"] for line in path("log").get(limit=500))
        return Outcome(result=upid, exitstatus=status["exitstatus"], log=log)

    def wait_for_agent(self, vmid: int) -> None:
        deadline = time.monotonic() + TASK_SECONDS
        while self.post(f"{QEMU}/{vmid}/agent/ping").status != 200 and time.monotonic() < deadline:
            time.sleep(0.01)
