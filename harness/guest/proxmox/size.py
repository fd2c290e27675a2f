"""The size and placement of a running VM, read back from QEMU's arguments and from the node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from harness.errors import HostError
from harness.guest.placement import Placement, read_placement
from harness.guest.proxmox.process import PID_FILE
from harness.guest.qemu_process import Inspected
from harness.lab.transport.base import Runner
from harness.lab.vm_threads import VmThreads
from harness.model.cpus import kernels_form
from harness.model.effective import Effective

MIB = 1024**2
_POLICIES = {"bind": "strict"}
"""The name of a policy for memory in lab files, where it differs from QEMU's."""


def read_size(node: Runner, vmid: int, process: Inspected, threads: VmThreads | None) -> Effective:
    """What QEMU's arguments request, and where the node runs the threads of these roles.

    Without the process or the roles, only the arguments count. Raises ValueError for arguments of another form.
    """
    found = sized(process.arguments)
    try:
        placement = read_placement(node, PID_FILE.format(vmid=vmid), found.qemu_memory or 0)
    except HostError:
        return found
    return found.merged(_placed(placement, threads))


def sized(arguments: Sequence[str]) -> Effective:
    """The size in QEMU's arguments: `-smp`, `-m`, `-cpu`, and the backends of the guest's memory. Pure."""
    options = [(first, second) for first, second in pairwise(arguments) if first.startswith("-")]
    given = dict(options)
    count, smp = _parts(given.get("-smp", ""))
    memory, of_memory = _parts(given.get("-m", ""))
    size = int(of_memory.get("size", memory).removesuffix("M") or 0) * MIB
    backends = [_parts(text) for option, text in options if option == "-object" and text.startswith("memory-backend")]
    nodes, policy = next(_bound(backends), (None, None))
    return Effective(
        qemu_cpu=_parts(given.get("-cpu", ""))[0] or None,
        qemu_vcpus=int(count) if count else None,
        # Proxmox VE passes no threads, and QEMU's default is one.
        qemu_sockets=int(smp.get("sockets", 1)) if count else None,
        qemu_cores=int(smp.get("cores", 1)) if count else None,
        qemu_threads=int(smp.get("threads", 1)) if count else None,
        qemu_memory=size or None,
        qemu_numa_nodes=nodes,
        qemu_numa_mode=policy,
    )


def _bound(backends: Sequence[tuple[str, Mapping[str, str]]]) -> Iterator[tuple[str, str]]:
    """The host's nodes of each backend, and their policy with the name that it has in lab files."""
    for _, options in backends:
        if nodes := options.get("host-nodes"):
            policy = options.get("policy", "default")
            yield kernels_form(nodes), _POLICIES.get(policy, policy)


def _parts(text: str) -> tuple[str, dict[str, str]]:
    """The first word of an option's value, and its further `KEY=VALUE`. A part without `=` belongs to the list before.

    PVE writes lists of nodes as `host-nodes=0,host-nodes=2-3` or `host-nodes=0,2-3`.
    """
    first, *rest = text.split(",")
    found: dict[str, str] = {}
    for part in [first, *rest] if "=" in first else rest:
        key, separator, value = part.partition("=")
        if not separator and found:
            key, value = next(reversed(found)), part
        found[key] = f"{found[key]},{value}" if key == "host-nodes" and key in found else value
    return first, found


def _placed(placement: Placement, threads: VmThreads | None) -> Effective:
    roles = threads.roles if threads is not None else {}
    serving = placement.of(thread for thread, role in roles.items() if role == "iothread")
    vcpus = [thread for thread, role in roles.items() if role == "vcpu"]
    return placement.effective(vcpus).merged(Effective(host_iothread_cpus=serving))
