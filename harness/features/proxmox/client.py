"""The node's API. If the answer to a change is lost, the client finds out its result and does not repeat it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from harness.errors import HarnessError, HostError, LabUnavailable, SafetyError
from harness.features.proxmox import ROOT, ApiSpec, ProxmoxSpec
from harness.features.proxmox.session import (
    ApiRefusal,
    LoginRefused,
    Secret,
    Unanswered,
    explain_unreachable,
    log_in,
    read_secret,
)
from harness.lab.inventory import BorrowedVm
from harness.signals import Cleanup, Deadline, attempts, growing, wait_until

_TAIL_LINES = 6
_WARNING = "WARN: "


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """A task that succeeded. `warnings` list what PVE ignored or omitted, so the result is not as requested."""

    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaskLog:
    """The log of a task."""

    lines: tuple[str, ...]

    @property
    def tail(self) -> str:
        """The last lines, for a message."""
        return "\n     ".join(self.lines[-_TAIL_LINES:]) or "(it is empty)"

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(line.removeprefix(_WARNING) for line in self.lines if line.startswith(_WARNING))


class TaskFailed(Exception):
    """A task that failed. `status` is PVE's text for its exit status."""

    def __init__(self, upid: str, status: str, log: TaskLog) -> None:
        super().__init__(status)
        self.upid = upid
        self.kind = upid.split(":")[5]
        self.status = status
        self.log = log


def is_upid(answer: object) -> bool:
    """Whether an answer names a task: `UPID:NODE:PID:PSTART:START:KIND:OF:USER:`."""
    return isinstance(answer, str) and answer.startswith("UPID:") and answer.count(":") >= 8


def parse_node(upid: str) -> str:
    """The node that a task runs on."""
    return upid.split(":")[1]


_REMEDIES: Mapping[tuple[str, ...], str] = {
    ("only root",): f"PVE allows this only to {ROOT} with a password, not to {{who}}: see docs/proxmox.md",
    ("permission check failed",): "give {who} this privilege; docs/proxmox.md has roles with all that runs need",
    ("bridge", "does not exist"): "name a bridge of the node as host.{host}.guest.bridge",
    ("storage", "does not exist"): "name a storage of the node; `pvesm status` lists them",
    ("vm is locked",): "wait for the task that holds the lock; if it has ended: qm unlock VMID on the node, "
    "then, if a run left the VM: virt-overhead reap",
    ("kvm virtualisation configured",): "enable virtualisation in the node's firmware, or set kvm = false under "
    "host.{host}.guest",
    ("hostname lookup",): "set host.{host}.api.node to the output of `hostname` on the node",
    ("no such cluster node",): "set host.{host}.api.node to the output of `hostname` on the node",
    ("cfs-lock",): "check whether the cluster has its quorum: pvecm status on the node",
    ("no quorum",): "check whether the cluster has its quorum: pvecm status on the node",
}
"""By words that must all be in PVE's text, in any case. The first match counts."""


def is_lock_timeout(reason: str) -> bool:
    """Whether PVE did not get a lock of a configuration, a storage or the cluster in time.

    A request has done nothing then, nor has a task, except for one that needs a further lock in the middle of its work.

    `got lock timeout - aborting command` does not count: PVE had that lock, and the work was interrupted.
    """
    return "got lock request timeout" in reason or ("got timeout" in reason and "lock" in reason)


def find_remedy(reason: str, client: Client) -> str | None:
    """What to do about an error of PVE, if its text is known."""
    reason = reason.lower()
    remedies = (text for words, text in _REMEDIES.items() if all(word in reason for word in words))
    return next((text.format(who=client.spec.who, host=client.host) for text in remedies), None)


_LISTS = re.compile(
    r"(.*/)?(storage|network|content|snapshot|pending|tasks|log|qemu|lxc|cluster/resources|cluster/mapping/pci"
    r"|disks/(list|lvmthin|zfs|directory))"
)
_TABLES = re.compile(r"(.*/)?(config|status|status/current|version|access/permissions|disks/lvm|disks/zfs/[^/]+)")
_NUMBERS = ("vmid", "size", "avail", "total")
_NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]+)?")


class ApiObject(dict[str, Any]):
    """A table of an answer. A key that is missing is an error of the node, and not one of the harness."""

    def __init__(self, source: str, values: dict[str, Any]) -> None:
        super().__init__(values)
        self._source = source

    def __missing__(self, key: str) -> NoReturn:
        raise _explain_answer(self._source, f'there is no "{key}"')


def check_answer(source: str, path: str, data: Any) -> Any:
    """The data of an answer for this path of the API. HostError, which names `source`, if it has another shape.

    What a guest's agent reports is not checked here.
    """
    if "/agent/" in path:
        return data
    if _LISTS.fullmatch(path) and not (isinstance(data, list) and all(isinstance(entry, dict) for entry in data)):
        raise _explain_answer(source, "it is not a list of tables")
    if _TABLES.fullmatch(path) and not isinstance(data, dict):
        raise _explain_answer(source, "it is not a table")
    return _add_errors(source, data)


def _add_errors(source: str, data: Any) -> Any:
    if isinstance(data, list):
        return [_add_errors(source, entry) for entry in data]
    if not isinstance(data, dict):
        return data
    for key in _NUMBERS:
        value = data.get(key)
        if value is not None and (isinstance(value, bool) or not _NUMBER.fullmatch(str(value))):
            raise _explain_answer(source, f'{key} = "{str(value)[:40]}" is not a number')
    return ApiObject(source, {key: _add_errors(source, value) for key, value in data.items()})


def _explain_answer(source: str, why: str) -> HostError:
    return HostError(f"{source} cannot be read: {why}", hint="check that host.NAME.api.url leads to Proxmox VE")


READ_SECONDS = 60.0
WRITE_SECONDS = 120.0
SETTLE_SECONDS = 60.0
"""How long the client looks for the result of a write whose answer was lost: PVE continues after a 596."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
_POLL_SECONDS = 0.5
_LOG_LINES = 100_000
"""More than any task of a run writes. PVE returns only the beginning of a longer log."""
_LEAST_SECONDS, _LEAST_SETTLING = 5.0, 2.0
"""The least time for one request, and for finding the result of a write, close to the deadline."""

Method = Literal["post", "put", "delete"]
Params = Mapping[str, object]
"""Parameters of a call with PVE's names. A bool is sent as 0 or 1."""
IsDone = Callable[[], bool]
"""Reads back whether the change of a write is done."""
Undo = Callable[[], bool]
"""Undoes the part of its work that a failed task has done. Returns whether the task must be repeated."""

_UNAUTHORIZED = 401
_LOST = frozenset({595, 596, 597, 598, 599, 502, 503, 504})
"""The proxy lost the answer (AnyEvent::HTTP's numbers), or could not forward the request."""


class PveError(HostError):
    """Proxmox VE refused a call, or its task failed. `status` is HTTP's, 0 for a task; `reason` is PVE's own text."""

    def __init__(self, message: str, *, status: int, reason: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.reason = reason

    @property
    def lost(self) -> bool:
        """Whether the answer was lost. Otherwise, PVE refused the call."""
        return self.status in _LOST


@dataclass(frozen=True, slots=True)
class Expected:
    """How to find the task of a write if its answer is lost: PVE's kind of task, and the object that it works on."""

    kind: str
    of: str


@dataclass(frozen=True, slots=True)
class _Change:
    """A write, and how to find out whether it was done if its answer is lost."""

    method: Method
    path: str
    params: Params
    is_done: IsDone
    expected: Expected | None = None

    def __str__(self) -> str:
        return f"{self.method.upper()} {self.path}"


class Client:
    """Calls one node's API. Every call ends by its deadline, in seconds. Errors contain PVE's own text."""

    def __init__(self, spec: ApiSpec, secret: Secret, host: str) -> None:
        """Log in. `host` is the node's name in messages. Raises LabUnavailable with the remedy."""
        self.spec = spec
        self.host = host
        self._secret = secret
        self._login = log_in(self.spec, self._secret, self.host)

    def close(self) -> None:
        self._login.close()

    def cleanup(self) -> Cleanup:
        """A block that removes at its end what was created on the node."""
        return Cleanup(f"host {self.host}", f"virt-overhead reap --host {self.host}")

    @property
    def node(self) -> str:
        """The path of everything on the node."""
        return f"nodes/{self.spec.node}"

    def get(self, path: str, params: Params | None = None, *, deadline: float = READ_SECONDS) -> Any:
        """The data at this path. Reads again, with back-off, if the answer is lost or a lock is held."""
        end = Deadline.after(deadline)
        for attempt in attempts(end, _grow_pauses()):
            try:
                return self._call("get", path, params or {}, end)
            except PveError as error:
                if not (error.lost or is_lock_timeout(error.reason)) or attempt.is_last:
                    raise
            except Unanswered as error:
                if error.final or attempt.is_last:
                    raise explain_unreachable(self.spec, self.host, error) from None
        raise AssertionError("unreachable: the pauses have no end")

    def storages(self, *, of_node: bool = False) -> dict[str, Any]:
        """The entries of the storage configuration by name. Those of the node have their state as well."""
        entries = self.get(f"{self.node}/storage" if of_node else "storage")
        return {str(entry["storage"]): entry for entry in entries}

    def list_made(self, kind: str) -> Any:
        """What PVE makes on disks, by its kind (`lvm`, `zfs`); nothing if it refuses, as on a node without ZFS.

        A login that may not see it cannot have created it either. The guard finds it by its signature.
        """
        try:
            return self.get(f"{self.node}/disks/{kind}")
        except PveError as error:
            if error.lost:
                raise
            return []

    def find_path(self, volid: str) -> str:
        """The path of a volume on the node."""
        return str(self.get(f"{self.node}/storage/{volid.partition(':')[0]}/content/{volid}")["path"])

    def privileges(self, path: str) -> frozenset[str]:
        """The privileges of the login at this path of Proxmox VE's access control, for example `/vms/100`."""
        return frozenset(self.get("access/permissions", {"path": path}).get(path, {}))

    def require_node(self, node: str) -> None:
        """Raises HostError if the creation log is from another node than the API."""
        if node != self.spec.node:
            raise HostError(
                f"host {self.host}: the creation log is from node {node}, but the API is on node {self.spec.node}",
                hint=f"correct host.{self.host}.api.node, or host.{self.host}.address",
            )

    def require_volumes_visible(self, storage: str) -> None:
        """Raises SafetyError if PVE hides volumes of the storage from this login, which it does without a warning."""
        path = f"/storage/{storage}"
        granted = self.privileges(path)
        if "Datastore.Allocate" in granted:
            return
        if "Datastore.Audit" not in granted or "VM.Config.Disk" not in self.privileges("/vms"):
            raise SafetyError(
                f"host {self.host}: {self.spec.who} may not see all volumes on storage {storage}, so their "
                "owners are unknown",
                hint=f"give it Datastore.Audit on {path} and VM.Config.Disk on /vms: docs/proxmox.md has roles",
            )

    def write(
        self, method: Method, path: str, params: Params, *, is_done: IsDone, deadline: float = WRITE_SECONDS
    ) -> Any:
        """Make a change that PVE makes immediately. Returns its answer, or None if it was lost but the change is done.

        The request is repeated only if nothing was done: PVE did not get a lock in time, or there was no connection.
        """
        return self._write(_Change(method, path, params, is_done), Deadline.after(deadline))

    def task(
        self,
        method: Method,
        path: str,
        params: Params,
        *,
        is_done: IsDone,
        deadline: float,
        expected: Expected | None = None,
        undo: Undo | None = None,
    ) -> TaskEnd:
        """Make a change for which PVE starts a task, and wait until the task has ended.

        Raises PveError with the end of the task's log if it failed. The caller judges warnings. If the answer is lost,
        the client looks for the task with `expected` and for the change with `is_done`.

        A task that did not get a lock in time is repeated. It has done nothing, unless it needs that lock in the middle
        of its work: then give `undo`. If the repeated task fails, the error also has the first failure.
        """
        change = _Change(method, path, params, is_done, expected)
        end = Deadline.after(deadline)
        first: PveError | None = None
        for attempt in attempts(end, _grow_pauses()):
            try:
                answer = self._write(change, end)
            except PveError as error:
                raise _add_first_failure(error, first) from None
            if not is_upid(answer):
                return TaskEnd(())
            try:
                return self._wait_for_end(answer, end)
            except TaskFailed as failed:
                failure = self._explain_failure(change, failed)
                if not is_lock_timeout(failed.status) or attempt.is_last:
                    raise _add_first_failure(failure, first) from None
                first = first or failure
                if undo is not None and not self._undo(undo, first):
                    return TaskEnd(())
        raise AssertionError("unreachable: the pauses have no end")

    def start_task(self, method: Method, path: str, params: Params, *, expected: Expected) -> str:
        """Start a task, and return its UPID while it runs. Raises PveError."""
        change = _Change(method, path, params, lambda: False, expected)
        answer = self._write(change, Deadline.after(WRITE_SECONDS))
        if not is_upid(answer):
            raise PveError(
                f'host {self.host}: {change}: Proxmox VE started no task, but answers "{str(answer)[:80]}"',
                status=0,
                reason=str(answer),
            )
        return str(answer)

    def read_log(self, upid: str) -> list[str]:
        """The lines of the log of a task so far."""
        return list(self._log(f"nodes/{parse_node(upid)}/tasks/{upid}").lines)

    def _undo(self, undo: Undo, first: PveError) -> bool:
        try:
            return undo()
        except HarnessError as error:
            raise PveError(
                f"{first.message}\n     and what the task had done was not undone: {error}",
                status=first.status,
                reason=first.reason,
                hint=first.hint,
            ) from None

    def _write(self, change: _Change, end: Deadline) -> Any:
        before = self._list_tasks(change.expected)
        for attempt in attempts(end, _grow_pauses()):
            try:
                return self._call(change.method, change.path, change.params, end)
            except PveError as error:
                if error.lost:
                    return self._settle(change, error.message, end, before)
                if not is_lock_timeout(error.reason) or attempt.is_last:
                    raise
            except Unanswered as error:
                cause = explain_unreachable(self.spec, self.host, error)
                if not error.never_sent:
                    return self._settle(change, f"host {self.host}: {change}: {cause.message}", end, before)
                if error.final or attempt.is_last:
                    raise cause from None
        raise AssertionError("unreachable: the pauses have no end")

    def _settle(self, change: _Change, what: str, end: Deadline, before: frozenset[str]) -> str | None:
        """The UPID of the write's task, or None if the write is done. Raises PveError if neither appears in time."""
        started: frozenset[str] = frozenset()

        def settled() -> bool:
            nonlocal started
            started = self._list_tasks(change.expected) - before
            return bool(started) or change.is_done()

        seconds = max(min(end.left, SETTLE_SECONDS), _LEAST_SETTLING)
        if not wait_until(settled, deadline=seconds, every=_POLL_SECONDS):
            raise PveError(
                f"{what}; it is unknown whether it was done, and the request was not repeated",
                status=0,
                reason=what,
                hint=f"see the task log of {self.spec.node}, then: virt-overhead reap --host {self.host}",
            )
        return max(started) if started else None

    def _list_tasks(self, expected: Expected | None) -> frozenset[str]:
        if expected is None:
            return frozenset()
        tasks = self.get(f"{self.node}/tasks", {"source": "all", "typefilter": expected.kind, "limit": 50})
        return frozenset(task["upid"] for task in tasks if str(task.get("id") or "") == expected.of)

    def _wait_for_end(self, upid: str, end: Deadline) -> TaskEnd:
        path = f"nodes/{parse_node(upid)}/tasks/{upid}"

        def stopped() -> dict[str, Any] | None:
            status: dict[str, Any] = self.get(f"{path}/status")
            return status if status["status"] == "stopped" else None

        status = wait_until(stopped, deadline=end, every=growing(0.1, _POLL_SECONDS, factor=1.5))
        if status is None:
            tail = self._log(path).tail
            raise PveError(
                f"host {self.host}: task {upid} did not end in time; its log ends with:\n     {tail}",
                status=0,
                reason="",
                hint=f"see which tasks the node runs; to stop this task there: pvesh delete /{path}",
            )
        exit_status = str(status.get("exitstatus", "unknown"))
        if exit_status == "OK":
            return TaskEnd(())
        log = self._log(path)
        if exit_status.startswith("WARNINGS:"):
            return TaskEnd(log.warnings or (exit_status,))
        raise TaskFailed(upid, exit_status, log)

    def _log(self, path: str) -> TaskLog:
        return TaskLog(tuple(str(line["t"]) for line in self.get(f"{path}/log", {"limit": _LOG_LINES})))

    def _explain_failure(self, change: _Change, failed: TaskFailed) -> PveError:
        reason = f"{failed.status}\n{failed.log.tail}"
        return PveError(
            f"host {self.host}: {change}: {failed.kind} failed: {failed.status}; its log ends with:\n"
            f"     {failed.log.tail}",
            status=0,
            reason=reason,
            hint=find_remedy(reason, self) or f"the whole log, on the node: pvenode task log {failed.upid}",
        )

    def _call(self, method: str, path: str, params: Params, end: Deadline) -> Any:
        """One request. Renews a ticket once if it is no longer valid: PVE has done nothing in that case."""
        for attempt in (1, 2):
            try:
                answer = self._login.ask(max(end.left, _LEAST_SECONDS), method, path, params)
                source = f"host {self.host}: the answer of Proxmox VE to {method.upper()} {path}"
                return check_answer(source, path, answer) if method == "get" else answer
            except LoginRefused as error:
                # proxmoxer renews an old ticket on its way into a request.
                raise LabUnavailable(f"host {self.host}: the login was not renewed: {error}") from None
            except ApiRefusal as error:
                if error.status == _UNAUTHORIZED and attempt == 1 and self.spec.token is None:
                    self._login.close()
                    self._login = log_in(self.spec, self._secret, self.host)
                    continue
                message = (
                    f"host {self.host}: {method.upper()} {path}: Proxmox VE answers {error.status}: {error.reason}"
                )
                if error.status == _UNAUTHORIZED:
                    keys = (f"host.{self.host}.api.{key}" for key in ("user", "token", "secret"))
                    raise LabUnavailable(message, hint=f"check {', '.join(keys)}") from None
                raise PveError(
                    message, status=error.status, reason=error.reason, hint=find_remedy(error.reason, self)
                ) from None
        raise AssertionError("unreachable: the second attempt returns or raises")


@contextmanager
def open_client(name: str, spec: ProxmoxSpec) -> Iterator[Client]:
    """A client of the node's API, which is logged in until the end of the block."""
    api = spec.api
    secret = read_secret(api.secret, user=api.who, where=f"host.{name}.api.secret", for_header=api.token is not None)
    client = Client(spec.api, secret, name)
    try:
        yield client
    finally:
        client.close()


def _add_first_failure(error: PveError, first: PveError | None) -> PveError:
    """The error of a repeated task with the failure because of which it was repeated."""
    if first is None:
        return error
    message = f"{error.message}\n     it was repeated after: {first.message}"
    return PveError(message, status=error.status, reason=error.reason, hint=error.hint or first.hint)


def _grow_pauses() -> Iterator[float]:
    return growing(_FIRST_PAUSE, _LONGEST_PAUSE)


TO_CREATE_VOLUMES = ("Datastore.AllocateSpace", "Datastore.Audit")
"""The privileges on a storage with which a run creates volumes there."""
_OWNER = ("VM.Allocate", "VM.Audit", "VM.Config.Disk", "VM.Config.HWType", "VM.Config.Memory", "VM.Config.Options")


@dataclass(frozen=True, slots=True)
class Needed:
    """A privilege on a path of Proxmox VE, and its purpose."""

    path: str
    privilege: str
    purpose: str


def list_needed_to_borrow(vm: BorrowedVm) -> list[Needed]:
    """What plugging drives into this VM needs, and the VM that owns the volumes."""
    privileges = [Needed(f"/vms/{vm.name}", name, f"borrowing VM {vm.name}") for name in ("VM.Audit", "VM.Config.Disk")]
    if vm.login is None:
        privileges.append(Needed(f"/vms/{vm.name}", "VM.GuestAgent.Unrestricted", f"commands in VM {vm.name}"))
    return privileges + [Needed("/vms", name, "the VM that owns the volumes") for name in _OWNER]
