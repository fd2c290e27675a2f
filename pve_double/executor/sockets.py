"""QMP and the guest agent's protocol: JSON values, one a line, on a UNIX socket."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SECONDS = 30.0
AGENT_SECONDS = 3.0
"""How long PVE waits for an agent before it says that none is running."""


class Refused(Exception):
    """The other side answered with an error; the text is its description."""


class Silent(Exception):
    """Nobody answered in time."""


class Lines:
    """A connection that carries a JSON value per line."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(seconds)
        self._rest = b""
        try:
            self._socket.connect(str(path))
        except OSError as failed:
            self._socket.close()
            raise Silent(str(failed)) from failed

    def send(self, value: Mapping[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(value).encode() + b"\n")
        except OSError as failed:
            raise Silent(str(failed)) from failed

    def receive(self) -> dict[str, Any]:
        """The next value; Silent where there is none in time."""
        while b"\n" not in self._rest:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise Silent("no answer")
            self._socket.settimeout(left)
            try:
                read = self._socket.recv(65536)
            except OSError as failed:
                raise Silent(str(failed)) from failed
            if not read:
                raise Silent("the connection ended")
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        # A guest agent that is told to synchronise puts this byte, which no JSON has, in front.
        found: dict[str, Any] = json.loads(line.lstrip(b"\xff"))
        return found

    def answer(self) -> Any:
        """The next value that is an answer, not an event. Raises Refused."""
        while True:
            value = self.receive()
            if "error" in value:
                raise Refused(str(value["error"].get("desc", value["error"])))
            if "return" in value:
                return value["return"]

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def _connected(path: Path, seconds: float) -> Iterator[Lines]:
    lines = Lines(path, seconds)
    try:
        yield lines
    finally:
        lines.close()


def qmp(path: Path, *commands: tuple[str, Mapping[str, Any]], seconds: float = SECONDS) -> list[Any]:
    """Run QMP commands in order; their answers. Raises Refused at the first that fails, or Silent."""
    with _connected(path, seconds) as lines:
        lines.receive()
        answers = []
        for name, arguments in (("qmp_capabilities", {}), *commands):
            lines.send({"execute": name, "arguments": dict(arguments)})
            answers.append(lines.answer())
    return answers[1:]


def agent(path: Path, command: str, arguments: Mapping[str, Any], *, wait: bool = True) -> Any:
    """Ask the guest agent; without `wait` for a command that is not answered, such as a shutdown."""
    with _connected(path, AGENT_SECONDS) as lines:
        number = secrets.randbelow(2**31)
        # An answer that an earlier caller did not wait for may come first.
        lines.send({"execute": "guest-sync", "arguments": {"id": number}})
        while lines.answer() != number:
            continue
    with _connected(path, SECONDS) as lines:
        lines.send({"execute": command, "arguments": dict(arguments)} if arguments else {"execute": command})
        return lines.answer() if wait else None
