"""Tasks in the background: UPIDs, logs, exit statuses, and the list of them."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pve_double.errors import PveError, bad_parameters
from pve_double.faults import Faults

UPID = re.compile(
    r"UPID:(?P<node>[^:]+):(?P<pid>[0-9A-F]{8}):(?P<pstart>[0-9A-F]{8,9}):(?P<start>[0-9A-F]{8})"
    r":(?P<kind>[^:\s]+):(?P<id>[^:\s]*):(?P<user>[^:\s]+):"
)


@dataclass(slots=True)
class TaskLog:
    """What a task prints; `warn` is what makes it end with WARNINGS."""

    lines: list[str] = field(default_factory=list)
    warnings: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when somebody stops the task. Only tasks that take long look at it."""

    def line(self, text: str) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.lines.append(f"WARN: {text}")
        self.warnings += 1


Work = Callable[[TaskLog], object]


@dataclass(slots=True)
class Task:
    """A task that runs (`exitstatus` is None) or has ended."""

    upid: str
    node: str
    kind: str
    id: str
    user: str
    pid: int
    pstart: int
    started: int
    log: TaskLog = field(default_factory=TaskLog)
    exitstatus: str | None = None
    ended: int = 0
    done: threading.Event = field(default_factory=threading.Event)

    def run(self, work: Work) -> None:
        """Do the work and keep how it ended. Never raises: a task's failure is its exit status."""
        try:
            work(self.log)
        except PveError as failed:
            self._end(str(failed).replace("\n", " "), "TASK ERROR: {}")
        except Exception as broken:
            # A fault of the double itself has to be seen by whoever waits for this task, not only on stderr.
            self._end(f"the double is broken: {broken!r}", "TASK ERROR: {}")
            raise
        else:
            warnings = self.log.warnings
            self._end(f"WARNINGS: {warnings}" if warnings else "OK", "TASK {}")

    def _end(self, status: str, last_line: str) -> None:
        self.log.line(last_line.format(status))
        self.exitstatus = status
        self.ended = int(time.time())
        self.done.set()

    def _identity(self) -> dict[str, Any]:
        user, _, token = self.user.partition("!")
        fields: dict[str, Any] = {
            "upid": self.upid,
            "node": self.node,
            "pid": self.pid,
            "pstart": self.pstart,
            "starttime": self.started,
            "type": self.kind,
            "id": self.id,
            "user": user,
        }
        return fields | ({"tokenid": token} if token else {})

    def status(self) -> dict[str, Any]:
        """As tasks/{upid}/status has it."""
        if self.exitstatus is None:
            return self._identity() | {"status": "running"}
        return self._identity() | {"status": "stopped", "exitstatus": self.exitstatus}

    def summary(self) -> dict[str, Any]:
        """As the list of tasks has it."""
        if self.exitstatus is None:
            return self._identity()
        return self._identity() | {"status": self.exitstatus, "endtime": self.ended}


class Tasks:
    """All tasks of a node, newest last."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._tasks: dict[str, Task] = {}
        self._pids = itertools.count(20_000, 3)
        self._booted = time.monotonic()
        self._disturbance = threading.local()

    @contextlib.contextmanager
    def disturbed(self, faults: Faults, call: str) -> Iterator[None]:
        """Tasks that this thread starts meanwhile meet the faults that fit `call`."""
        self._disturbance.by = (faults, call)
        try:
            yield
        finally:
            del self._disturbance.by

    def __iter__(self) -> Iterator[Task]:
        return iter(list(self._tasks.values()))

    def start(self, kind: str, id_: str, user: str, work: Work) -> str:
        """Begin a task in the background; its UPID."""
        task = self._new(kind, id_, user)
        if disturbance := getattr(self._disturbance, "by", None):
            work = _disturbed(work, *disturbance)
        threading.Thread(target=task.run, args=(work,), name=task.upid, daemon=True).start()
        return task.upid

    def _new(self, kind: str, id_: str, user: str) -> Task:
        pid, started = next(self._pids), int(time.time())
        pstart = int((time.monotonic() - self._booted) * 100) + 360_000
        upid = f"UPID:{self._node}:{pid:08X}:{pstart:08X}:{started:08X}:{kind}:{id_}:{user}:"
        task = self._tasks[upid] = Task(upid, self._node, kind, id_, user, pid, pstart, started)
        return task

    def find(self, upid: str) -> Task:
        """The task of this UPID; 400 as PVE says it where there is none."""
        if not UPID.fullmatch(upid):
            raise bad_parameters({"upid": "unable to parse worker upid"})
        if upid not in self._tasks:
            raise bad_parameters({"upid": "no such task"})
        return self._tasks[upid]

    def wait(self, *, seconds: float) -> bool:
        """Wait until none runs; whether that came true in time."""
        deadline = time.monotonic() + seconds
        return all(task.done.wait(max(0.0, deadline - time.monotonic())) for task in self)


def _disturbed(work: Work, faults: Faults, call: str) -> Work:
    fails, warns = faults.take("task-fails", call), faults.take("warnings", call)

    def other(log: TaskLog) -> None:
        if fails is None or fails.after:
            work(log)
        if fails is not None:
            raise PveError(fails.text)
        if warns is not None:
            log.warn(warns.text)

    return other
