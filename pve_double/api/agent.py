"""The guest agent's calls."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from pve_double.api.call import Call, Handler
from pve_double.errors import PveError
from pve_double.executor.base import GuestFailed, GuestHungUp, GuestSilent
from pve_double.executor.guest import READ_BYTES
from pve_double.qemu import status

_GET = ("get-fsinfo", "get-host-name", "get-osinfo", "get-vcpus", "info", "network-get-interfaces")
_POST = ("fsfreeze-freeze", "fsfreeze-status", "fsfreeze-thaw", "ping", "shutdown")


def ask(call: Call, command: str, arguments: Mapping[str, Any]) -> Any:
    """What the agent returns; 500 in PVE's words where there is no agent, and 596 where its answer is lost."""
    machine = call.node.machine(call.vmid)
    if "agent" not in machine.config:
        raise PveError("No QEMU guest agent configured")
    if not call.node.running(call.vmid):
        raise PveError(f"VM {call.vmid} is not running")
    if not status.answers_agent(machine):
        raise PveError("QEMU guest agent is not running")
    try:
        answer = call.node.executor.agent(call.vmid, f"guest-{command}", arguments)
    except GuestFailed as refused:
        raise PveError(f"Agent error: {refused}") from None
    except GuestSilent:
        raise PveError("QEMU guest agent is not running") from None
    except GuestHungUp:
        raise PveError("Broken pipe", status=596) from None
    call.node.running(call.vmid)
    return answer


def execute(call: Call) -> Any:
    path, *arguments = call.words("command") or [""]
    given = {"path": path, "arg": arguments, "capture-output": True}
    return ask(
        call, "exec", given | ({"input-data": _as_bytes(call, "input-data")} if "input-data" in call.params else {})
    )


def _as_bytes(call: Call, name: str) -> str:
    """Text of which each character is a byte: PVE encodes it as it came, and cannot with others."""
    text = call.text(name)
    if any(ord(character) > 0xFF for character in text):
        raise PveError("Wide character in subroutine entry")
    return text


def execute_status(call: Call) -> Any:
    return ask(call, "exec-status", {"pid": int(call.text("pid"))})


def file_read(call: Call) -> dict[str, Any]:
    wanted = {"offset": call.number("offset", 0), "count": call.number("count", READ_BYTES)}
    found: dict[str, Any] = dict(ask(call, "file-read", {"file": call.text("file")} | wanted))
    if call.text("decode") == "0":
        found["content"] = base64.b64encode(found["content"].encode("latin-1")).decode()
    return found


def file_write(call: Call) -> None:
    content = _as_bytes(call, "content")
    if call.text("encode") == "0":
        try:
            content = base64.b64decode(content, validate=True).decode("latin-1")
        except ValueError:
            raise PveError("Agent error: Base64 data contains invalid characters") from None
    ask(call, "file-write", {"file": call.text("file"), "content": content})


def _simple(command: str) -> Handler:
    return lambda call: {"result": ask(call, command, {})}


ROUTES: dict[tuple[str, str], Handler] = {
    ("POST", "/exec"): execute,
    ("GET", "/exec-status"): execute_status,
    ("GET", "/file-read"): file_read,
    ("POST", "/file-write"): file_write,
    **{("GET", f"/{command}"): _simple(command) for command in _GET},
    **{("POST", f"/{command}"): _simple(command) for command in _POST},
}
"""By method and what follows `.../agent` in the path."""
