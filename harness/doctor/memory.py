"""Checks of the memory: enough of it is free, and none is swapped, merged or moved during a measurement."""

from __future__ import annotations

from collections.abc import Iterator

from harness.doctor.findings import Finding, Level, Setting, not_available
from harness.doctor.probe import HostState
from harness.units import format_size

NEEDED_BYTES = 1 << 30
"""Memory for a guest (`GUEST_MEMORY`), its QEMU process and fio on the host, rounded up."""
SCARCE_SHARE = 0.1


def available(state: HostState) -> Iterator[Finding]:
    check = "free memory"
    why = "a host that must free memory for the guest writes to its disks and stalls during the measurement"
    free, total = state.memory_bytes("MemAvailable"), state.memory_bytes("MemTotal")
    if free is None or total is None:
        yield not_available(check, why)
        return
    value = f"{format_size(free)} of {format_size(total)} available"
    if free < NEEDED_BYTES:
        yield Finding(
            check, value, Level.PROBLEM, why, f"end unneeded programs: a guest takes {format_size(NEEDED_BYTES)}"
        )
    elif free < SCARCE_SHARE * total:
        yield Finding(check, value, Level.ADVICE, why, "end unneeded programs: ps -eo rss,pid,comm --sort=-rss | head")
    else:
        yield Finding(check, value, Level.OK, why)


def swap(state: HostState) -> Iterator[Finding]:
    check = "swap"
    why = "memory of the guest or of QEMU that was swapped out must be read from a disk before it is used again"
    if "/proc/swaps" not in state.files:
        yield not_available(check, why)
        return
    rows = [line.split() for line in state.text("/proc/swaps").splitlines()[1:]]
    used = sum(int(row[3]) * 1024 for row in rows if len(row) > 3)
    moved = _swapped_pages(state)
    value = "none" if not rows else f"{format_size(used)} used on {', '.join(row[0] for row in rows)}"
    if moved:
        value += f"; {moved} pages were moved within {state.seconds:g} s"
        yield Finding(check, value, Level.PROBLEM, why, "end the programs that use the memory, then: swapoff -a")
    elif used:
        yield Finding(check, value, Level.ADVICE, why, "swapoff -a   (and afterwards: swapon -a)")
    else:
        yield Finding(check, value, Level.OK, why)


def huge_pages(state: HostState) -> Iterator[Finding]:
    check = "transparent huge pages"
    why = "with pages of 4 KiB, a guest walks two page tables more often, which makes each of its I/Os slower"
    enabled = state.chosen("/sys/kernel/mm/transparent_hugepage/enabled")
    if not enabled:
        yield not_available(check, why)
    else:
        defrag = state.chosen("/sys/kernel/mm/transparent_hugepage/defrag") or "unknown"
        value = f"{enabled}, defrag {defrag}"
        if enabled == "never":
            command = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
            yield Finding(check, value, Level.ADVICE, why, command)
        elif defrag == "always":
            # Direct reclaim and compaction in each page fault; see the kernel's admin-guide/mm/transhuge.
            command = "echo madvise > /sys/kernel/mm/transparent_hugepage/defrag"
            why = 'with defrag "always", each page fault may stall until memory is compacted'
            yield Finding(check, value, Level.ADVICE, why, command)
        else:
            yield Finding(check, value, Level.OK, why)
    yield from _reserved_pages(state)


def merging(state: HostState) -> Iterator[Finding]:
    check = "kernel samepage merging"
    why = "ksmd scans the guests' memory, and a guest that writes to a merged page must copy it first"
    path = "/sys/kernel/mm/ksm/run"
    run = state.number(path)
    if run is None:
        yield not_available(check, why)
    elif run != 1:
        yield Finding(check, "off", Level.OK, why)
    else:
        advice = f"systemctl stop ksmtuned; echo 0 > {path}"
        yield Finding(check, "on", Level.ADVICE, why, advice, (Setting(f"{state.root}{path}", "0"),))


def numa(state: HostState) -> Iterator[Finding]:
    check = "NUMA"
    why = "a guest on another node than the disk uses the link between the processors for each I/O"
    nodes = state.matching("/sys/devices/system/node/node*/cpulist")
    if not nodes:
        yield not_available(check, why)
        return
    cpus = {int(path.split("/")[-2].removeprefix("node")): text for path, text in nodes.items()}
    if len(cpus) == 1:
        yield Finding(check, "one node", Level.OK, why)
        return
    places = [
        f"{disk.name} at node {disk.numa_node} (CPUs {cpus.get(disk.numa_node, 'unknown')})"
        if disk.numa_node is not None
        else f"{disk.name} at an unknown node"
        for disk in state.disks
        if disk.device
    ]
    value = "; ".join([f"{len(cpus)} nodes", *places])
    node = next((disk.numa_node for disk in state.disks if disk.numa_node is not None), None)
    pin = f"numactl --cpunodebind={node} --membind={node} COMMAND, " if node is not None else ""
    yield Finding(
        check, value, Level.ADVICE, why, f"{pin}virsh emulatorpin and virsh vcpupin: virt-overhead does not pin"
    )
    if state.number("/proc/sys/kernel/numa_balancing"):
        why = "the kernel unmaps pages for a moment to learn which node uses them, and moves some of them"
        yield Finding("NUMA balancing", "on", Level.ADVICE, why, "sysctl kernel.numa_balancing=0")


def dirty_limits(state: HostState) -> Iterator[Finding]:
    check = "dirty page limits"
    why = "a cached mode writes at the memory's speed up to these limits; compare it only between equal limits"
    parts = [
        _limit(state, key, what)
        for key, what in (("dirty_background", "written back from"), ("dirty", "writers blocked from"))
    ]
    if not all(parts):
        yield not_available(check, why)
    else:
        yield Finding(check, ", ".join(parts), Level.OK, why)


def _limit(state: HostState, key: str, what: str) -> str:
    """One of the two limits in words; empty if the host does not report it. Only one of bytes and ratio is not 0."""
    size, ratio = state.number(f"/proc/sys/vm/{key}_bytes"), state.number(f"/proc/sys/vm/{key}_ratio")
    if size:
        return f"{what} {format_size(size)}"
    return "" if ratio is None else f"{what} {ratio} % of the available memory"


def _swapped_pages(state: HostState) -> int:
    def total(sample: str) -> int:
        return sum(int(line.split()[1]) for line in sample.splitlines())

    return total(state.after.get("/proc/vmstat", "")) - total(state.before.get("/proc/vmstat", ""))


def _reserved_pages(state: HostState) -> Iterator[Finding]:
    """A finding only if huge pages are reserved: other programs cannot use that memory."""
    lines = dict(line.split(":", 1) for line in state.text("/proc/meminfo").splitlines() if ":" in line)
    total, free = (lines.get(key, "0").strip() for key in ("HugePages_Total", "HugePages_Free"))
    if total not in ("", "0"):
        why = "only guests that request them can use this memory; the guests of virt-overhead do not"
        yield Finding("reserved huge pages", f"{free} of {total} free", Level.OK, why)


CHECKS = (available, swap, huge_pages, merging, numa, dirty_limits)
