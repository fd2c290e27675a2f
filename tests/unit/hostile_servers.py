"""Servers that a login may meet instead of the node: impostors, proxies of every kind, and nodes that misbehave.

All are real: they listen on the loopback, speak TLS where asked, and store every byte that they could read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pve_double import certificate
from pve_double.certificate import Certificates

LOOPBACK = "127.0.0.1"
TICKET = "PVE:root@pam:canary-ticket-5c1d"
Answer = Callable[[bytes], bytes]
"""From a request to the bytes that are sent back. RESET cuts the connection, SILENCE leaves the client waiting."""
RESET, SILENCE = b"\0reset", b"\0silence"


@dataclass
class Listener:
    """A server. `received` is what its clients sent, decrypted where it speaks TLS; `tried` counts connections."""

    port: int
    received: bytearray = field(default_factory=bytearray, repr=False)
    tried: int = 0


def response(status: int, reason: str, body: str = "", *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status} {reason}", f"Content-Length: {len(body.encode())}", "Connection: close", *headers]
    return ("\r\n".join(head) + "\r\n\r\n" + body).encode("utf-8", "replace")


def data(value: object) -> bytes:
    return response(200, "OK", json.dumps({"data": value}), "Content-Type: application/json")


def friendly(request: bytes) -> bytes:
    """What an impostor answers: a ticket for every password, a version for every request."""
    if b"/access/ticket" in request:
        return data({"ticket": TICKET, "CSRFPreventionToken": "0"})
    return data({"version": "9.2.11"})


@contextlib.contextmanager
def server(answer: Answer, certificates: Certificates | None = None) -> Iterator[Listener]:
    """Answers each request by `answer`, in TLS where it has certificates."""
    context = certificates.context() if certificates else None

    def serve(connection: socket.socket, listener: Listener) -> None:
        if context is not None:
            connection = context.wrap_socket(connection, server_side=True)
        with connection:
            request = _request(connection, listener)
            if not request:
                return
            sent = answer(request)
            if sent == RESET:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif sent == SILENCE:
                connection.recv(1)
            else:
                connection.sendall(sent)

    with _listening(serve) as listener:
        yield listener


@contextlib.contextmanager
def proxy(*, leads_to: int | None = None, certificates: Certificates | None = None) -> Iterator[Listener]:
    """Opens tunnels (CONNECT). With `leads_to` every tunnel ends at this port: the proxy hands it to an impostor.

    With certificates it speaks TLS itself, as for HTTPS_PROXY=https://...
    """
    context = certificates.context() if certificates else None

    def serve(connection: socket.socket, listener: Listener) -> None:
        if context is not None:
            connection = context.wrap_socket(connection, server_side=True)
        with connection:
            request = _request(connection, listener)
            verb, target = [*request.split(b" "), b"", b""][:2]
            if verb != b"CONNECT":
                connection.sendall(response(405, "Method Not Allowed"))
                return
            host, _, port = target.decode().rpartition(":")
            with socket.create_connection((host.strip("[]"), leads_to or int(port))) as far:
                connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                _pass_on(connection, far, listener)

    with _listening(serve) as listener:
        yield listener


def make_certificates(directory: Path, name: str) -> Certificates:
    place = directory / name
    place.mkdir()
    return certificate.make(place, [LOOPBACK])


def fingerprint(port: int) -> str:
    """Of the certificate that is shown there, as a lab file has it."""
    pem = ssl.get_server_certificate((LOOPBACK, port))
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest().upper()
    return ":".join(digest[at : at + 2] for at in range(0, 64, 2))


@contextlib.contextmanager
def _listening(serve: Callable[[socket.socket, Listener], None]) -> Iterator[Listener]:
    with socket.create_server((LOOPBACK, 0)) as waiting:
        listener = Listener(waiting.getsockname()[1])
        open_connections: list[socket.socket] = []

        def handle(connection: socket.socket) -> None:
            # A client that refuses the certificate, or goes away, is what these servers are for.
            with contextlib.suppress(OSError, ValueError):
                serve(connection, listener)

        def accept() -> None:
            while True:
                try:
                    connection, _ = waiting.accept()
                except OSError:
                    return
                listener.tried += 1
                open_connections.append(connection)
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield listener
        finally:
            waiting.shutdown(socket.SHUT_RDWR)
            for each in open_connections:
                with contextlib.suppress(OSError):
                    each.close()
            thread.join()


def _request(connection: socket.socket, listener: Listener) -> bytes:
    """One request with its body; less where the client ends earlier. All of it goes to `received` as it comes."""
    request = b""
    while b"\r\n\r\n" not in request or len(request.partition(b"\r\n\r\n")[2]) < _length(request):
        piece = connection.recv(65536)
        if not piece:
            break
        listener.received += piece
        request += piece
    return request


def _length(request: bytes) -> int:
    for line in request.partition(b"\r\n\r\n")[0].split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _pass_on(near: socket.socket, far: socket.socket, listener: Listener) -> None:
    while True:
        readable, _, _ = select.select([near, far], [], [])
        for each, other in ((near, far), (far, near)):
            if each in readable:
                piece = each.recv(65536)
                if not piece:
                    return
                if each is near:
                    listener.received += piece
                other.sendall(piece)
