"""QEMU's arguments for a VM's memory: its NUMA nodes and huge pages, and what PVE refuses (QemuServer/Memory.pm)."""

from __future__ import annotations

from collections.abc import Iterator

from pve_double.errors import PveError
from pve_double.formats import parse
from pve_double.qemu.machine import Config, cpus, memory_mib
from pve_double.schema import COUNTS

NODES = frozenset({0})
"""The NUMA nodes of a double's node."""
_PAGES = {"2": 2, "1024": 1024}
"""MiB of a huge page. With `any`, PVE takes the larger one that fits."""


def memory(config: Config) -> list[str]:
    """`-m`, and one memory backend for each NUMA node of the VM. Raises PveError where PVE refuses to start it."""
    words = ["-m", str(memory_mib(config))]
    if config.get("numa", "0") != "1":
        if "hugepages" in config:
            raise PveError("numa needs to be enabled to use hugepages")
        return words
    nodes = list(_requested(config)) or list(_by_socket(config))
    if sum(size for size, _, _ in nodes) != memory_mib(config):
        raise PveError("total memory for NUMA nodes must be equal to vm static memory")
    for number, (size, on, where) in enumerate(nodes):
        name = f"ram-node{number}"
        words += ["-object", f"{_backend(config, name, size)}{where}"]
        words += ["-numa", f"node,nodeid={number},cpus={on},memdev={name}"]
    return words


def _requested(config: Config) -> Iterator[tuple[int, str, str]]:
    """MiB, CPUs and place of each node that the configuration has."""
    for index in range(COUNTS["numa"]):
        if f"numa{index}" not in config:
            continue
        given = parse({"named": "numa[n]"}, config[f"numa{index}"])
        if "memory" not in given:
            raise PveError(f"missing NUMA node{index} memory value")
        yield int(float(given["memory"])), given["cpus"].replace(";", ",cpus="), _place(config, given)


def _place(config: Config, given: dict[str, str]) -> str:
    if "hostnodes" not in given:
        if "hugepages" in config:
            raise PveError("numa hostnodes need to be defined to use hugepages")
        return ""
    nodes = given["hostnodes"].replace(";", ",")
    for part in nodes.split(","):
        first, _, last = part.partition("-")
        for node in range(int(first), int(last or first) + 1):
            if node not in NODES:
                raise PveError(f"host NUMA node{node} doesn't exist")
    if "policy" not in given:
        raise PveError(f"you need to define a policy for hostnode {nodes}")
    return f",host-nodes={nodes},policy={given['policy']}"


def _by_socket(config: Config) -> Iterator[tuple[int, str, str]]:
    """Memory and CPUs divided among the sockets."""
    sockets = int(config.get("sockets", "1"))
    cores = cpus(config) // sockets
    for number in range(sockets):
        first = cores * number
        yield memory_mib(config) // sockets, str(first) if cores == 1 else f"{first}-{first + cores - 1}", ""


def _backend(config: Config, name: str, size: int) -> str:
    if "hugepages" not in config:
        return f"memory-backend-ram,id={name},size={size}M"
    page = _PAGES.get(config["hugepages"]) or (1024 if size % 1024 == 0 else 2)
    if size % page:
        raise PveError(f"Memory size {size} is not a multiple of the requested hugepages size {page}")
    path = f"/run/hugepages/kvm/{page * 1024}kB"
    return f"memory-backend-file,id={name},size={size}M,mem-path={path},share=on,prealloc=yes"
