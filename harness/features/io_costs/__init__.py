"""What one I/O costs the host: CPU time and cycles by part, KVM's exits, switches, requests to the disk.

From the counters of each slice; cycles.py counts cycles. A cell stores the costs of each arm under `accounting`; the
page shows them below its findings (`report.py`). If the disk got fewer and larger requests from a guest than from its
host, they also explain why the guest is faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from harness.analysis import IN_ORDER, Samples, estimate_added
from harness.feature import CPU_TIME, CycleCounter, Feature, import_later
from harness.model.mode import Place
from harness.model.values import names_of

if TYPE_CHECKING:
    from harness.features.io_costs import cycles as counting
    from harness.model.counters import Counters, QemuCounts
    from harness.results.cells import CellRecord, CostRecord, CostUnit
    from harness.results.contrasts import Blocks
else:
    (counting,) = import_later(__name__, "cycles")


@dataclass(frozen=True, slots=True)
class IoCost:
    """One figure per I/O: seconds of CPU time, or a number. `title` is its name in reports."""

    name: str
    unit: CostUnit
    title: str


CPU_PARTS = (
    IoCost("cpu_guest_mode", "s/IO", "guest's kernel"),
    IoCost("cpu_vcpu", "s/IO", "vCPU exits"),
    IoCost("cpu_iothread", "s/IO", "iothread"),
    IoCost("cpu_worker", "s/IO", "QEMU workers"),
    IoCost("cpu_main", "s/IO", "QEMU main loop"),
    IoCost("cpu_fio_system", "s/IO", "fio's system calls"),
    IoCost("cpu_rest", "s/IO", "host's kernel and the rest"),
)
"""The parts of the CPU time, in the order in which a request passes them. An arm has the parts of a guest or those of
the host, and the rest."""

CYCLES = "cycles"
"""Cycles of the host's CPUs for an I/O, without fio's own: the sum of their parts."""

CYCLE_COSTS = (
    IoCost(CYCLES, "1/IO", "cycles"),
    IoCost("cycles_guest_kernel", "1/IO", "cycles of the guest's kernel"),
    IoCost("cycles_host_user", "1/IO", "cycles of QEMU"),
    IoCost("cycles_host_kernel", "1/IO", "cycles of the host's kernel"),
    IoCost("cycles_fio", "1/IO", "cycles of fio itself"),
)
"""All figures on cycles: the sum and its parts, in the order in which a request passes them. An arm of the host has
only the last part. fio's own are the cycles in user mode on its machine, almost all of which belong to fio."""

DISK_REQUESTS = IoCost("disk_requests", "1/IO", "requests to the disk")
"""Below 1 if the kernel merged I/Os on their way to the disk, above 1 if it split them."""

IO_COSTS: Mapping[str, IoCost] = {
    cost.name: cost
    for cost in (
        IoCost(CPU_TIME, "s/IO", "CPU time"),
        *CPU_PARTS,
        IoCost("cpu_fio", "s/IO", "fio itself"),
        *CYCLE_COSTS,
        IoCost("exits", "1/IO", "KVM exits"),
        IoCost("halt_exits", "1/IO", "exits by HLT"),
        IoCost("io_exits", "1/IO", "exits to port I/O"),
        IoCost("mmio_exits", "1/IO", "exits to MMIO"),
        IoCost("irq_injections", "1/IO", "interrupts injected"),
        DISK_REQUESTS,
        IoCost("switches", "1/IO", "context switches"),
        IoCost("qemu_switches", "1/IO", "context switches of QEMU"),
        IoCost("qemu_preemptions", "1/IO", "QEMU preempted"),
    )
}
"""Every figure by its name, in the order of the reports."""


def cost_per_io(counters: Counters, *, in_guest: bool) -> dict[str, float]:
    """The figures of one measurement by name, in their units; empty if nothing was counted, or no I/O was done.

    `cpu_rest` is the rest of the host's CPU time. The time of an idle guest while fio ran on the host does not belong
    to the I/Os. Neither does fio's own time, `cpu_fio`: at a fixed rate, fio waits in a loop, and the length of that
    loop depends on how long a sleep happened to last when fio started.
    """
    ios, host = counters.fio.ios or 0, counters.host
    if ios <= 0 or host is None:
        return {}
    fio = counters.fio.user_s or 0.0
    spent = host.busy_s
    parts: dict[str, float] = {}
    if not in_guest:
        spent -= _sum_qemu_seconds(counters.threads) if counters.threads else 0.0
        parts = {"cpu_fio_system": counters.fio.system_s or 0.0}
    elif (qemu := counters.threads) is not None:
        # Ticks sample the time in the guest. The sum may be more than the time that the vCPUs got.
        in_guest_mode = qemu.guest_s + min(qemu.vcpu_s, 0.0)
        fio = min(fio, in_guest_mode)
        parts = {
            "cpu_guest_mode": in_guest_mode - fio,
            "cpu_vcpu": qemu.vcpu_s,
            "cpu_iothread": qemu.iothread_s,
            "cpu_worker": qemu.worker_s,
            "cpu_main": qemu.main_s,
        }
    parts = {part: max(seconds, 0.0) for part, seconds in parts.items()}
    parts["cpu_rest"] = max(spent - fio - sum(parts.values()), 0.0)
    figures = {CPU_TIME: sum(parts.values()), **parts, "cpu_fio": fio, **_count_switches(counters, in_guest=in_guest)}
    figures |= _count_cycles(counters, in_guest=in_guest)
    if counters.disk_requests is not None:
        figures[DISK_REQUESTS.name] = counters.disk_requests
    if in_guest and counters.kvm is not None:
        kvm = counters.kvm
        figures |= {name: count for name in names_of(kvm) if (count := getattr(kvm, name)) is not None}
    return {name: value / ios for name, value in figures.items()}


def _sum_qemu_seconds(qemu: QemuCounts) -> float:
    return qemu.guest_s + qemu.vcpu_s + qemu.iothread_s + qemu.worker_s + qemu.main_s


def _count_cycles(counters: Counters, *, in_guest: bool) -> dict[str, float]:
    """Some counters, for example of a nested hypervisor, cannot distinguish guest mode. They are not evidence."""
    cycles = counters.cycles
    if cycles is None:
        return {}
    in_guest_mode = cycles.guest_user + cycles.guest_kernel
    if in_guest and not in_guest_mode and counters.threads is not None and counters.threads.guest_s > 0:
        return {}
    parts = {"cycles_host_kernel": cycles.host_kernel}
    if in_guest:
        parts = {"cycles_guest_kernel": cycles.guest_kernel, "cycles_host_user": cycles.host_user, **parts}
    fio = cycles.guest_user if in_guest else cycles.host_user
    return {CYCLES: sum(parts.values()), **parts, "cycles_fio": fio}


def _count_switches(counters: Counters, *, in_guest: bool) -> dict[str, float]:
    qemu = counters.threads
    of_qemu = qemu.waits + qemu.preemptions if qemu is not None else 0.0
    switches = {}
    if counters.host is not None and counters.host.switches is not None:
        switches["switches"] = counters.host.switches - (0.0 if in_guest else of_qemu)
    if in_guest and qemu is not None:
        switches |= {"qemu_switches": of_qemu, "qemu_preemptions": qemu.preemptions}
    return switches


def find_samples(cell: CellRecord, of_blocks: Sequence[float]) -> Samples:
    """The samples of a cost: the means of boots, as for the metrics of the cell, if every block has it."""
    return Samples(cell.boots) if len(of_blocks) == len(cell.boots) else IN_ORDER


def account_blocks(blocks: Blocks, confidence: float) -> dict[str, CostRecord]:
    """The costs per I/O by name, in these blocks of a cell.

    Blocks in which the host's counters were read too late, for any arm, do not count here. The samples are those of the
    cell's metrics: with several boots, their means.
    """
    from harness.results.cells import CostRecord

    counted = blocks.where(lambda slice_: slice_.counters.host is not None)
    used = counted if counted.keys else blocks
    costs = {
        arm: [cost_per_io(slice_.counters, in_guest=arm in (Place.GUEST, Place.AGAINST)) for slice_ in slices]
        for arm, slices in used.arms.items()
    }
    samples = Samples(used.boots)

    def values(arm: Place, name: str) -> tuple[float, ...]:
        by_block = costs.get(arm, [])
        return tuple(cost[name] for cost in by_block) if all(name in cost for cost in by_block) else ()

    records = {}
    for cost in IO_COSTS.values():
        host, twin, guest = (values(arm, cost.name) for arm in (Place.HOST, Place.TWIN, Place.GUEST))
        if host or guest:
            both = bool(host and guest)
            added = estimate_added(host, guest, confidence=confidence, samples=samples) if both else None
            records[cost.name] = CostRecord(cost.unit, host, twin, guest, added)
    return records


_FEWER = 0.9
"""A guest has less than this many times the requests per I/O of the host; a few I/Os are merged by chance."""


def explain_faster(cell: CellRecord) -> str | None:
    """Whether a guest is faster than its host because its I/Os reach the disk as fewer, larger requests.

    fio on the host submits each I/O alone. QEMU submits those that a guest sent meanwhile together, and the kernel
    merges neighbours. A disk that is limited by requests, and not by bytes, then serves more I/Os of the guest. On an
    array, the guest is compared with the array on the host.
    """
    cost = cell.accounting.get(DISK_REQUESTS.name)
    base = () if cost is None else cost.twin if cell.mode_detail.on_array else cost.host
    if cost is None or not base or not cost.guest:
        return None
    host, guest = fmean(base), fmean(cost.guest)
    if guest >= _FEWER * host:
        return None
    return f"the disk got {guest:.2g} requests for each I/O of the guest and {host:.2g} for the host's, larger ones"


FEATURE = Feature(
    name="io_costs",
    brings=(
        CycleCounter(
            probe=lambda runner, facts: counting.probe_cycle_counting(runner, facts),
            count=lambda runner, seconds: counting.count_cycles(runner, seconds),
        ),
    ),
    cost_per_io=cost_per_io,
    account_blocks=account_blocks,
    explain_faster=explain_faster,
)
