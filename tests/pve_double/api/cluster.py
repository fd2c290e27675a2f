"""The cluster, the node itself, pools, and tasks."""

from __future__ import annotations

import time
from typing import Any

from tests.pve_double.api.call import Call
from tests.pve_double.errors import PveError, bad_parameters
from tests.pve_double.permissions import ROOT
from tests.pve_double.qemu import status
from tests.pve_double.schema import split_list
from tests.pve_double.state import KERNEL, MANAGER, VERSION
from tests.pve_double.tasks import Task

_GIB = 1024**3
_TOTAL_MEMORY = 25_276_510_208
_ROOT_BYTES = 270_553_174_016
_FLAGS = "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat sse sse2 ht syscall nx lm hypervisor"


def version(call: Call) -> dict[str, str]:
    del call
    return dict(VERSION)


def next_id(call: Call) -> str:
    if "vmid" not in call.params:
        return str(call.node.next_vmid())
    if call.vmid in call.node.machines:
        raise bad_parameters({"vmid": f"VM {call.vmid} already exists"})
    return call.text("vmid")


def resources(call: Call) -> list[dict[str, Any]]:
    kind, may = call.text("type"), call.node.permissions
    found: list[dict[str, Any]] = []
    if kind in {"", "vm"}:
        found += [
            status.resource(call.node, vmid)
            for vmid in sorted(call.node.machines)
            if may.has(call.user, f"/vms/{vmid}", ["VM.Audit"])
        ]
    if kind in {"", "node"}:
        found.append(_node_summary(call) | {"id": f"node/{call.node.name}", "type": "node"})
    if kind in {"", "storage"}:
        found += [_storage_resource(call, each) for each in call.node.store.statuses()]
    return found


def _storage_resource(call: Call, each: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"storage/{call.node.name}/{each['storage']}",
        "type": "storage",
        "storage": each["storage"],
        "node": call.node.name,
        "plugintype": each["type"],
        "content": each["content"],
        "status": "available",
        "shared": 0,
        "disk": each["used"],
        "maxdisk": each["total"],
    }


def cluster_status(call: Call) -> list[dict[str, Any]]:
    name = call.node.name
    return [{"id": f"node/{name}", "type": "node", "name": name, "nodeid": 0, "local": 1, "online": 1, "level": ""}]


def nodes(call: Call) -> list[dict[str, Any]]:
    return [_node_summary(call) | {"id": f"node/{call.node.name}", "type": "node", "level": ""}]


def _node_summary(call: Call) -> dict[str, Any]:
    uptime = int(time.monotonic() - call.node.started)
    memory = {"mem": 1_140_834_304, "maxmem": _TOTAL_MEMORY, "disk": 0, "maxdisk": _ROOT_BYTES}
    return {"node": call.node.name, "status": "online", "uptime": uptime, "cpu": 0, **memory} | {
        "maxcpu": call.node.settings.cpus
    }


def containers(call: Call) -> list[dict[str, Any]]:
    """The double has none."""
    del call
    return []


def node_status(call: Call) -> dict[str, Any]:
    cpus = call.node.settings.cpus
    kernel = {"sysname": "Linux", "release": KERNEL, "machine": "x86_64", "version": "#1 SMP PREEMPT_DYNAMIC"}
    return {
        "boot-info": {"mode": "legacy-bios"},
        "cpu": 0,
        "cpuinfo": {
            "cpus": cpus,
            "cores": cpus,
            "sockets": 1,
            "model": "double",
            "mhz": "2300.000",
            "hvm": "1" if call.node.settings.kvm else "",
            "flags": _FLAGS,
            "user_hz": 100,
        },
        "current-kernel": kernel,
        "kversion": f"Linux {kernel['release']} {kernel['version']}",
        "pveversion": MANAGER,
        "loadavg": ["0.00", "0.00", "0.00"],
        "memory": {"total": _TOTAL_MEMORY, "used": 1_140_834_304, "free": 23_388_540_928, "available": 24_135_675_904},
        "rootfs": {"total": _ROOT_BYTES, "used": 19_864_113_152, "free": 250_689_060_864, "avail": 77_929_181_184},
        "swap": {"total": 0, "used": 0, "free": 0},
        "ksm": {"shared": 0},
        "uptime": int(time.monotonic() - call.node.started),
        "idle": 0,
        "wait": 0,
    }


def network(call: Call) -> list[dict[str, Any]]:
    family: dict[str, Any] = {"active": 1, "families": ["inet"], "method6": "manual"}
    card = family | {"iface": "eth0", "type": "eth", "method": "manual", "exists": 1}
    bridges = [
        family
        | {"iface": name, "type": "bridge", "method": "static", "autostart": 1, "bridge_ports": "", "priority": 3}
        | {"address": "10.99.0.1", "netmask": "16", "cidr": "10.99.0.1/16", "bridge_fd": "0", "bridge_stp": "off"}
        for name in call.node.settings.bridges
    ]
    kind = call.text("type")
    wanted = {"any_bridge": "bridge", "any_local_bridge": "bridge"}.get(kind, kind)
    return [each for each in [card, *bridges] if not wanted or each["type"] == wanted]


# Pools


def list_pools(call: Call) -> list[dict[str, Any]]:
    if "poolid" in call.params:
        return [get_pool(call)]
    return [{"poolid": name, **pool} for name, pool in sorted(call.node.pools.items())]


def create_pool(call: Call) -> None:
    name = call.text("poolid")
    if name in call.node.pools:
        raise PveError(f"create pool failed: pool '{name}' already exists")
    call.node.pools[name] = {"comment": call.text("comment")} if "comment" in call.params else {}


def get_pool(call: Call) -> dict[str, Any]:
    name = _existing_pool(call)
    members = [status.resource(call.node, vmid) for vmid, pool in sorted(call.node.pool_of.items()) if pool == name]
    return {"poolid": name, **call.node.pools[name], "members": members}


def update_pool(call: Call) -> None:
    name = _existing_pool(call)
    for each in split_list(call.text("vms")):
        if int(each) not in call.node.machines:
            raise PveError(f"update pools failed: VM {each} does not exist")
        if call.flag("delete"):
            if call.node.pool_of.pop(int(each), None) != name:
                raise PveError(f"update pools failed: VM {each} is not a pool member")
        else:
            call.node.pool_of[int(each)] = name


def delete_pool(call: Call) -> None:
    name = _existing_pool(call)
    if name in call.node.pool_of.values():
        raise PveError(f"delete pool failed: pool '{name}' is not empty")
    del call.node.pools[name]


def _existing_pool(call: Call) -> str:
    name = call.text("poolid")
    if name not in call.node.pools:
        raise PveError(f"pool '{name}' does not exist")
    return name


# Tasks


def list_tasks(call: Call) -> list[dict[str, Any]]:
    found = [task for task in reversed(list(call.node.tasks)) if _visible(call, task) and _wanted(call, task)]
    start = call.number("start", 0)
    return [task.summary() for task in found[start : start + call.number("limit", 50)]]


def _visible(call: Call, task: Task) -> bool:
    owner = call.user.partition("!")[0]
    return task.user.partition("!")[0] == owner or call.node.permissions.has(
        call.user, f"/nodes/{call.node.name}", ["Sys.Audit"]
    )


def _wanted(call: Call, task: Task) -> bool:
    ended = task.exitstatus
    source = call.text("source", "archive")
    failed = ended is not None and ended != "OK" and not ended.startswith("WARNINGS")
    return (
        (ended is not None if source == "archive" else source == "all" or ended is None)
        and call.text("vmid", task.id) == task.id
        and task.kind.startswith(call.text("typefilter"))
        and call.text("userfilter") in task.user
        and (failed or not call.flag("errors"))
    )


def task_status(call: Call) -> dict[str, Any]:
    return _own_task(call).status()


def task_log(call: Call) -> list[dict[str, Any]]:
    lines = _own_task(call).log.lines or ["no content"]
    start, limit = call.number("start", 0), call.number("limit", 50)
    shown = lines[start:] if limit == 0 else lines[start : start + limit]
    return [{"n": start + place + 1, "t": line} for place, line in enumerate(shown)]


def stop_task(call: Call) -> None:
    _own_task(call)


def _own_task(call: Call) -> Task:
    task = call.node.tasks.find(call.text("upid"))
    if call.user != ROOT and not _visible(call, task):
        call.node.permissions.require(call.user, f"/nodes/{call.node.name}", ["Sys.Audit"])
    return task


def index(*names: str) -> Any:
    """A handler that lists what is below a path."""

    def listing(call: Call) -> list[dict[str, str]]:
        del call
        return [{"name": name, "subdir": name} for name in names]

    return listing
