"""The guest agent of a VM, through libvirt."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import libvirt
import libvirt_qemu

from harness.errors import HostError, Unsupported
from harness.guest.agent import INSTALL, disabled, refuses, why_not_windows
from harness.guest.libvirt.connection import Connection
from harness.lab.transport.agent import AgentSilent, Ended
from harness.lab.transport.bounded import Overdue, within
from harness.units import format_duration
from harness.untrusted import parse_json, reading

ANSWER_SECONDS = 20
"""How long libvirt waits for an answer. A guest under load answers late."""
_SILENT = (
    libvirt.VIR_ERR_AGENT_UNRESPONSIVE,
    libvirt.VIR_ERR_AGENT_UNSYNCED,
    libvirt.VIR_ERR_OPERATION_TIMEOUT,
    # Older libraries have one number for all of these.
    getattr(libvirt, "VIR_ERR_AGENT_COMMAND_TIMEOUT", libvirt.VIR_ERR_AGENT_UNRESPONSIVE),
)
_TOO_LONG = "encode message payload"
"""Part of libvirt's error for an answer of more than 4 MiB, with base64: REMOTE_STRING_MAX of its protocol."""
_CHANNEL = (
    "virsh attach-device {name} FILE --live, with this in FILE: <channel type='unix'><target type='virtio' "
    "name='org.qemu.guest_agent.0'/></channel> (--config keeps it), then {install}"
)


@dataclass(frozen=True, slots=True)
class LibvirtAgent:
    """The agent of the domain `handle`. `name` is the VM's name in libvirt."""

    connection: Connection
    handle: Any
    name: str

    def require_usable(self) -> None:
        """Raises Unsupported, with the remedy, if the agent cannot run programs; HostError."""
        try:
            info = self._ask("guest-info")
        except AgentSilent as error:
            raise Unsupported(error.message, hint=error.hint) from error
        with self._reading("guest-info"):
            lacking = disabled(info)
        why = refuses(self._words, lacking) if lacking else why_not_windows(self._words, self._ask("guest-get-osinfo"))
        if why is not None:
            raise Unsupported(f"host {self.connection.host}: {why[0]}", hint=why[1])

    def execute(self, path: str, arguments: Sequence[str], stdin: bytes) -> int:
        given: dict[str, object] = {"path": path, "arg": list(arguments), "capture-output": True}
        if stdin:
            given["input-data"] = base64.b64encode(stdin).decode()
        answer = self._ask("guest-exec", **given)
        with self._reading("guest-exec"):
            return int(answer["pid"])

    def ended(self, pid: int) -> Ended | None:
        answer = self._ask("guest-exec-status", pid=pid)
        with self._reading("guest-exec-status"):
            if not answer["exited"]:
                return None
            status = -int(answer["signal"]) if "signal" in answer else int(answer["exitcode"])
            out, err = (base64.b64decode(answer.get(key, ""), validate=True) for key in ("out-data", "err-data"))
            truncated = bool(answer.get("out-truncated") or answer.get("err-truncated"))
            return Ended(status, out, err, truncated)

    @property
    def _words(self) -> str:
        return f"VM {self.name}"

    @property
    def _where(self) -> str:
        return f"host {self.connection.host}: the guest agent of {self._words}"

    def _reading(self, command: str) -> AbstractContextManager[None]:
        return reading(f"{self._where}: its answer to {command}", HostError)

    def _ask(self, command: str, **arguments: object) -> Any:
        where = self._where
        text = json.dumps({"execute": command, "arguments": arguments})
        try:
            answer = within(
                ANSWER_SECONDS + 20, lambda: libvirt_qemu.qemuAgentCommand(self.handle, text, ANSWER_SECONDS, 0)
            )
        except Overdue:
            raise AgentSilent(
                f"{where} did not answer {command} within {format_duration(ANSWER_SECONDS + 20)}", hint=INSTALL
            ) from None
        except libvirt.libvirtError as error:
            raise self._refused(where, command, error) from error
        with self._reading(command):
            return parse_json(answer, where, HostError)["return"]

    def _refused(self, where: str, command: str, error: libvirt.libvirtError) -> HostError:
        code, said = error.get_error_code(), error.get_error_message()
        if code in _SILENT:
            return AgentSilent(f"{where} does not answer: {said}", hint=INSTALL)
        if code == libvirt.VIR_ERR_ARGUMENT_UNSUPPORTED:
            channel = _CHANNEL.format(name=self.name, install=INSTALL)
            return AgentSilent(f"{where} is not configured: {said}", hint=channel)
        too_long = 'the command may have printed more than 3 MiB; use SSH instead (reach = "node" in the lab file)'
        return HostError(f"{where} did not do {command}: {said}", hint=too_long if _TOO_LONG in said else None)
