"""The guest agent of a VM, through the API of its node. Its data is text there, with a character for each byte."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from harness.errors import HostError, Unsupported
from harness.guest.agent import INSTALL, disabled, refuses, why_not_windows
from harness.guest.proxmox.client import PveError
from harness.guest.proxmox.machine import VirtualMachine
from harness.lab.transport.agent import AgentSilent, Ended
from harness.untrusted import reading

CALL_SECONDS = 30.0
_BYTES = "latin-1"
_SILENT = "QEMU guest agent is not running"
_NOT_CONFIGURED = "No QEMU guest agent configured"


@dataclass(frozen=True, slots=True)
class ProxmoxAgent:
    """The agent of one VM."""

    machine: VirtualMachine

    def require_usable(self) -> None:
        """Raises Unsupported, with the remedy, if the agent cannot run programs; HostError."""
        try:
            info = self._get("info")
        except AgentSilent as error:
            raise Unsupported(error.message, hint=error.hint) from error
        with self._reading("info"):
            lacking = disabled(info["result"])
        vm = f"VM {self.machine.vmid}"
        why = refuses(vm, lacking) if lacking else why_not_windows(vm, self._os())
        if why is not None:
            raise Unsupported(f"host {self.machine.client.host}: {why[0]}", hint=why[1])

    def execute(self, path: str, arguments: Sequence[str], stdin: bytes) -> int:
        given: dict[str, object] = {"command": [path, *arguments]}
        if stdin:
            given["input-data"] = stdin.decode(_BYTES)
        try:
            answer = self.machine.client.write(
                "post", f"{self._path}/exec", given, is_done=lambda: False, deadline=CALL_SECONDS
            )
        except PveError as error:
            raise self._refused(error) from error
        with self._reading("exec"):
            return int(answer["pid"])

    def ended(self, pid: int) -> Ended | None:
        answer = self._get("exec-status", pid=pid)
        with self._reading("exec-status"):
            if not int(answer["exited"]):
                return None
            status = -int(answer["signal"]) if "signal" in answer else int(answer["exitcode"])
            out, err = (str(answer.get(key, "")).encode(_BYTES) for key in ("out-data", "err-data"))
            truncated = any(int(answer.get(key) or 0) for key in ("out-truncated", "err-truncated"))
            return Ended(status, out, err, truncated)

    def _os(self) -> dict[str, Any]:
        answer = self._get("get-osinfo")
        with self._reading("get-osinfo"):
            return dict(answer["result"])

    @property
    def _path(self) -> str:
        return f"{self.machine.path}/agent"

    @property
    def _words(self) -> str:
        return f"host {self.machine.client.host}: the guest agent of VM {self.machine.vmid}"

    def _get(self, command: str, **parameters: object) -> Any:
        try:
            return self.machine.client.get(f"{self._path}/{command}", parameters, deadline=CALL_SECONDS)
        except PveError as error:
            raise self._refused(error) from error

    def _reading(self, command: str) -> AbstractContextManager[None]:
        return reading(f"{self._words}: its answer to {command}", HostError)

    def _refused(self, error: PveError) -> HostError:
        if _SILENT in error.reason:
            return AgentSilent(f"{self._words} does not answer: {error.reason.strip()}", hint=INSTALL)
        if _NOT_CONFIGURED in error.reason:
            vmid = self.machine.vmid
            remedy = f"qm set {vmid} --agent enabled=1, then start VM {vmid} anew, and {INSTALL}"
            return AgentSilent(f"{self._words} is not configured: {error.reason.strip()}", hint=remedy)
        return error
