"""The calls about tasks, after PVE::API2::Tasks."""

from __future__ import annotations

from typing import Any

from pve_double.api.call import Call, Handler
from pve_double.schema import split_list
from pve_double.tasks import Task

_TASK = "/nodes/{node}/tasks/{upid}"


def list_tasks(call: Call) -> list[dict[str, Any]]:
    found = [task for task in reversed(list(call.node.tasks)) if _visible(call, task) and _wanted(call, task)]
    start = call.number("start", 0)
    return [task.summary() for task in found[start : start + call.number("limit", 50)]]


def _own(call: Call, task: Task) -> bool:
    """A user's tasks are also those of the user's tokens; a token's are its alone."""
    return call.user in {task.user, task.user.partition("!")[0]}


def _visible(call: Call, task: Task) -> bool:
    return _own(call, task) or call.node.permissions.has(call.user, f"/nodes/{call.node.name}", ["Sys.Audit"])


def _wanted(call: Call, task: Task) -> bool:
    ended = task.exitstatus
    source = call.text("source", "archive")
    kinds = {kind.lower() for kind in split_list(call.text("statusfilter"))}
    return (
        (ended is not None if source == "archive" else source == "all" or ended is None)
        and call.text("vmid", task.id) == task.id
        and call.text("typefilter").lower() in task.kind.lower()
        and call.text("userfilter").lower() in task.user.lower()
        and not (call.flag("errors") and ended == "OK")
        and (not kinds or _status_kind(ended) in kinds)
        and call.number("since", 0) <= task.started <= call.number("until", task.started)
    )


def _status_kind(ended: str | None) -> str:
    if ended is None:
        return "unknown"
    return "ok" if ended == "OK" else "warning" if ended.startswith("WARNINGS") else "error"


def below_task(call: Call) -> list[dict[str, str]]:
    del call
    return [{"name": "log"}, {"name": "status"}]


def task_status(call: Call) -> dict[str, Any]:
    return _task(call).status()


def task_log(call: Call) -> list[dict[str, Any]]:
    lines = _task(call).log.lines or ["no content"]
    start, limit = call.number("start", 0), call.number("limit", 50)
    shown = lines[start:] if limit == 0 else lines[start : start + limit]
    return [{"n": start + place + 1, "t": line} for place, line in enumerate(shown)]


def _task(call: Call) -> Task:
    task = call.node.tasks.find(call.text("upid"))
    if not _own(call, task):
        call.node.permissions.require(call.user, f"/nodes/{call.node.name}", ["Sys.Audit"])
    return task


def stop_task(call: Call) -> None:
    task = call.node.tasks.find(call.text("upid"))
    if not _own(call, task):
        call.node.permissions.require(call.user, f"/nodes/{call.node.name}", ["Sys.Modify"])
    task.log.stop.set()


ROUTES: dict[tuple[str, str], Handler] = {
    ("GET", "/nodes/{node}/tasks"): list_tasks,
    ("GET", _TASK): below_task,
    ("DELETE", _TASK): stop_task,
    ("GET", f"{_TASK}/status"): task_status,
    ("GET", f"{_TASK}/log"): task_log,
}
