"""/double/...: what a test tells the double, and what the node's `qm` and `pvesm` ask it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pve_double import nodeshell
from pve_double.executor.memory import MemoryExecutor, Ran
from pve_double.faults import Fault
from pve_double.schema import Value
from pve_double.state import Node

PREFIX = "/double/"


@dataclass(frozen=True, slots=True)
class Told:
    """An answer that is no API's: its HTTP status, and text or a JSON value."""

    status: int
    body: str


def answer(node: Node, method: str, path: str, params: dict[str, Value], body: str) -> Told:
    """One request below /double/; 400 where it makes no sense, 404 where there is nothing."""
    try:
        told = _told(node, f"{method} {path.removeprefix(PREFIX)}", params, body)
    except (ValueError, TypeError, KeyError) as wrong:
        return Told(400, f"{wrong}\n")
    return told or Told(404, f"the double has nothing at {method} {path}\n")


def _told(node: Node, line: str, params: dict[str, Value], body: str) -> Told | None:
    if line.endswith(" faults"):
        return _json(_faults(node, line.partition(" ")[0], body))
    if line == "POST guest":
        return _json(_set_answer(node, json.loads(body)))
    if line == "GET run":
        words = params.get("word", [])
        on = node.peers[str(params.get("node", node.name))]
        printed = nodeshell.run(on, [words] if isinstance(words, str) else words)
        return Told(200 if printed.status == 0 else 400, printed.text)
    return None


def _faults(node: Node, method: str, body: str) -> list[dict[str, Any]]:
    if method == "POST":
        node.faults.add(Fault(**json.loads(body)))
    elif method == "DELETE":
        node.faults.clear()
    return node.faults.listing()


def _set_answer(node: Node, said: dict[str, Any]) -> dict[str, Any]:
    """What the guest `vmid` prints when the agent runs a command whose last word is `command`."""
    if not isinstance(node.executor, MemoryExecutor):
        raise TypeError("only guests that do not really run can be told what to answer")
    ran = Ran(0.0, int(said.get("exitcode", 0)), str(said.get("out", "")), str(said.get("err", "")))
    node.executor.guests[int(said["vmid"])].answers[str(said["command"])] = ran
    return said


def _json(value: Any) -> Told:
    return Told(200, json.dumps(value))
