"""The size and placement of a guest, as elements of its domain XML. Pure.

Each function adds nothing for options that are not requested.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle, islice
from xml.etree import ElementTree as ET

from harness.model.guest import GuestOptions

CPU_MODES = {"host": "host-passthrough", "max": "maximum"}
"""libvirt's mode of the CPU for the two names that are not models."""


def add_memory_backing(domain: ET.Element, options: GuestOptions, *, shared: bool = False) -> None:
    """The pages of the memory. `shared` lets other processes map it: those that serve disks by vhost-user."""
    if options.hugepages is None and not shared:
        return
    backing = ET.SubElement(domain, "memoryBacking")
    if options.hugepages is not None:
        pages = ET.SubElement(backing, "hugepages")
        ET.SubElement(pages, "page", size=str(options.hugepages // 1024), unit="KiB")
    if shared:
        ET.SubElement(backing, "source", type="memfd")
        ET.SubElement(backing, "access", mode="shared")


def add_numa(domain: ET.Element, options: GuestOptions) -> None:
    if options.numa_nodes is not None:
        tune = ET.SubElement(domain, "numatune")
        ET.SubElement(tune, "memory", mode=options.numa_mode or "strict", nodeset=options.numa_nodes)


def add_cpu(domain: ET.Element, options: GuestOptions, *, accel: str) -> None:
    """The CPU model and the topology. By default all that the host has, or that QEMU can emulate."""
    model = options.cpu or ("host" if accel == "kvm" else "max")
    if mode := CPU_MODES.get(model):
        cpu = ET.SubElement(domain, "cpu", mode=mode)
    else:
        # Without a fallback, libvirt refuses a model that it cannot provide.
        cpu = ET.SubElement(domain, "cpu", mode="custom", match="exact")
        ET.SubElement(cpu, "model", fallback="forbid").text = model
    if options.topology is not None:
        sockets, cores, threads = map(str, options.topology)
        ET.SubElement(cpu, "topology", sockets=sockets, cores=cores, threads=threads)


def add_polling(thread_ids: ET.Element, options: GuestOptions, iothreads: int, of_disks: Mapping[int, int]) -> None:
    """Polling of each iothread. libvirt numbers them from 1. `of_disks` has the times that disks request."""
    for number in range(1, iothreads + 1) if options.polls or of_disks else ():
        thread = ET.SubElement(thread_ids, "iothread", id=str(number))
        polls = options.polls | ({"max": of_disks[number]} if number in of_disks else {})
        if polls:
            ET.SubElement(thread, "poll", {name: str(value) for name, value in polls.items()})


def add_pins(tune: ET.Element, options: GuestOptions, *, vcpus: int, iothreads: int, pinned_cpu: int | None) -> None:
    """The host's CPUs of each thread. Without a request, all vCPUs are pinned to `pinned_cpu`, if it is not None.

    QEMU's other threads are then pinned to the CPUs before it, if there are any.
    """
    only = () if pinned_cpu is None else (str(pinned_cpu),)
    others = f"0-{pinned_cpu - 1}" if pinned_cpu else None
    if lists := options.pin_vcpus or only:
        for vcpu, cpus in enumerate(islice(cycle(lists), vcpus)):
            ET.SubElement(tune, "vcpupin", vcpu=str(vcpu), cpuset=cpus)
    emulator, serving = options.pin_emulator or others, options.pin_iothreads or others
    if emulator:
        ET.SubElement(tune, "emulatorpin", cpuset=emulator)
    for number in range(1, iothreads + 1) if serving else ():
        ET.SubElement(tune, "iothreadpin", iothread=str(number), cpuset=str(serving))
