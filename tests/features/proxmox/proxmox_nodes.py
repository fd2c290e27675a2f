"""Nodes of Proxmox VE to talk to: the double, and a server that plays recorded answers back, both over real HTTPS."""

from __future__ import annotations

import http.server
import json
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from harness.features.proxmox import ApiSpec, SecretSource
from harness.features.proxmox.client import Client
from harness.features.proxmox.session import Secret
from pve_double import certificate
from pve_double.server import Serving, serve
from pve_double.state import Node
from pve_double.testing import PASSWORD, memory_node

UPID = "UPID:pve:00004F28:00057F17:6B0027C0:qmcreate:140:root@pam:"


def api_spec(port: int, authority: Path | None = None, **changes: Any) -> ApiSpec:
    given: dict[str, Any] = {
        "url": f"https://127.0.0.1:{port}",
        "node": "pve",
        "user": "root@pam",
        "secret": SecretSource(env="UNUSED"),
    }
    if authority is not None:
        given["ca_file"] = str(authority)
    return ApiSpec(**(given | changes))


@contextmanager
def connected(serving: Serving, *, secret: Secret | None = None, **changes: Any) -> Iterator[Client]:
    """A client that is logged in at the double."""
    spec = api_spec(serving.port, **({"authority": serving.authority} | changes))
    client = Client(spec, secret or Secret(PASSWORD), "node1")
    try:
        yield client
    finally:
        client.close()


@contextmanager
def double(**settings: Any) -> Iterator[tuple[Node, Client]]:
    """The double with nothing behind it, and root@pam's client."""
    with serve(memory_node(**settings)) as serving, connected(serving) as client:
        yield serving.node, client


@dataclass
class Recorded:
    """One recorded call. `answered` counts how often it was asked for, `body` is what was sent with it last."""

    record: Mapping[str, Any]
    answered: int = 0
    body: bytes = b""

    @property
    def task(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.record["task"]
        return found


class _Playback(http.server.BaseHTTPRequestHandler):
    """Answers the call `recorded` with what is recorded of it, and what belongs to a task with its end and log."""

    protocol_version = "HTTP/1.1"
    recorded: Recorded

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is http.server's
        """Nothing is printed for a request."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path.endswith("/log"):
            self._data([{"n": number, "t": line} for number, line in enumerate(self.recorded.task["log"], 1)])
        elif "/tasks/" in path:
            self._data({"status": "stopped", "exitstatus": self.recorded.task["exitstatus"]})
        elif path.endswith("/tasks"):
            self._data([])
        else:
            self._recorded()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.endswith("/access/ticket"):
            self._data({"ticket": "PVE:root@pam:0", "CSRFPreventionToken": "0"})
        else:
            self.recorded.body = body
            self._recorded()

    def _recorded(self) -> None:
        self.recorded.answered += 1
        record = self.recorded.record
        if "error" not in record:
            self._data(record["result"])
            return
        error = record["error"]
        # PVE's words stand in the status line; those on single parameters in the body.
        body = {"data": None} | ({"errors": error["errors"]} if error["errors"] else {})
        self._send(error["code"], error["content"], json.dumps(body))

    def _data(self, data: Any) -> None:
        self._send(200, "OK", json.dumps({"data": data}))

    def _send(self, status: int, reason: str, body: str) -> None:
        self.send_response(status, reason)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())


@contextmanager
def played_back() -> Iterator[tuple[Recorded, Client]]:
    """A server whose recorded call can be exchanged, and a client of it."""
    recorded = Recorded({"result": None})
    handler = type("Playback", (_Playback,), {"recorded": recorded})
    with tempfile.TemporaryDirectory() as directory:
        certificates = certificate.make(Path(directory), ["127.0.0.1"])
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        server.socket = certificates.context().wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        client = Client(api_spec(server.server_address[1], certificates.authority), Secret("not checked"), "node1")
        try:
            yield recorded, client
        finally:
            client.close()
            server.shutdown()
            thread.join()
            server.server_close()
