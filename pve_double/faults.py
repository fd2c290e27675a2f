"""Faults that a test asks for: what goes wrong with the next call that fits, and how often."""

from __future__ import annotations

import re
import threading
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Kind = Literal[
    "gone",
    "lock-held",
    "task-fails",
    "warnings",
    "ticket-expired",
    "cut-before",
    "cut-after",
    "vmid-taken",
    "slow",
    "unplug-fails",
    "storage-config-locked",
    "storage-locked",
    "refused",
]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(slots=True)
class Fault:
    """`match` is a regular expression that is searched in `METHOD /path`; `times` is how often it still happens.

    - gone: HTTP 596 at once, while the call goes on and completes
    - lock-held: somebody else holds the configuration lock of VM `vmid`; taking it times out
    - task-fails: the task of the call ends with `text`; with `after` only once its work is done
    - warnings: the task of the call ends with WARNINGS: 1
    - ticket-expired: every ticket handed out so far is refused
    - cut-before, cut-after: the connection ends before, or after, the call did its work
    - vmid-taken: another client creates a VM of the call's VMID first
    - unplug-fails: the guest does not let go of the drive; `match` is searched in `VMID DRIVE`
    - storage-config-locked: somebody else holds the cluster's lock of storage.cfg; `match` is searched in `create`,
      `update` or `delete`, which is what the storage is to be
    - storage-locked: somebody else holds the node's lock of a storage; `match` is searched in its name
    - refused: the call is answered 500 with `text`, and does nothing
    - slow: the call takes `seconds` (of the double) before it does its work
    """

    kind: Kind
    match: str = ""
    times: int = 1
    text: str = "injected failure"
    seconds: float = 0.0
    vmid: int = 0
    after: bool = False


class Faults:
    """The faults that are still to happen."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        if fault.kind not in KINDS:
            raise ValueError(f"no fault is called '{fault.kind}'; there are {', '.join(KINDS)}")
        re.compile(fault.match)
        with self._lock:
            self._waiting.append(fault)

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()

    def listing(self) -> list[dict[str, Any]]:
        return [asdict(fault) for fault in self._waiting]

    def take(self, kind: Kind, call: str) -> Fault | None:
        """The first fault of this kind that fits the call, used up by one; None where there is none."""
        with self._lock:
            for fault in self._waiting:
                if fault.kind == kind and re.search(fault.match, call):
                    return self._use(fault)
        return None

    def lock_is_held(self, vmid: int) -> bool:
        """Whether somebody else holds the configuration lock of this VM now."""
        with self._lock:
            for fault in self._waiting:
                if fault.kind == "lock-held" and fault.vmid == vmid:
                    self._use(fault)
                    return True
        return False

    def _use(self, fault: Fault) -> Fault:
        fault.times -= 1
        if fault.times <= 0:
            self._waiting.remove(fault)
        return fault
