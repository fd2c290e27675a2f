"""What one I/O costs the host: CPU time and cycles by who spent them, KVM's exits, switches. From counts to figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

CostUnit = Literal["s/IO", "1/IO"]


@dataclass(frozen=True, slots=True)
class IoCost:
    """One figure per I/O: seconds of CPU time, or a number. `title` is what people call it."""

    name: str
    unit: CostUnit
    title: str


TOTAL = "cpu"
"""The CPU time that the host spends on an I/O, but for fio's own: the sum of its parts."""

CPU_PARTS = (
    IoCost("cpu_guest_mode", "s/IO", "guest's kernel"),
    IoCost("cpu_vcpu", "s/IO", "vCPU exits"),
    IoCost("cpu_iothread", "s/IO", "iothread"),
    IoCost("cpu_worker", "s/IO", "QEMU workers"),
    IoCost("cpu_main", "s/IO", "QEMU main loop"),
    IoCost("cpu_fio_system", "s/IO", "fio's system calls"),
    IoCost("cpu_rest", "s/IO", "host's kernel and the rest"),
)
"""Who spends it, in the order of a request's way. An arm has a guest's parts or the host's, and the rest."""

CYCLES = "cycles"
"""Cycles of the host's CPUs for an I/O, but for fio's own: the sum of their parts."""

CYCLE_PARTS = (
    IoCost("cycles_guest_kernel", "1/IO", "cycles of the guest's kernel"),
    IoCost("cycles_host_user", "1/IO", "cycles of QEMU"),
    IoCost("cycles_host_kernel", "1/IO", "cycles of the host's kernel"),
)
"""Where they are spent, in the order of a request's way. An arm of the host has the last alone."""

CYCLE_COSTS = (
    IoCost(CYCLES, "1/IO", "cycles"),
    *CYCLE_PARTS,
    IoCost("cycles_fio", "1/IO", "cycles of fio itself"),
)
"""All that is told of cycles. fio's own are all in user mode where it runs, of which little is anybody else's."""

IO_COSTS: Mapping[str, IoCost] = MappingProxyType(
    {
        cost.name: cost
        for cost in (
            IoCost(TOTAL, "s/IO", "CPU time"),
            *CPU_PARTS,
            IoCost("cpu_fio", "s/IO", "fio itself"),
            *CYCLE_COSTS,
            IoCost("exits", "1/IO", "KVM exits"),
            IoCost("halt_exits", "1/IO", "exits by HLT"),
            IoCost("io_exits", "1/IO", "exits to port I/O"),
            IoCost("mmio_exits", "1/IO", "exits to MMIO"),
            IoCost("irq_injections", "1/IO", "interrupts injected"),
            IoCost("switches", "1/IO", "context switches"),
            IoCost("qemu_switches", "1/IO", "context switches of QEMU"),
            IoCost("qemu_preemptions", "1/IO", "QEMU preempted"),
        )
    }
)
"""Every figure by its name, in the order reports show them."""

_QEMU_THREADS = {
    "cpu_iothread": "qemu_iothread_s",
    "cpu_worker": "qemu_worker_s",
    "cpu_main": "qemu_main_s",
}
_QEMU = ("qemu_guest_s", "qemu_vcpu_s", *_QEMU_THREADS.values())
_EXITS = ("exits", "halt_exits", "io_exits", "mmio_exits", "irq_injections")


def costs_per_io(counters: Mapping[str, float], *, in_guest: bool) -> dict[str, float]:
    """The figures of one measurement by name, in their units; empty where nobody counted, or no I/O was done.

    `counters` are those of the journal: `ios`, `host_busy_s`, `host_switches`, those of QEMU's threads (`qemu_...`)
    and of KVM (`kvm_...`), cycles (`cycles_...`), and fio's own. What the host spent beside the parts is `cpu_rest`.
    What an idle guest took while fio ran on the host is not the I/Os'. Nor is fio's own time, `cpu_fio`: to keep a
    fixed rate it waits in a loop, for as long as a nap happened to last when it started.
    """
    ios = counters.get("ios", 0.0)
    if ios <= 0 or "host_busy_s" not in counters:
        return {}
    fio = counters.get("fio_user_s", 0.0)
    spent = counters["host_busy_s"]
    if not in_guest:
        spent -= sum(counters.get(count, 0.0) for count in _QEMU)
        parts = {"cpu_fio_system": counters.get("fio_system_s", 0.0)}
    elif "qemu_guest_s" in counters:
        # Ticks sample the time in the guest, and may find more of it than the vCPUs were given.
        in_guest_mode = counters["qemu_guest_s"] + min(counters["qemu_vcpu_s"], 0.0)
        fio = min(fio, in_guest_mode)
        parts = {"cpu_guest_mode": in_guest_mode - fio, "cpu_vcpu": counters["qemu_vcpu_s"]}
        parts |= {part: counters[count] for part, count in _QEMU_THREADS.items()}
    else:
        parts = {}
    parts = {part: max(seconds, 0.0) for part, seconds in parts.items()}
    parts["cpu_rest"] = max(spent - fio - sum(parts.values()), 0.0)
    found = {TOTAL: sum(parts.values()), **parts, "cpu_fio": fio, **_switches(counters, in_guest=in_guest)}
    found |= _cycles(counters, in_guest=in_guest)
    if in_guest:
        found |= {name: counters[f"kvm_{name}"] for name in _EXITS if f"kvm_{name}" in counters}
    return {name: value / ios for name, value in found.items()}


def _cycles(counters: Mapping[str, float], *, in_guest: bool) -> dict[str, float]:
    """Counters that cannot tell guest mode from the rest, as a nested hypervisor's may not, are no evidence."""
    if "cycles_host_kernel" not in counters:
        return {}
    in_guest_mode = counters["cycles_guest_user"] + counters["cycles_guest_kernel"]
    if in_guest and not in_guest_mode and counters.get("qemu_guest_s", 0.0) > 0:
        return {}
    parts = {part.name: counters[part.name] for part in (CYCLE_PARTS if in_guest else CYCLE_PARTS[-1:])}
    fio = counters["cycles_guest_user" if in_guest else "cycles_host_user"]
    return {CYCLES: sum(parts.values()), **parts, "cycles_fio": fio}


def _switches(counters: Mapping[str, float], *, in_guest: bool) -> dict[str, float]:
    qemu = counters.get("qemu_waits", 0.0) + counters.get("qemu_preemptions", 0.0)
    found = {"switches": counters["host_switches"] - (0.0 if in_guest else qemu)} if "host_switches" in counters else {}
    if in_guest and "qemu_waits" in counters:
        found |= {"qemu_switches": qemu, "qemu_preemptions": counters["qemu_preemptions"]}
    return found
