"""The calls about containers."""

from __future__ import annotations

from typing import Any

from pve_double.api.call import Call, Handler
from pve_double.lxc import containers
from pve_double.qemu.volumes import Request

_LXC = "/nodes/{node}/lxc"
_CT = f"{_LXC}/{{vmid}}"


def _request(call: Call) -> Request:
    return Request(call.node, call.user, call.vmid)


def list_containers(call: Call) -> list[dict[str, Any]]:
    return [containers.status(call.node, vmid) for vmid in call.node.containers]


def create_container(call: Call) -> str:
    return containers.create(_request(call), call.texts)


def destroy_container(call: Call) -> str:
    unreferenced = call.flag("destroy-unreferenced-disks")
    return containers.destroy_task(_request(call), force=call.flag("force"), unreferenced=unreferenced)


def get_config(call: Call) -> dict[str, str]:
    return dict(containers.find(call.node, call.vmid).config)


def put_config(call: Call) -> None:
    containers.configure(_request(call), call.texts)


def current_status(call: Call) -> dict[str, Any]:
    return containers.status(call.node, call.vmid)


def start(call: Call) -> str:
    return containers.start_task(_request(call))


def stop(call: Call) -> str:
    return containers.stop_task(_request(call))


def list_snapshots(call: Call) -> list[dict[str, str]]:
    snapshots = containers.find(call.node, call.vmid).snapshots
    found = [{"name": name, "description": ""} for name in snapshots]
    return [*found, {"name": "current", "description": "You are here!"}]


def snapshot_config(call: Call) -> dict[str, str]:
    return dict(containers.find(call.node, call.vmid).snapshots[call.text("snapname")])


ROUTES: dict[tuple[str, str], Handler] = {
    ("GET", _LXC): list_containers,
    ("POST", _LXC): create_container,
    ("DELETE", _CT): destroy_container,
    ("GET", f"{_CT}/config"): get_config,
    ("PUT", f"{_CT}/config"): put_config,
    ("GET", f"{_CT}/status/current"): current_status,
    ("POST", f"{_CT}/status/start"): start,
    ("POST", f"{_CT}/status/stop"): stop,
    ("GET", f"{_CT}/snapshot"): list_snapshots,
    ("GET", f"{_CT}/snapshot/{{snapname}}/config"): snapshot_config,
}
