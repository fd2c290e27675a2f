"""From a request to an answer: who asks, may they, are the parameters right, then the handler."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pve_double import formats, schema
from pve_double.api.call import Call, Handler
from pve_double.api.routes import ROUTES
from pve_double.errors import ConnectionCut, PveError, bad_parameters, forbidden
from pve_double.pace import PROXY_SECONDS
from pve_double.qemu.machine import Machine
from pve_double.schema import Schema, Value
from pve_double.state import Node

_LOGIN = "/access/ticket"
_REST = {"volume"}
"""Parameters of a path that take in everything after them."""


@dataclass(frozen=True, slots=True)
class Request:
    """`path` is below /api2/json; `params` are those of query and body."""

    method: str
    path: str
    params: dict[str, Value] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Route:
    """A method of the API: its handler, and what its schema says. A `proxied` one runs on the node that it names."""

    handler: Handler
    properties: Mapping[str, Schema]
    permissions: Mapping[str, Any] | None
    allows_token: bool
    proxied: bool


@functools.cache
def _table() -> list[tuple[str, re.Pattern[str], Route]]:
    table = []
    paths = schema.document()["paths"]
    known = [(method, path) for path, methods in paths.items() for method in methods]
    for (method, path), handler in (ROUTES | {each: _not_served for each in known if each not in ROUTES}).items():
        info = paths.get(path, {}).get(method) or {"parameters": {}, "permissions": {"user": "all"}}
        route = Route(
            handler,
            schema.spread(info["parameters"]),
            info.get("permissions"),
            allows_token=bool(info.get("allowtoken", True)),
            proxied=info.get("proxyto") == "node",
        )
        table.append((method, re.compile(_expression(path)), route))
    return table


def _not_served(call: Call) -> Any:
    """What the schema has and the double has not is refused as it should be, and only then not done."""
    del call
    raise PveError("not implemented", status=501)


def _expression(path: str) -> str:
    return re.sub(r"\{([^}]+)\}", lambda match: f"(?P<{match[1]}>{'.+' if match[1] in _REST else '[^/]+'})", path)


def answer(node: Node, request: Request) -> Any:
    """What the call returns. Raises PveError as the API would refuse it, ConnectionCut as a fault asks.

    In the order of PVE::HTTPServer: who asks, the method, may they, the node it runs on, and only then the parameters.
    """
    user = "" if request.path == _LOGIN else _identify(node, request)
    route, params = _find(request)
    if "!" in user and not route.allows_token:
        raise forbidden(f"URI '{request.path}' not available with API token, need proper ticket.\n")
    node.permissions.require_rule(user, route.permissions, params)
    on: Node | None = node
    if route.proxied and (name := str(params["node"])) != "localhost":
        on = node.peers.get(name)
    if on is None:
        raise PveError(
            f"hostname lookup '{name}' failed - failed to get address info for: {name}: Name or service not known"
        )
    if errors := schema.check_object("", route.properties, params, formats.check):
        raise bad_parameters(errors)
    return _run(node, request, route, Call(on, user, params, request.file))


def _find(request: Request) -> tuple[Route, dict[str, Value]]:
    for method, pattern, route in _table():
        match = pattern.fullmatch(request.path) if method == request.method else None
        if match is None:
            continue
        given = match.groupdict()
        for name, value in given.items():
            if request.params.get(name, value) != value:
                text = "duplicate parameter (already defined in URI) with conflicting values!"
                raise bad_parameters({name: text})
        return route, {**request.params, **given}
    raise PveError(f"Method '{request.line}' not implemented", status=501)


def _identify(node: Node, request: Request) -> str:
    if node.faults.take("ticket-expired", request.line):
        node.access.expire_tickets()
    return node.access.identify(request.headers, request.method)


def _run(node: Node, request: Request, route: Route, call: Call) -> Any:
    """Run the handler as the proxy in front of it does: after 30 seconds it gives up, and the handler goes on."""
    line = request.line
    if node.faults.take("cut-before", line):
        raise ConnectionCut
    if refused := node.faults.take("refused", line):
        raise PveError(refused.text)
    if node.faults.take("vmid-taken", line):
        taken = int(call.text("newid") or call.text("vmid"))
        call.node.machines.setdefault(taken, Machine(taken, {"name": "somebody-else"}))
    gone = node.faults.take("gone", line) is not None
    outcome: list[Any] = []

    slow = node.faults.take("slow", line)

    def work() -> None:
        if slow:
            node.pace.sleep(slow.seconds)
        try:
            with call.node.tasks.disturbed(node.faults, line):
                outcome.append(route.handler(call))
        except Exception as error:
            outcome.append(error)

    worker = threading.Thread(target=work, name=line, daemon=True)
    worker.start()
    worker.join(0 if gone else node.pace.real(PROXY_SECONDS))
    if not gone and not slow:
        # The node's clock may be faster than a busy machine: only what is meant to be slow is.
        worker.join(PROXY_SECONDS)
    if gone or worker.is_alive():
        raise PveError("Connection timed out", status=596)
    if node.faults.take("cut-after", line):
        raise ConnectionCut
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]
