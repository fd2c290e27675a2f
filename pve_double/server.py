"""The HTTPS server: reads requests, writes answers, and cuts connections where a fault asks for it."""

from __future__ import annotations

import contextlib
import http.server
import json
import secrets
import socket
import ssl
import tempfile
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pve_double import certificate, control, dispatch
from pve_double.dispatch import Request
from pve_double.errors import ConnectionCut, PveError
from pve_double.multipart import read_form
from pve_double.schema import Value
from pve_double.state import Node

API = "/api2/json"
LOOPBACK = "127.0.0.1"
LOST = 596
"""What the proxy answers when it has lost the worker behind it, which may go on."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], node: Node, context: ssl.SSLContext | None) -> None:
        super().__init__(address, _Handler)
        self.node = node
        self._context = context

    def get_request(self) -> tuple[socket.socket, Any]:
        # The handshake is left to the handler's thread: a client that is silent must not keep others waiting.
        connection, address = super().get_request()
        if self._context is not None:
            connection = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that ends a connection is no error of ours."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "pve-api-daemon/3.0"
    sys_version = ""
    # Headers and body are two writes; without this every answer would wait for the client's delayed acknowledgement.
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name is http.server's)
        """Nothing is printed for a request."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        params = _params(url.query)
        try:
            if url.path.startswith(control.PREFIX):
                told = control.answer(self.server.node, self.command, url.path, params, body.decode())
                self._write(told.status, "OK" if told.status == 200 else "Refused", told.body.encode(), "text/plain")
            else:
                self._answer(url.path, params, body)
        except ConnectionCut:
            self.close_connection = True
            self.connection.close()

    def _answer(self, path: str, params: dict[str, Value], body: bytes) -> None:
        upload: Path | None = None
        try:
            request = self._request(path, params, body)
            upload = request.file
            result = {"data": dispatch.answer(self.server.node, request)}
        except PveError as refused:
            if upload is not None and refused.status != LOST:
                upload.unlink(missing_ok=True)
            self._refuse(refused)
        except ConnectionCut:
            raise
        except Exception as broken:
            # A fault of the double itself: whoever asked has to see it, and whoever mends it where it was.
            traceback.print_exc()
            self._refuse(PveError(f"the double is broken: {broken!r}"))
        else:
            self._write(200, "OK", json.dumps(result).encode())

    def _request(self, path: str, params: dict[str, Value], body: bytes) -> Request:
        if not path.startswith(API):
            raise PveError(f"no such file '{path}'", status=501)
        kind = self.headers.get("Content-Type", "")
        file = None
        if kind.startswith("multipart/form-data"):
            form, file = read_form(kind, body)
            params |= form
        elif kind.startswith("application/json") and body:
            params |= {name: _as_text(value) for name, value in json.loads(body).items()}
        else:
            params |= _params(body.decode())
        return Request(self.command, unquote(path.removeprefix(API)), params, dict(self.headers), file)

    def _refuse(self, refused: PveError) -> None:
        if refused.status == LOST:
            self._write(LOST, refused.message, b"")
            return
        answer: dict[str, Any] = {"data": None, "message": f"{refused.message}\n"}
        if refused.errors is not None:
            answer["errors"] = refused.errors
        self._write(refused.status, refused.message, json.dumps(answer).encode())

    def _write(self, status: int, reason: str, body: bytes, kind: str = "application/json;charset=UTF-8") -> None:
        reason = " ".join(reason.split("\n")).strip()
        self.send_response(status, reason.encode("ascii", "replace").decode())
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = _handle  # noqa: N815 (the names are http.server's)


def _params(text: str) -> dict[str, Value]:
    """Form fields; one that is given several times is a list."""
    params: dict[str, Value] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        known = params.get(name)
        if known is None:
            params[name] = value
        else:
            params[name] = [*([known] if isinstance(known, str) else known), value]
    return params


def _as_text(value: Any) -> Value:
    if isinstance(value, list):
        return [str(each) for each in value]
    return str(int(value)) if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Serving:
    """Where a double listens, and what its clients have to trust. `node_port` is what `qm` and `pvesm` ask."""

    node: Node
    host: str
    port: int
    authority: Path
    node_port: int

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.port}"


@contextlib.contextmanager
def serve(node: Node, *, host: str = LOOPBACK, port: int = 0, node_port: int = 0) -> Iterator[Serving]:
    """Serve the API over TLS until the end of the block; port 0 takes a free one.

    The port for the node's own commands is plain HTTP, and on the loopback alone.
    """
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"pve-double-{secrets.token_hex(4)}-")))
        certificates = certificate.make(directory, [host])
        api = _Server((host, port), node, certificates.context())
        shell = _Server((LOOPBACK, node_port), node, None)
        for server in (api, shell):
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
        yield Serving(node, host, api.server_port, certificates.authority, shell.server_port)
