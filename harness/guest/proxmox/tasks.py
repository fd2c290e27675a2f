"""Tasks of Proxmox VE: the parts of a UPID, how a task ended, its log."""

from __future__ import annotations

from dataclasses import dataclass

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


def task_node(upid: str) -> str:
    """The node that a task runs on."""
    return upid.split(":")[1]
