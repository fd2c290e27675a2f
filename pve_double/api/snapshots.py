"""The calls about snapshots of virtual machines."""

from __future__ import annotations

from typing import Any

from pve_double.api.call import Call, Handler
from pve_double.qemu import snapshots
from pve_double.qemu.volumes import Request

_SNAPSHOTS = "/nodes/{node}/qemu/{vmid}/snapshot"
_SNAPSHOT = f"{_SNAPSHOTS}/{{snapname}}"


def list_snapshots(call: Call) -> list[dict[str, Any]]:
    return snapshots.listing(call.node, call.node.machine(call.vmid))


def create_snapshot(call: Call) -> str:
    return snapshots.snapshot_task(call.node, call.user, call.vmid, call.text("snapname"), call.text("description"))


def delete_snapshot(call: Call) -> str:
    return snapshots.delete_snapshot_task(call.node, call.user, call.vmid, call.text("snapname"))


def rollback(call: Call) -> str:
    return snapshots.rollback_task(
        Request(call.node, call.user, call.vmid), call.text("snapname"), start=call.flag("start")
    )


def snapshot_config(call: Call) -> dict[str, Any]:
    return snapshots.shown(snapshots.existing(call.node.machine(call.vmid), call.text("snapname")))


def describe_snapshot(call: Call) -> None:
    if "description" in call.params:
        snapshots.describe(call.node, call.vmid, call.text("snapname"), call.text("description"))


ROUTES: dict[tuple[str, str], Handler] = {
    ("GET", _SNAPSHOTS): list_snapshots,
    ("POST", _SNAPSHOTS): create_snapshot,
    ("DELETE", _SNAPSHOT): delete_snapshot,
    ("POST", f"{_SNAPSHOT}/rollback"): rollback,
    ("GET", f"{_SNAPSHOT}/config"): snapshot_config,
    ("PUT", f"{_SNAPSHOT}/config"): describe_snapshot,
}
