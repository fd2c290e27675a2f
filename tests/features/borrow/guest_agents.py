"""Guest agents that answer on a UNIX socket of this machine: qemu-ga itself, and a stand-in where it is not installed.

Both run programs here. The hypervisors' ways to an agent are libvirt's function and the API of the double.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socketserver
import subprocess
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.signals import wait_until

INSTALLED = shutil.which("qemu-ga", path=f"{os.environ['PATH']}:/usr/sbin")
COMMANDS = ("guest-exec", "guest-exec-status", "guest-get-osinfo", "guest-info", "guest-ping", "guest-sync")
DEBIAN = {"id": "debian"}
"""What an agent reports of the operating system."""


class _Program:
    """A program, and the threads that collect its outputs, as the agent does."""

    def __init__(self, words: list[str], data: bytes) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe)
        self.outputs = (b"", b"")
        self._thread = threading.Thread(target=self._converse, args=(data,), daemon=True)
        self._thread.start()

    def _converse(self, data: bytes) -> None:
        self.outputs = self.process.communicate(data)

    def status(self) -> dict[str, Any]:
        if self._thread.is_alive():
            return {"exited": False}
        code = self.process.returncode
        found: dict[str, Any] = {"exited": True} | ({"signal": -code} if code < 0 else {"exitcode": code})
        for name, output in zip(("out-data", "err-data"), self.outputs, strict=True):
            if output:
                found[name] = base64.b64encode(output).decode()
        return found


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: Path, blocked: Collection[str], os_info: object) -> None:
        self.blocked = blocked
        self.os_info = os_info
        self.programs: dict[int, _Program] = {}
        super().__init__(str(path), _Handler)

    def answer(self, command: str, given: dict[str, Any]) -> dict[str, Any]:
        if command in self.blocked:
            text = f"Command {command} has been disabled: the command is not allowed"
            return {"error": {"class": "CommandNotFound", "desc": text}}
        match command:
            case "guest-sync":
                found: Any = given["id"]
            case "guest-info":
                listed = [{"name": name, "enabled": name not in self.blocked} for name in COMMANDS]
                found = {"version": "7.2.22", "supported_commands": listed}
            case "guest-get-osinfo":
                found = self.os_info
            case "guest-exec":
                program = _Program(
                    [given["path"], *given.get("arg", [])], base64.b64decode(given.get("input-data", ""))
                )
                self.programs[program.process.pid] = program
                found = {"pid": program.process.pid}
            case "guest-exec-status" if given["pid"] in self.programs:
                found = self.programs[given["pid"]].status()
                if found["exited"]:
                    del self.programs[given["pid"]]
            case _:
                return {"error": {"class": "GenericError", "desc": "Invalid parameter 'pid'"}}
        return {"return": found}


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        for line in self.rfile:
            asked = json.loads(line)
            answer = self.server.answer(asked["execute"], asked.get("arguments", {}))
            self.wfile.write(json.dumps(answer).encode() + b"\n")


@contextmanager
def stand_in(directory: Path, *, blocked: Collection[str] = (), os_info: object = DEBIAN) -> Iterator[Path]:
    """The stand-in in a VM that reports this of its operating system; yields its socket."""
    path = directory / "agent.sock"
    with _Server(path, blocked, os_info) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield path
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def qemu_ga(directory: Path, *, blocked: Collection[str] = ()) -> Iterator[Path]:
    """The agent of this machine; yields its socket."""
    path = directory / "agent.sock"
    words = [str(INSTALLED), "--method=unix-listen", f"--path={path}", f"--statedir={directory}"]
    words += [f"--pidfile={directory / 'agent.pid'}", f"--blacklist={','.join(blocked)}"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            assert wait_until(path.exists, deadline=10, every=0.02)
            yield path
        finally:
            process.send_signal(signal.SIGTERM)


AGENTS = {"stand-in": stand_in, "qemu-ga": qemu_ga}
