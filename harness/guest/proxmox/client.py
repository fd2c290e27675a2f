"""The node's API, called so that a failure on the way neither hides what happened nor makes it happen twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.cleanup import Cleanup
from harness.errors import HostError, LabUnavailable
from harness.guest.proxmox.connection import log_in, unreachable
from harness.guest.proxmox.failures import LoginRefused, Refused, Unanswered
from harness.guest.proxmox.refusals import is_lock_timeout, remedy
from harness.guest.proxmox.secrets import Secret
from harness.guest.proxmox.tasks import TaskEnd, TaskFailed, TaskLog, is_upid, task_node
from harness.lab.proxmox import ApiSpec
from harness.waiting import Deadline, attempts, growing, wait_until

READ_SECONDS = 60.0
WRITE_SECONDS = 120.0
SETTLE_SECONDS = 60.0
"""For how long what became of a write is looked for when its answer was lost: PVE goes on after a 596."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
_POLL_SECONDS = 0.5
_LOG_LINES = 100_000
"""More than any task of ours writes; of a longer log PVE would tell the beginning."""
_LEAST_SECONDS, _LEAST_SETTLING = 5.0, 2.0
"""What one request, and looking for what became of a write, may take at the end of the time."""

Method = Literal["post", "put", "delete"]
Params = Mapping[str, object]
"""Parameters of a call as PVE names them; a bool becomes 0 or 1, as PVE wants it."""
Seen = Callable[[], bool]
"""Says whether what a write was to do is done, by reading it back."""

_UNAUTHORIZED = 401
_LOST = frozenset({595, 596, 597, 598, 599, 502, 503, 504})
"""The proxy lost the answer (AnyEvent::HTTP's numbers), or it could not pass the request on."""


class PveError(HostError):
    """Proxmox VE refused a call or a task of its failed. `status` is HTTP's, 0 for a task; `said` PVE's own words."""

    def __init__(self, message: str, *, status: int, said: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.said = said

    @property
    def lost(self) -> bool:
        """Whether it was the answer that was lost, and not the call refused."""
        return self.status in _LOST


@dataclass(frozen=True, slots=True)
class Expected:
    """How the task of a write can be found again if its answer is lost: PVE's kind of task, and what it works on."""

    kind: str
    of: str


@dataclass(frozen=True, slots=True)
class _Change:
    """A write, and how it is found out whether it was done if its answer is lost."""

    method: Method
    path: str
    params: Params
    seen: Seen
    expected: Expected | None = None

    def __str__(self) -> str:
        return f"{self.method.upper()} {self.path}"


class Client:
    """Calls one node's API. Every call ends by its deadline, in seconds, and errors carry what PVE said."""

    def __init__(self, spec: ApiSpec, secret: Secret, host: str) -> None:
        """Log in. `host` is what messages call the node. Raises LabUnavailable with the remedy."""
        self.spec = spec
        self.host = host
        self._secret = secret
        self._login = log_in(self.spec, self._secret, self.host)

    def close(self) -> None:
        self._login.close()

    def cleanup(self) -> Cleanup:
        """A block that ends by taking back what was made on the node."""
        return Cleanup(f"host {self.host}", f"virt-overhead reap --host {self.host}")

    @property
    def node(self) -> str:
        """The path of everything on the node."""
        return f"nodes/{self.spec.node}"

    def get(self, path: str, params: Params | None = None, *, deadline: float = READ_SECONDS) -> Any:
        """What stands there. Read again, with back-off, when the answer is lost or a lock is held."""
        end = Deadline.after(deadline)
        for attempt in attempts(end, _pauses()):
            try:
                return self._call("get", path, params or {}, end)
            except PveError as error:
                if not (error.lost or is_lock_timeout(error.said)) or attempt.is_last:
                    raise
            except Unanswered as error:
                if error.final or attempt.is_last:
                    raise unreachable(self.spec, self.host, error) from None
        raise AssertionError("unreachable: the pauses have no end")

    def write(self, method: Method, path: str, params: Params, *, seen: Seen, deadline: float = WRITE_SECONDS) -> Any:
        """Make a change that PVE makes at once; its answer, None where that was lost but the change was `seen`.

        It is asked for again only where nothing was done: a lock that PVE waited for in vain, no connection.
        """
        return self._written(_Change(method, path, params, seen), Deadline.after(deadline))

    def task(
        self,
        method: Method,
        path: str,
        params: Params,
        *,
        seen: Seen,
        deadline: float,
        expected: Expected | None = None,
    ) -> TaskEnd:
        """Make a change for which PVE starts a task, and wait for that task's end.

        Raises PveError with the end of the task's log where it failed. Warnings are the caller's to judge. Where the
        answer is lost, the task is looked for by `expected`, and the change by `seen`.
        """
        change = _Change(method, path, params, seen, expected)
        end = Deadline.after(deadline)
        for attempt in attempts(end, _pauses()):
            answer = self._written(change, end)
            if not is_upid(answer):
                return TaskEnd(())
            try:
                return self._ended(answer, end)
            except TaskFailed as failed:
                if not is_lock_timeout(failed.status) or attempt.is_last:
                    raise self._failed(change, failed) from None
        raise AssertionError("unreachable: the pauses have no end")

    def _written(self, change: _Change, end: Deadline) -> Any:
        before = self._tasks_of(change.expected)
        for attempt in attempts(end, _pauses()):
            try:
                return self._call(change.method, change.path, change.params, end)
            except PveError as error:
                if error.lost:
                    return self._settled(change, error.message, end, before)
                if not is_lock_timeout(error.said) or attempt.is_last:
                    raise
            except Unanswered as error:
                cause = unreachable(self.spec, self.host, error)
                if not error.never_sent:
                    return self._settled(change, f"host {self.host}: {change}: {cause.message}", end, before)
                if error.final or attempt.is_last:
                    raise cause from None
        raise AssertionError("unreachable: the pauses have no end")

    def _settled(self, change: _Change, what: str, end: Deadline, before: frozenset[str]) -> str | None:
        """The UPID of the write's task, or None where the write is done; an error where neither shows in time."""
        started: frozenset[str] = frozenset()

        def settled() -> bool:
            nonlocal started
            started = self._tasks_of(change.expected) - before
            return bool(started) or change.seen()

        seconds = max(min(end.left, SETTLE_SECONDS), _LEAST_SETTLING)
        if not wait_until(settled, deadline=seconds, every=_POLL_SECONDS):
            raise PveError(
                f"{what}; it is not known whether it was done, and it was not asked for again",
                status=0,
                said=what,
                hint=f"see the task log of {self.spec.node}, then: virt-overhead reap --host {self.host}",
            )
        return max(started) if started else None

    def _tasks_of(self, expected: Expected | None) -> frozenset[str]:
        if expected is None:
            return frozenset()
        tasks = self.get(f"{self.node}/tasks", {"source": "all", "typefilter": expected.kind, "limit": 50})
        return frozenset(each["upid"] for each in tasks if str(each.get("id") or "") == expected.of)

    def _ended(self, upid: str, end: Deadline) -> TaskEnd:
        path = f"nodes/{task_node(upid)}/tasks/{upid}"

        def stopped() -> dict[str, Any] | None:
            found: dict[str, Any] = self.get(f"{path}/status")
            return found if found["status"] == "stopped" else None

        status = wait_until(stopped, deadline=end, every=growing(0.1, _POLL_SECONDS, factor=1.5))
        if status is None:
            tail = self._log(path).tail
            raise PveError(
                f"host {self.host}: task {upid} did not end in time; its log ends with:\n     {tail}",
                status=0,
                said="",
                hint=f"see what the node is busy with; to stop the task there: pvesh delete /{path}",
            )
        said = str(status.get("exitstatus", "unknown"))
        if said == "OK":
            return TaskEnd(())
        log = self._log(path)
        if said.startswith("WARNINGS:"):
            return TaskEnd(log.warnings or (said,))
        raise TaskFailed(upid, said, log)

    def _log(self, path: str) -> TaskLog:
        return TaskLog(tuple(str(line["t"]) for line in self.get(f"{path}/log", {"limit": _LOG_LINES})))

    def _failed(self, change: _Change, failed: TaskFailed) -> PveError:
        said = f"{failed.status}\n{failed.log.tail}"
        return PveError(
            f"host {self.host}: {change}: {failed.kind} failed: {failed.status}; its log ends with:\n"
            f"     {failed.log.tail}",
            status=0,
            said=said,
            hint=remedy(said, self.spec) or f"the whole log, on the node: pvenode task log {failed.upid}",
        )

    def _call(self, method: str, path: str, params: Params, end: Deadline) -> Any:
        """One request. A ticket that is no longer valid is renewed once: PVE has done nothing then."""
        for attempt in (1, 2):
            try:
                return self._login.ask(max(end.left, _LEAST_SECONDS), method, path, params)
            except LoginRefused as error:
                # proxmoxer renews an old ticket on its way into a request.
                raise LabUnavailable(f"host {self.host}: the login was not renewed: {error}") from None
            except Refused as error:
                if error.status == _UNAUTHORIZED and attempt == 1 and self.spec.token is None:
                    self._login.close()
                    self._login = log_in(self.spec, self._secret, self.host)
                    continue
                message = f"host {self.host}: {method.upper()} {path}: Proxmox VE says {error.status}: {error.said}"
                if error.status == _UNAUTHORIZED:
                    raise LabUnavailable(message, hint=f"check user and secret under host.{self.host}.api") from None
                raise PveError(
                    message, status=error.status, said=error.said, hint=remedy(error.said, self.spec)
                ) from None
        raise AssertionError("unreachable: the second attempt returns or raises")


def _pauses() -> Iterator[float]:
    return growing(_FIRST_PAUSE, _LONGEST_PAUSE)
