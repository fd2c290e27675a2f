"""The API's agent calls in the agent's own protocol: what is encoded there is text in the API."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pve_double.executor import sockets
from pve_double.executor.base import GuestFailed, GuestHungUp, GuestSilent

UNANSWERED = {"guest-shutdown", "guest-suspend-disk", "guest-suspend-ram", "guest-suspend-hybrid"}
"""What an agent does without saying that it did."""
READ_BYTES = 16 * 1024**2
"""How much of a file the API reads when the call does not say."""
_PIECE_BYTES = 1024**2


def ask(path: Path, command: str, arguments: Mapping[str, Any]) -> Any:
    """What the API answers. Raises GuestFailed, GuestSilent, or GuestHungUp where PVE loses the answer."""
    try:
        match command:
            case "guest-exec":
                return sockets.agent(path, command, _execution(arguments))
            case "guest-exec-status":
                return _ended(sockets.agent(path, command, arguments))
            case "guest-file-read":
                return _read(path, arguments)
            case "guest-file-write":
                return _write(path, str(arguments["file"]), str(arguments["content"]))
        return sockets.agent(path, command, arguments, wait=command not in UNANSWERED)
    except sockets.Silent as silent:
        raise GuestSilent(str(silent)) from silent
    except sockets.Refused as refused:
        # An error with characters beyond ASCII, as that of a missing program with its curly quotes, ends PVE's worker.
        raise (GuestFailed(str(refused)) if str(refused).isascii() else GuestHungUp(str(refused))) from refused


def _execution(arguments: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(arguments)
    if "input-data" in given:
        given["input-data"] = base64.b64encode(str(given["input-data"]).encode("latin-1")).decode()
    return given


def _ended(status: Mapping[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {name: int(value) if isinstance(value, bool) else value for name, value in status.items()}
    for name in ("out-data", "err-data"):
        if name in shown:
            shown[name] = base64.b64decode(shown[name]).decode("latin-1")
            shown.setdefault(name.replace("data", "truncated"), 0)
    return shown


def _read(path: Path, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """At most `count` bytes from `offset` on, in pieces as PVE asks for them."""
    handle = sockets.agent(path, "guest-file-open", {"path": arguments["file"], "mode": "r"})
    if offset := int(arguments.get("offset", 0)):
        sockets.agent(path, "guest-file-seek", {"handle": handle, "offset": offset, "whence": "set"})
    left, content, ended = int(arguments.get("count", READ_BYTES)), b"", False
    while left > 0 and not ended:
        read = sockets.agent(path, "guest-file-read", {"handle": handle, "count": min(left, _PIECE_BYTES)})
        content += base64.b64decode(read["buf-b64"])
        left -= read["count"]
        ended = bool(read.get("eof"))
    sockets.agent(path, "guest-file-close", {"handle": handle})
    return {"content": content.decode("latin-1"), "bytes-read": len(content)} | ({} if ended else {"truncated": 1})


def _write(path: Path, file: str, content: str) -> None:
    handle = sockets.agent(path, "guest-file-open", {"path": file, "mode": "wb"})
    encoded = base64.b64encode(content.encode("latin-1")).decode()
    sockets.agent(path, "guest-file-write", {"handle": handle, "buf-b64": encoded})
    sockets.agent(path, "guest-file-close", {"handle": handle})
