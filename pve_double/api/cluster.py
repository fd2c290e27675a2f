"""The cluster and the node itself."""

from __future__ import annotations

import time
from typing import Any

from pve_double.api.call import Call, Handler
from pve_double.errors import bad_parameters
from pve_double.lxc import containers
from pve_double.qemu import status
from pve_double.state import KERNEL, MANAGER, VERSION

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
    if call.node.has_in_cluster(call.vmid):
        raise bad_parameters({"vmid": f"VM {call.vmid} already exists"})
    return call.text("vmid")


def resources(call: Call) -> list[dict[str, Any]]:
    kind, may = call.text("type"), call.node.permissions
    found: list[dict[str, Any]] = []
    if kind in {"", "vm"}:
        found += [
            status.resource(node, vmid)
            for node in call.node.peers.values()
            for vmid in sorted(node.machines)
            if may.has(call.user, f"/vms/{vmid}", ["VM.Audit"])
        ]
        found += [
            containers.status(node, vmid) | {"id": f"lxc/{vmid}", "node": node.name}
            for node in call.node.peers.values()
            for vmid in sorted(node.containers)
            if may.has(call.user, f"/vms/{vmid}", ["VM.Audit"])
        ]
    if kind in {"", "node"}:
        found.append(_node_summary(call) | {"id": f"node/{call.node.name}", "type": "node"})
    if kind in {"", "storage"}:
        found += [
            _storage_resource(call, each)
            for each in call.node.store.statuses()
            if may.has(call.user, f"/storage/{each['storage']}", ["Datastore.Audit"])
        ]
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


def nodes(call: Call) -> list[dict[str, Any]]:
    return [_node_summary(call) | {"id": f"node/{call.node.name}", "type": "node", "level": ""}]


def _node_summary(call: Call) -> dict[str, Any]:
    uptime = int(time.monotonic() - call.node.started)
    memory = {"mem": 1_140_834_304, "maxmem": _TOTAL_MEMORY, "disk": 0, "maxdisk": _ROOT_BYTES}
    return {"node": call.node.name, "status": "online", "uptime": uptime, "cpu": 0, **memory} | {
        "maxcpu": call.node.settings.cpus
    }


def pci_mappings(call: Call) -> list[dict[str, Any]]:
    """PVE::API2::Cluster::Mapping::PCI: those alone that the caller may see."""
    seeing = ["Mapping.Modify", "Mapping.Use", "Mapping.Audit"]
    return [
        {"id": name, "map": entries}
        for name, entries in call.node.pci_mappings.items()
        if call.node.permissions.has(call.user, f"/mapping/pci/{name}", seeing, any_of=True)
    ]


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


ROUTES: dict[tuple[str, str], Handler] = {
    ("GET", "/version"): version,
    ("GET", "/cluster/nextid"): next_id,
    ("GET", "/cluster/resources"): resources,
    ("GET", "/cluster/mapping/pci"): pci_mappings,
    ("GET", "/nodes"): nodes,
    ("GET", "/nodes/{node}/status"): node_status,
    ("GET", "/nodes/{node}/network"): network,
}
