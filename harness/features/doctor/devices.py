"""Checks of the memory, the CPUs and the disks under test, and the findings of all checks in their order. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from harness.features.doctor.machine import (
    check_guests,
    check_halt_polling,
    check_irqbalance,
    check_kvm,
    check_lease,
    check_load,
    check_nested,
    check_trace_events,
    check_versions,
    check_virtualised,
)
from harness.features.doctor.probe import DiskState, HostState
from harness.lab.counters import CLOCK
from harness.lab.facts import Acceleration, HostFacts, probes_file, read_answers
from harness.lab.findings import RECORD_FILE, Finding, Level, Setting, SettingsRecord, not_available
from harness.units import format_size

NEEDED_BYTES = 1 << 30
"""Memory for a guest (`GUEST_MEMORY`), its QEMU process and fio on the host, rounded up."""
SCARCE_SHARE = 0.1


def check_available(state: HostState) -> Iterator[Finding]:
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


def check_swap(state: HostState) -> Iterator[Finding]:
    check = "swap"
    why = "memory of the guest or of QEMU that was swapped out must be read from a disk before it is used again"
    if "/proc/swaps" not in state.files:
        yield not_available(check, why)
        return
    rows = [line.split() for line in state.text("/proc/swaps").splitlines()[1:]]
    used = sum(int(row[3]) * 1024 for row in rows if len(row) > 3)
    moved = _count_swapped_pages(state)
    value = "none" if not rows else f"{format_size(used)} used on {', '.join(row[0] for row in rows)}"
    if moved:
        value += f"; {moved} pages were moved within {state.seconds:g} s"
        yield Finding(check, value, Level.PROBLEM, why, "end the programs that use the memory, then: swapoff -a")
    elif used:
        yield Finding(check, value, Level.ADVICE, why, "swapoff -a   (and afterwards: swapon -a)")
    else:
        yield Finding(check, value, Level.OK, why)


def check_huge_pages(state: HostState) -> Iterator[Finding]:
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
    yield from _check_reserved_pages(state)


def check_merging(state: HostState) -> Iterator[Finding]:
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


def check_numa(state: HostState) -> Iterator[Finding]:
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


def check_dirty_limits(state: HostState) -> Iterator[Finding]:
    check = "dirty page limits"
    why = "a cached mode writes at the memory's speed up to these limits; compare it only between equal limits"
    parts = [
        _format_limit(state, key, what)
        for key, what in (("dirty_background", "written back from"), ("dirty", "writers blocked from"))
    ]
    if not all(parts):
        yield not_available(check, why)
    else:
        yield Finding(check, ", ".join(parts), Level.OK, why)


def _format_limit(state: HostState, key: str, what: str) -> str:
    """One of the two limits in words; empty if the host does not report it. Only one of bytes and ratio is not 0."""
    size, ratio = state.number(f"/proc/sys/vm/{key}_bytes"), state.number(f"/proc/sys/vm/{key}_ratio")
    if size:
        return f"{what} {format_size(size)}"
    return "" if ratio is None else f"{what} {ratio} % of the available memory"


def _count_swapped_pages(state: HostState) -> int:
    def total(sample: str) -> int:
        return sum(int(line.split()[1]) for line in sample.splitlines())

    return total(state.after.get("/proc/vmstat", "")) - total(state.before.get("/proc/vmstat", ""))


def _check_reserved_pages(state: HostState) -> Iterator[Finding]:
    """A finding only if huge pages are reserved: other programs cannot use that memory."""
    lines = dict(line.split(":", 1) for line in state.text("/proc/meminfo").splitlines() if ":" in line)
    total, free = (lines.get(key, "0").strip() for key in ("HugePages_Total", "HugePages_Free"))
    if total not in ("", "0"):
        why = "only guests that request them can use this memory; the guests of virt-overhead do not"
        yield Finding("reserved huge pages", f"{free} of {total} free", Level.OK, why)


_CPU = "/sys/devices/system/cpu"
IDLE_LIMIT_US = 20
"""A CPU that needs longer to wake up delays I/O by more than a fast NVMe disk takes for it."""


def check_governor(state: HostState) -> Iterator[Finding]:
    check = "CPU frequency governor"
    why = "CPUs that slow down while they wait for the disk react later, and host and guest wait differently"
    now = state.matching(f"{_CPU}/cpufreq/policy*/scaling_governor")
    if not now:
        yield not_available(check, why)
        return
    slow = [path for path, value in now.items() if value != "performance"]
    settings = tuple(
        # Under "performance" the driver sets the CPU's own preference as well (admin-guide/pm/intel_pstate).
        Setting(
            f"{state.root}{path}",
            "performance",
            (f"{state.root}{_join_beside(path, 'energy_performance_preference')}",),
        )
        for path in slow
        if "performance" in state.text(_join_beside(path, "scaling_available_governors")).split()
    )
    value = ", ".join(sorted(set(now.values())))
    if not slow:
        yield Finding(check, value, Level.OK, why)
    elif not settings:
        yield Finding(
            check,
            value,
            Level.ADVICE,
            why,
            'the driver does not offer "performance": look for a setting of the firmware',
        )
    else:
        command = f"echo performance | tee {_CPU}/cpufreq/policy*/scaling_governor"
        yield Finding(check, value, Level.ADVICE, why, command, settings)


def check_turbo(state: HostState) -> Iterator[Finding]:
    check = "turbo"
    why = "a boosted clock depends on temperature and on the load of other CPUs: rounds drift, and hosts differ"
    no_turbo, boost = state.number(f"{_CPU}/intel_pstate/no_turbo"), state.number(f"{_CPU}/cpufreq/boost")
    if no_turbo is None and boost is None:
        yield not_available(check, why)
        return
    on = no_turbo == 0 if no_turbo is not None else boost == 1
    yield Finding(check, "on" if on else "off", Level.OK, why)


def check_idle_states(state: HostState) -> Iterator[Finding]:
    check = "CPU idle states"
    why = (
        "a CPU that sleeps while the disk works adds this time to each I/O, and guest and host sleep at different times"
    )
    deepest: tuple[int, str] | None = None
    for path in state.matching(f"{_CPU}/cpu0/cpuidle/state*/latency"):
        directory = path.removesuffix("/latency")
        latency = state.number(path)
        if latency is not None and state.number(f"{directory}/disable") in (0, None):
            deepest = max(deepest or (0, ""), (latency, state.text(f"{directory}/name")))
    if deepest is None:
        yield not_available(check, why)
        return
    latency, name = deepest
    value = f"deepest is {name}, {latency} us to wake up"
    if latency <= IDLE_LIMIT_US:
        yield Finding(check, value, Level.OK, why)
    else:
        advice = f"cpupower idle-set -D {IDLE_LIMIT_US}   (and afterwards: cpupower idle-set -E)"
        yield Finding(check, value, Level.ADVICE, why, advice)


def check_smt(state: HostState) -> Iterator[Finding]:
    check = "SMT"
    why = "two threads of one core slow each other down; compare figures only of hosts with the same setting"
    active = state.number(f"{_CPU}/smt/active")
    if active is None:
        yield not_available(check, why)
    else:
        control = state.text(f"{_CPU}/smt/control")
        yield Finding(check, f"{'active' if active else 'not active'} ({control or 'no control'})", Level.OK, why)


def check_mitigations(state: HostState) -> Iterator[Finding]:
    check = "mitigations"
    why = "they make each kernel entry and each guest exit slower: compare only hosts with the same mitigations"
    known = {
        path.rpartition("/")[2]: text
        for path, text in state.matching(f"{_CPU}/vulnerabilities/*").items()
        if text != "Not affected"
    }
    if not state.matching(f"{_CPU}/vulnerabilities/*"):
        yield not_available(check, why)
        return
    kernel = [word for word in state.text("/proc/cmdline").split() if word.startswith("mitigations=")]
    value = "; ".join([*kernel, *(f"{name}: {text}" for name, text in known.items())]) or "not affected by any"
    yield Finding(check, value, Level.OK, why)


def check_clocksource(state: HostState) -> Iterator[Finding]:
    check = "clock source"
    why = (
        "fio reads the clock twice for each I/O; a clock that is not a CPU register costs about a microsecond each time"
    )
    now = state.text(CLOCK)
    if not now:
        yield not_available(check, why)
    elif now in ("tsc", "kvm-clock") or now.startswith("hyperv_clocksource_tsc"):
        yield Finding(check, now, Level.OK, why)
    else:
        yield Finding(
            check,
            now,
            Level.ADVICE,
            why,
            "dmesg | grep -i -e tsc -e clocksource   (shows why the kernel does not use tsc)",
        )


def _join_beside(path: str, name: str) -> str:
    return f"{path.rpartition('/')[0]}/{name}"


FOREIGN_REQUESTS = 10
"""Requests per second of other programs on a disk under test. Fewer may come from a monitor that reads its health."""


def check_disks(state: HostState) -> Iterator[Finding]:
    if not state.disks:
        why = "scheduler, queue and link of a disk are checked only if a lab file names the disk"
        yield Finding("disks under test", "none named", Level.UNKNOWN, why, "virt-overhead doctor --lab=FILE")
    for disk in state.disks:
        if not disk.device:
            yield _report_missing(disk)
            continue
        yield _check_scheduler(state, disk)
        yield _check_queue(state, disk)
        yield _check_write_cache(state, disk)
        yield _check_accounting(state, disk)
        yield _check_other_io(state, disk)
        if disk.link_power:
            yield _check_link_power(disk)


def check_aspm(state: HostState) -> Iterator[Finding]:
    check = "PCIe link power"
    why = "a link that sleeps between two requests takes microseconds to wake up"
    path = "/sys/module/pcie_aspm/parameters/policy"
    policy = state.chosen(path)
    if not policy:
        yield not_available(check, why)
    elif policy.startswith("power"):
        yield Finding(check, policy, Level.ADVICE, why, f"echo performance > {path}")
    else:
        yield Finding(check, policy, Level.OK, why)


def _report_missing(disk: DiskState) -> Finding:
    if not disk.owned:
        why = "a file in memory or on a network is as fast as memory or network, not as a disk"
        return Finding(f"{disk.name}: disk below its file", "there is none", Level.UNKNOWN, why)
    why = "a disk must be attached to be measured"
    return Finding(
        f"{disk.name}: device",
        f"no whole disk has the identity {disk.identity}",
        Level.PROBLEM,
        why,
        "ls -l /dev/disk/by-id/",
    )


def _check_scheduler(state: HostState, disk: DiskState) -> Finding:
    check = f"{disk.name}: I/O scheduler"
    why = "a scheduler costs CPU time and reorders requests; a disk without moving parts gains nothing from it"
    path = f"/sys/block/{disk.device}/queue/scheduler"
    now = state.chosen(path)
    if not now:
        return not_available(check, why)
    value = _add_device(disk, now)
    if state.number(f"/sys/block/{disk.device}/queue/rotational") == 1:
        why = "the order of requests matters much to a rotating disk: use the same scheduler for all runs you compare"
        return Finding(check, value, Level.OK, why)
    if now == "none" or "none" not in state.text(path).split():
        return Finding(check, value, Level.OK, why)
    # A new scheduler sets its own queue depth and tunables (block/elevator.c, elevator_switch()).
    queue = f"/sys/block/{disk.device}/queue"
    resets = [
        path for name in ("nr_requests", "wbt_lat_usec", "iosched/*") for path in state.matching(f"{queue}/{name}")
    ]
    setting = Setting(f"{state.root}{path}", "none", tuple(f"{state.root}{reset}" for reset in resets))
    # The disk that holds the file is not under test itself: give advice, but do not change it.
    return Finding(check, value, Level.ADVICE, why, f"echo none > {path}", (setting,) if disk.owned else ())


def _check_queue(state: HostState, disk: DiskState) -> Finding:
    check = f"{disk.name}: queue"
    why = "the number of waiting requests, merging and the CPU of completions determine latency at high iodepth"
    queue = f"/sys/block/{disk.device}/queue"
    parts = [
        f"{name} {text}"
        for name in ("nr_requests", "nomerges", "rq_affinity")
        if (text := state.text(f"{queue}/{name}"))
    ]
    kind = {"0": ["not rotational"], "1": ["rotational"]}.get(state.text(f"{queue}/rotational"), [])
    return (
        Finding(check, _add_device(disk, ", ".join([*kind, *parts])), Level.OK, why)
        if parts
        else not_available(check, why)
    )


def _check_write_cache(state: HostState, disk: DiskState) -> Finding:
    check = f"{disk.name}: write cache"
    why = (
        "a volatile cache (write back) completes writes early and is emptied at each flush: compare only equal settings"
    )
    now = state.text(f"/sys/block/{disk.device}/queue/write_cache")
    return Finding(check, _add_device(disk, now), Level.OK, why) if now else not_available(check, why)


def _check_accounting(state: HostState, disk: DiskState) -> Finding:
    check = f"{disk.name}: I/O accounting"
    why = "without the host's byte counter it is unknown whether the bytes that fio counted reached the disk"
    path = f"/sys/block/{disk.device}/queue/iostats"
    now = state.number(path)
    if now is None:
        return not_available(check, why)
    if now:
        return Finding(check, _add_device(disk, "on"), Level.OK, why)
    settings = (Setting(f"{state.root}{path}", "1"),) if disk.owned else ()
    return Finding(check, _add_device(disk, "off"), Level.PROBLEM, why, f"echo 1 > {path}", settings)


def _check_other_io(state: HostState, disk: DiskState) -> Finding:
    check = f"{disk.name}: other I/O"
    why = "requests of other programs wait in the same queue, and are counted as the guest's or the host's"
    path = f"/sys/block/{disk.device}/stat"
    samples = [sample.get(path, "").split() for sample in (state.before, state.after)]
    if not all(len(sample) > 4 for sample in samples):
        return not_available(check, why)
    # Fields 1 and 5: reads and writes completed (the kernel's Documentation/block/stat).
    before, after = (int(sample[0]) + int(sample[4]) for sample in samples)
    value = _add_device(disk, f"{after - before} requests within {state.seconds:g} s")
    if after - before <= FOREIGN_REQUESTS * state.seconds:
        return Finding(check, value, Level.OK, why)
    level = Level.PROBLEM if disk.owned else Level.ADVICE
    return Finding(
        check,
        value,
        level,
        why,
        f"find the program that uses it: fuser -v /dev/{disk.device}; lsblk /dev/{disk.device}",
    )


def _check_link_power(disk: DiskState) -> Finding:
    check = f"{disk.name}: SATA link power"
    why = "a link that sleeps between two requests takes microseconds to wake up"
    value = _add_device(disk, disk.link_power)
    if disk.link_power in ("max_performance", "keep_firmware_settings"):
        return Finding(check, value, Level.OK, why)
    command = "echo max_performance | tee /sys/class/scsi_host/host*/link_power_management_policy"
    return Finding(check, value, Level.ADVICE, why, command)


def _add_device(disk: DiskState, value: str) -> str:
    """The value with the name of its device, which may change when the host boots."""
    return f"{value} ({disk.device}{'' if disk.owned else ', which holds its file'})"


def examine(state: HostState, proof: Acceleration | None = None) -> list[Finding]:
    """The findings of all checks. Pure. `proof` is the result of booting a guest under the host's KVM, if one was."""
    checks = (
        check_nested,
        check_halt_polling,
        check_virtualised,
        check_lease,
        check_load,
        check_guests,
        check_irqbalance,
        check_versions,
        check_trace_events,
        check_disks,
        check_aspm,
        check_governor,
        check_turbo,
        check_idle_states,
        check_smt,
        check_mitigations,
        check_clocksource,
        check_available,
        check_swap,
        check_huge_pages,
        check_merging,
        check_numa,
        check_dirty_limits,
    )
    return [check_kvm(state, proof), *chain.from_iterable(check(state) for check in checks), *_check_held(state)]


def find_proof(facts: HostFacts, probes: Path | None = None) -> Acceleration | None:
    """The result that `lab.hosts` stored of booting a guest on this host, with this kernel, CPU and QEMU and any image.

    `probes` is the file with the results. None if no boot was tried or the file cannot be read.
    """
    # The embedded lab's result for this machine does not count: it is also "tcg" if only nested KVM does not work.
    host = f"{facts['hostname']}, {facts['kernel']}, {facts['cpu']}, {facts['qemu']}, guest "
    answers = [answer for key, answer in read_answers(probes or probes_file()).items() if key.startswith(host)]
    return answers[-1] if answers else None


def _check_held(state: HostState) -> list[Finding]:
    """A finding only if there is a record of changed settings."""
    record = SettingsRecord.parse(state.text(RECORD_FILE))
    if record is None:
        return []
    check = "tuned settings"
    why = "settings that were changed for measuring remain until the process that changed them restores them"
    value = f"{len(record.before)} files, held by {record.holder}"
    if record.is_alive:
        return [Finding(check, value, Level.OK, why)]
    gone = ", which has ended" if record.is_dead else ""
    return [Finding(check, f"{value}{gone}", Level.ADVICE, why, "virt-overhead doctor --restore")]
