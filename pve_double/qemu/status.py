"""How a VM is doing, as status/current and cluster/resources say it."""

from __future__ import annotations

import time
from typing import Any

from pve_double.formats import parse
from pve_double.qemu import network
from pve_double.qemu.drives import boot_disks, drives, parse_drive
from pve_double.qemu.machine import Config, Machine, agent_enabled, cpus, memory_mib
from pve_double.qemu.machine_type import QEMU_VERSION
from pve_double.state import Node

_COUNTERS = (
    "rd_bytes", "wr_bytes", "rd_operations", "wr_operations", "flush_operations", "unmap_bytes", "unmap_operations",
    "rd_merged", "wr_merged", "rd_total_time_ns", "wr_total_time_ns", "flush_total_time_ns",
)  # fmt: skip
_PRESSURES = tuple(f"pressure{of}{how}" for of in ("cpu", "io", "memory") for how in ("some", "full"))
"""Shares of the last ten seconds in which the VM waited, in percent. The double's guests never wait."""


def summary(node: Node, vmid: int) -> dict[str, Any]:
    """As the node's list of VMs has it."""
    machine = node.machine(vmid)
    running = node.running(vmid)
    config = machine.process.config if machine.process is not None else machine.config
    found: dict[str, Any] = {
        "vmid": vmid,
        "name": machine.name,
        "status": "running" if running else "stopped",
        "cpus": cpus(config),
        "cpu": 0,
        "maxmem": memory_mib(config) * 1024**2,
        "mem": 0,
        "memhost": 0,
        "maxdisk": _boot_disk_bytes(machine.config),
        "disk": 0,
        "netin": 0,
        "netout": 0,
        "uptime": 0,
    }
    if running and machine.process is not None:
        found |= {"pid": machine.process.pid, "uptime": int(node.pace.passed(machine.process.started))}
        found |= {"diskread": 0, "diskwrite": 0} | dict.fromkeys(_PRESSURES, 0)
    found |= {name: machine.config[name] for name in ("tags", "lock") if name in machine.config}
    found |= {"template": 1} if machine.is_template else {}
    return found | ({"serial": 1} if "serial0" in machine.config or running else {})


def current(node: Node, vmid: int) -> dict[str, Any]:
    """As status/current has it, with QEMU's counters where it runs."""
    machine = node.machine(vmid)
    found = summary(node, vmid) | {"ha": {"managed": 0}, "qmpstatus": "stopped"}
    if agent_enabled(machine.config):
        found["agent"] = 1
    if "vga" in machine.config:
        found["clipboard"] = parse({"named": "vga"}, machine.config["vga"]).get("clipboard")
    if machine.process is not None:
        found |= _running(node, machine)
    return found


def _running(node: Node, machine: Machine) -> dict[str, Any]:
    if machine.process is None:
        return {}
    counted = node.executor.block_statistics(machine.vmid) or {
        drive.key: dict.fromkeys(_COUNTERS, 0) for drive in drives(machine.process.config) if drive.file != "none"
    }
    kind = machine.process.config.get("machine", "pc").partition(",")[0]
    names = {"pc": f"pc-i440fx-{QEMU_VERSION[:4]}", "q35": f"pc-q35-{QEMU_VERSION[:4]}"}
    return {
        "qmpstatus": "paused" if machine.process.paused else "running",
        "running-qemu": QEMU_VERSION,
        "running-machine": names.get(kind, kind),
        "proxmox-support": {},
        "blockstat": counted,
        "diskread": sum(int(each.get("rd_bytes", 0)) for each in counted.values()),
        "diskwrite": sum(int(each.get("wr_bytes", 0)) for each in counted.values()),
        "nics": {
            f"tap{machine.vmid}i{card.index}": {"netin": 0, "netout": 0}
            for card in network.cards(machine.process.config)
        },
    }


def resource(node: Node, vmid: int) -> dict[str, Any]:
    """As cluster/resources has it."""
    found = summary(node, vmid)
    kept = {name: found[name] for name in found if name not in {"cpus", "pid", "serial", "ha"}}
    kept |= {"id": f"qemu/{vmid}", "type": "qemu", "node": node.name, "maxcpu": found["cpus"]}
    kept |= {"template": found.get("template", 0), "diskread": 0, "diskwrite": 0}
    return kept | ({"pool": node.pool_of[vmid]} if vmid in node.pool_of else {})


def _boot_disk_bytes(config: Config) -> int:
    for key in boot_disks(config):
        drive = parse_drive(key, config[key])
        if drive is not None and "size" in drive.options:
            return int(drive.options["size"])
    return 0


def answers_agent(machine: Machine) -> bool:
    """Whether the guest was started with an agent's port, and is up."""
    process = machine.process
    return process is not None and agent_enabled(process.config) and time.monotonic() >= process.answers_from
