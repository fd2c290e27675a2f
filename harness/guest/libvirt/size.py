"""The size and placement of a running guest, read back from QEMU's monitor, the live domain XML and the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

from harness.errors import GuestError
from harness.guest.libvirt.connection import Connection
from harness.guest.libvirt.monitor import ask
from harness.guest.libvirt.process import PID_FILE
from harness.guest.placement import Placement, read_placement
from harness.lab.transport.base import Runner
from harness.model.cpus import as_list
from harness.model.effective import NOTHING, Effective
from harness.model.guest import GUEST_OPTIONS
from harness.model.option import IothreadInfo, read_from
from harness.untrusted import reading

_TYPE = "-x86_64-cpu"
_POLICIES = {"bind": "strict"}
"""libvirt's name of a policy for memory, where it differs from QEMU's."""


_POLLING = read_from(IothreadInfo, GUEST_OPTIONS)


@dataclass(frozen=True, slots=True)
class Iothread:
    """An iothread: the id of its thread on the host, and its polling."""

    thread: int
    polling: Effective


@dataclass(frozen=True, slots=True)
class GuestSize:
    """What is read once for all disks of a guest. `whole` belongs to the guest, `iothreads` are by QEMU's name."""

    whole: Effective = NOTHING
    iothreads: Mapping[str, Iothread] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)

    def of_disk(self, names: Iterable[str]) -> Effective:
        """The settings of the guest, and those of the iothreads that serve a disk."""
        serving = [self.iothreads[name] for name in names if name in self.iothreads]
        found = self.whole
        for each in serving:
            found = found.merged(each.polling)
        return found.merged(Effective(host_iothread_cpus=self.placement.of(each.thread for each in serving)))


def read_size(connection: Connection, domain: Any, host: Runner, live: ET.Element) -> GuestSize:
    """The size and placement of the running guest. `live` is the domain as libvirt runs it."""
    with reading(f"host {connection.host}: the size of the guest as QEMU reports it", GuestError):
        vcpus = sorted(ask(connection, domain, "query-cpus-fast"), key=lambda each: int(each["cpu-index"]))
        memory = int(ask(connection, domain, "query-memory-size-summary")["base-memory"])
        model = ask(connection, domain, "qom-get", path=vcpus[0]["qom-path"], property="type")
        backends = ask(connection, domain, "query-memdev")
        threads = ask(connection, domain, "query-iothreads")
        placement = read_placement(host, PID_FILE.format(name=domain.name()), memory)
        whole = Effective(
            qemu_cpu=model.removesuffix(_TYPE),
            qemu_vcpus=len(vcpus),
            qemu_memory=memory,
            **_topology([each["props"] for each in vcpus]),  # type: ignore[arg-type] # numbers, which are checked
            **_numa(live, backends, placement),  # type: ignore[arg-type] # texts
        )
        return GuestSize(
            whole.merged(placement.effective(int(each["thread-id"]) for each in vcpus)),
            {str(thread["id"]): _iothread(thread) for thread in threads},
            placement,
        )


def _topology(vcpus: list[dict[str, int]]) -> dict[str, int]:
    """How many sockets, cores of a socket and threads of a core the vCPUs are spread over.

    Dies, clusters and modules, if QEMU has any, are one each, because none is requested.
    """
    sockets = {each["socket-id"] for each in vcpus}
    cores = {(each["socket-id"], each["core-id"]) for each in vcpus}
    return {
        "qemu_sockets": len(sockets),
        "qemu_cores": len(cores) // len(sockets),
        "qemu_threads": len(vcpus) // len(cores),
    }


def _numa(live: ET.Element, backends: list[dict[str, Any]], placement: Placement) -> dict[str, str]:
    """The nodes of the guest's memory and the policy, if there is one.

    QEMU reports them for its backends. If libvirt only restricts the process (by its cgroup), the kernel does.
    """
    tune = live.find("numatune/memory")
    bound = [backend for backend in backends if backend.get("policy", "default") != "default"]
    if bound:
        nodes = as_list(int(node) for each in bound for node in each["host-nodes"])
        policy = str(bound[0]["policy"])
        return {"qemu_numa_nodes": nodes, "qemu_numa_mode": _POLICIES.get(policy, policy)}
    if tune is None:
        return {}
    return {"qemu_numa_nodes": placement.nodes, "qemu_numa_mode": tune.get("mode", "strict")}


def _iothread(found: Mapping[str, Any]) -> Iothread:
    polling = Effective(**{setting: found[source.key] for setting, source in _POLLING.items()})
    return Iothread(int(found["thread-id"]), polling)
