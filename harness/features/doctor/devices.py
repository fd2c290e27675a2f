"""Checks of the disks under test, the CPUs and the memory, and the findings of all checks in their order. Pure."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from harness.features.doctor.machine import (
    CHECKS,
    CheckedValue,
    DiskState,
    HostFinding,
    HostState,
    Level,
    add_check,
    add_findings,
    advise,
    check_kvm,
    make_finding,
    report_problem,
)
from harness.features.doctor.settings import RECORD_FILE, SettingsRecord, Tunable
from harness.lab.counters import CLOCK
from harness.lab.facts import Acceleration, HostFacts, probes_file, read_answers
from harness.units import format_size

FOREIGN_REQUESTS = 10
"""Requests per second of other programs on a disk under test. Fewer may come from a monitor that reads its health."""
IDLE_LIMIT_US = 20
"""A CPU that needs longer to wake up delays I/O by more than a fast NVMe disk takes for it."""
NEEDED_BYTES = 1 << 30
"""Memory for a guest (`GUEST_MEMORY`), its QEMU process and fio on the host, rounded up."""
SCARCE_SHARE = 0.1

_CPU = "/sys/devices/system/cpu"
_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage"
_CACHE_MATTERS = (
    "a volatile cache (write back) completes writes early and is emptied at each flush: compare only equal settings"
)
_LINK_SLEEPS = "a link that sleeps between two requests takes microseconds to wake up"


@add_findings
def _check_disks(state: HostState) -> Iterator[HostFinding]:
    if not state.disks:
        why = "scheduler, queue and link of a disk are checked only if a lab file names the disk"
        yield HostFinding("disks under test", "none named", Level.UNKNOWN, why, "name one in the lab file")
    for disk in state.disks:
        if not disk.released:
            value = "the lab file has no `destroy = true` for it, so a run refuses it"
            advice = advise(value, "write `destroy = true` in its table, if nobody needs the data on it")
            yield make_finding(f"{disk.name}: permission", "a run overwrites everything on the disk", advice)
        if not disk.device:
            yield _report_missing(disk)
            continue
        for check, why, checked in (
            (
                "I/O scheduler",
                "a scheduler costs CPU time and reorders requests; a disk without moving parts gains nothing from it",
                _judge_scheduler(state, disk),
            ),
            (
                "queue",
                "the number of waiting requests, merging and the CPU of completions determine latency at high iodepth",
                _judge_queue(state, disk),
            ),
            (
                "write cache",
                _CACHE_MATTERS,
                _judge_write_cache(state, disk),
            ),
            (
                "I/O accounting",
                "without the host's byte counter it is unknown whether the bytes that fio counted reached the disk",
                _judge_accounting(state, disk),
            ),
            (
                "other I/O",
                "requests of other programs wait in the same queue, and are counted as the guest's or the host's",
                _judge_other_io(state, disk),
            ),
        ):
            yield make_finding(f"{disk.name}: {check}", why, checked)
        if disk.link_power:
            yield make_finding(f"{disk.name}: SATA link power", _LINK_SLEEPS, _judge_link_power(disk))


def _report_missing(disk: DiskState) -> HostFinding:
    if not disk.owned:
        why = "a file in memory or on a network is as fast as memory or network, not as a disk"
        return HostFinding(f"{disk.name}: disk below its file", "there is none", Level.UNKNOWN, why)
    why, value = "a disk must be attached to be measured", f"no whole disk has the identity {disk.identity}"
    return make_finding(f"{disk.name}: device", why, report_problem(value, "ls -l /dev/disk/by-id/"))


def _judge_scheduler(state: HostState, disk: DiskState) -> CheckedValue | None:
    queue = f"/sys/block/{disk.device}/queue"
    path = f"{queue}/scheduler"
    now = state.chosen(path)
    if not now:
        return None
    value = _add_device(disk, now)
    if state.number(f"{queue}/rotational") == 1:
        why = "the order of requests matters much to a rotating disk: use the same scheduler for all runs you compare"
        return CheckedValue(value, why=why)
    if now == "none" or "none" not in state.text(path).split():
        return CheckedValue(value)
    # A new scheduler sets its own queue depth and tunables (block/elevator.c, elevator_switch()).
    resets = [
        reset for name in ("nr_requests", "wbt_lat_usec", "iosched/*") for reset in state.matching(f"{queue}/{name}")
    ]
    setting = Tunable(f"{state.root}{path}", "none", tuple(f"{state.root}{reset}" for reset in resets))
    # The disk that holds the file is not under test itself: give advice, but do not change it.
    return advise(value, f"echo none > {path}", (setting,) if disk.owned else ())


def _judge_queue(state: HostState, disk: DiskState) -> CheckedValue | None:
    queue = f"/sys/block/{disk.device}/queue"
    names = ("nr_requests", "nomerges", "rq_affinity")
    parts = [f"{name} {text}" for name in names if (text := state.text(f"{queue}/{name}"))]
    kind = {"0": ["not rotational"], "1": ["rotational"]}.get(state.text(f"{queue}/rotational"), [])
    return CheckedValue(_add_device(disk, ", ".join([*kind, *parts]))) if parts else None


def _judge_write_cache(state: HostState, disk: DiskState) -> CheckedValue | None:
    now = state.text(f"/sys/block/{disk.device}/queue/write_cache")
    return CheckedValue(_add_device(disk, now)) if now else None


def _judge_accounting(state: HostState, disk: DiskState) -> CheckedValue | None:
    path = f"/sys/block/{disk.device}/queue/iostats"
    now = state.number(path)
    if now is None:
        return None
    if now:
        return CheckedValue(_add_device(disk, "on"))
    settings = (Tunable(f"{state.root}{path}", "1"),) if disk.owned else ()
    return report_problem(_add_device(disk, "off"), f"echo 1 > {path}", settings)


def _judge_other_io(state: HostState, disk: DiskState) -> CheckedValue | None:
    path = f"/sys/block/{disk.device}/stat"
    samples = [sample.get(path, "").split() for sample in (state.before, state.after)]
    if not all(len(sample) > 4 for sample in samples):
        return None
    # Fields 1 and 5: reads and writes completed (the kernel's Documentation/block/stat).
    before, after = (int(sample[0]) + int(sample[4]) for sample in samples)
    value = _add_device(disk, f"{after - before} requests within {state.seconds:g} s")
    if after - before <= FOREIGN_REQUESTS * state.seconds:
        return CheckedValue(value)
    advice = f"find the program that uses it: fuser -v /dev/{disk.device}; lsblk /dev/{disk.device}"
    return CheckedValue(value, Level.PROBLEM if disk.owned else Level.ADVICE, advice)


def _judge_link_power(disk: DiskState) -> CheckedValue:
    value = _add_device(disk, disk.link_power)
    if disk.link_power in ("max_performance", "keep_firmware_settings"):
        return CheckedValue(value)
    return advise(value, "echo max_performance | tee /sys/class/scsi_host/host*/link_power_management_policy")


def _add_device(disk: DiskState, value: str) -> str:
    """The value with the name of its device, which may change when the host boots."""
    return f"{value} ({disk.device}{'' if disk.owned else ', which holds its file'})"


@add_check("PCIe link power", _LINK_SLEEPS)
def _judge_aspm(state: HostState) -> CheckedValue | None:
    path = "/sys/module/pcie_aspm/parameters/policy"
    policy = state.chosen(path)
    if policy.startswith("power"):
        return advise(policy, f"echo performance > {path}")
    return CheckedValue(policy) if policy else None


@add_check(
    "CPU frequency governor",
    "CPUs that slow down while they wait for the disk react later, and host and guest wait differently",
)
def _judge_governor(state: HostState) -> CheckedValue | None:
    now = state.matching(f"{_CPU}/cpufreq/policy*/scaling_governor")
    if not now:
        return None
    slow = [path for path, value in now.items() if value != "performance"]
    settings = tuple(
        # Under "performance" the driver sets the CPU's own preference as well (admin-guide/pm/intel_pstate).
        Tunable(
            f"{state.root}{path}",
            "performance",
            (f"{state.root}{_join_beside(path, 'energy_performance_preference')}",),
        )
        for path in slow
        if "performance" in state.text(_join_beside(path, "scaling_available_governors")).split()
    )
    value = ", ".join(sorted(set(now.values())))
    if not slow:
        return CheckedValue(value)
    if not settings:
        return advise(value, 'the driver does not offer "performance": look for a setting of the firmware')
    return advise(value, f"echo performance | tee {_CPU}/cpufreq/policy*/scaling_governor", settings)


def _join_beside(path: str, name: str) -> str:
    return f"{path.rpartition('/')[0]}/{name}"


@add_check(
    "turbo", "a boosted clock depends on temperature and on the load of other CPUs: rounds drift, and hosts differ"
)
def _judge_turbo(state: HostState) -> CheckedValue | None:
    no_turbo, boost = state.number(f"{_CPU}/intel_pstate/no_turbo"), state.number(f"{_CPU}/cpufreq/boost")
    if no_turbo is None and boost is None:
        return None
    return CheckedValue("on" if (no_turbo == 0 if no_turbo is not None else boost == 1) else "off")


@add_check(
    "CPU idle states",
    "a CPU that sleeps while the disk works adds this time to each I/O, and guest and host sleep at different times",
)
def _judge_idle_states(state: HostState) -> CheckedValue | None:
    deepest: tuple[int, str] | None = None
    for path in state.matching(f"{_CPU}/cpu0/cpuidle/state*/latency"):
        directory = path.removesuffix("/latency")
        latency = state.number(path)
        if latency is not None and state.number(f"{directory}/disable") in (0, None):
            deepest = max(deepest or (0, ""), (latency, state.text(f"{directory}/name")))
    if deepest is None:
        return None
    latency, name = deepest
    value = f"deepest is {name}, {latency} us to wake up"
    if latency <= IDLE_LIMIT_US:
        return CheckedValue(value)
    return advise(value, f"cpupower idle-set -D {IDLE_LIMIT_US}   (and afterwards: cpupower idle-set -E)")


@add_check(
    "CPU idle governor",
    "it decides how a CPU waits for the disk. In a virtual machine without a driver, each wait is an exit to its host",
)
def _judge_idle_governor(state: HostState) -> CheckedValue | None:
    files = (f"{_CPU}/cpuidle/current_{name}" for name in ("driver", "governor", "governor_ro"))
    driver, *governors = (state.text(path) for path in files)
    if not driver:
        return None
    if "idle=poll" in state.text("/proc/cmdline").split():
        return CheckedValue("idle=poll: its CPUs never halt")
    if driver != "none":
        time = state.text("/sys/module/haltpoll/parameters/guest_halt_poll_ns")
        polls = f", which polls for up to {time} ns" if driver == "haltpoll" and time else ""
        return CheckedValue(f"{next(filter(None, governors), 'unknown')}, driver {driver}{polls}")
    of_guest = ", each time with an exit; cpuidle_haltpoll would poll first" if state.facts["hypervisor"] else ""
    return CheckedValue(f"no driver: its CPUs halt at once{of_guest}")


@add_check("SMT", "two threads of one core slow each other down; compare figures only of hosts with the same setting")
def _judge_smt(state: HostState) -> CheckedValue | None:
    active, control = state.number(f"{_CPU}/smt/active"), state.text(f"{_CPU}/smt/control")
    return (
        None if active is None else CheckedValue(f"{'active' if active else 'not active'} ({control or 'no control'})")
    )


@add_check(
    "mitigations",
    "they make each kernel entry and each guest exit slower: compare only hosts with the same mitigations",
)
def _judge_mitigations(state: HostState) -> CheckedValue | None:
    files = state.matching(f"{_CPU}/vulnerabilities/*")
    if not files:
        return None
    words = [word for word in state.text("/proc/cmdline").split() if word.startswith("mitigations=")]
    words += [f"{path.rpartition('/')[2]}: {text}" for path, text in files.items() if text != "Not affected"]
    return CheckedValue("; ".join(words) or "not affected by any")


@add_check(
    "clock source",
    "fio reads the clock twice for each I/O; a clock that is not a CPU register costs about a microsecond each time",
)
def _judge_clock_source(state: HostState) -> CheckedValue | None:
    now = state.text(CLOCK)
    if not now:
        return None
    if now in ("tsc", "kvm-clock") or now.startswith("hyperv_clocksource_tsc"):
        return CheckedValue(now)
    return advise(now, "dmesg | grep -i -e tsc -e clocksource   (shows why the kernel does not use tsc)")


@add_check(
    "free memory",
    "a host that must free memory for the guest writes to its disks and stalls during the measurement",
)
def _judge_free_memory(state: HostState) -> CheckedValue | None:
    free, total = state.memory_bytes("MemAvailable"), state.memory_bytes("MemTotal")
    if free is None or total is None:
        return None
    value = f"{format_size(free)} of {format_size(total)} available"
    if free < NEEDED_BYTES:
        return report_problem(value, f"end unneeded programs: a guest takes {format_size(NEEDED_BYTES)}")
    if free < SCARCE_SHARE * total:
        return advise(value, "end unneeded programs: ps -eo rss,pid,comm --sort=-rss | head")
    return CheckedValue(value)


@add_check(
    "swap", "memory of the guest or of QEMU that was swapped out must be read from a disk before it is used again"
)
def _judge_swap(state: HostState) -> CheckedValue | None:
    if "/proc/swaps" not in state.files:
        return None
    rows = [line.split() for line in state.text("/proc/swaps").splitlines()[1:]]
    used = sum(int(row[3]) * 1024 for row in rows if len(row) > 3)
    before, after = (
        sum(int(line.split()[1]) for line in sample.get("/proc/vmstat", "").splitlines())
        for sample in (state.before, state.after)
    )
    value = "none" if not rows else f"{format_size(used)} used on {', '.join(row[0] for row in rows)}"
    if moved := after - before:
        value += f"; {moved} pages were moved within {state.seconds:g} s"
        return report_problem(value, "end the programs that use the memory, then: swapoff -a")
    return advise(value, "swapoff -a   (and afterwards: swapon -a)") if used else CheckedValue(value)


@add_check(
    "transparent huge pages",
    "with pages of 4 KiB, a guest walks two page tables more often, which makes each of its I/Os slower",
)
def _judge_huge_pages(state: HostState) -> CheckedValue | None:
    enabled = state.chosen(f"{_HUGE_PAGES}/enabled")
    if not enabled:
        return None
    defrag = state.chosen(f"{_HUGE_PAGES}/defrag") or "unknown"
    value = f"{enabled}, defrag {defrag}"
    if enabled == "never":
        return advise(value, f"echo madvise > {_HUGE_PAGES}/enabled")
    if defrag == "always":
        # Direct reclaim and compaction in each page fault; see the kernel's admin-guide/mm/transhuge.
        why = 'with defrag "always", each page fault may stall until memory is compacted'
        return advise(value, f"echo madvise > {_HUGE_PAGES}/defrag", why=why)
    return CheckedValue(value)


@add_findings
def _check_reserved_pages(state: HostState) -> Iterator[HostFinding]:
    """A finding only if huge pages are reserved: other programs cannot use that memory."""
    lines = dict(line.split(":", 1) for line in state.text("/proc/meminfo").splitlines() if ":" in line)
    total, free = (lines.get(key, "0").strip() for key in ("HugePages_Total", "HugePages_Free"))
    if total not in ("", "0"):
        why = "only guests that request them can use this memory; the guests of virt-overhead do not"
        yield HostFinding("reserved huge pages", f"{free} of {total} free", Level.OK, why)


@add_check(
    "kernel samepage merging",
    "ksmd scans the guests' memory, and a guest that writes to a merged page must copy it first",
)
def _judge_merging(state: HostState) -> CheckedValue | None:
    path = "/sys/kernel/mm/ksm/run"
    run = state.number(path)
    if run == 1:
        setting = Tunable(f"{state.root}{path}", "0")
        return advise("on", f"systemctl stop ksmtuned; echo 0 > {path}", (setting,))
    return None if run is None else CheckedValue("off")


@add_findings
def _check_numa(state: HostState) -> Iterator[HostFinding]:
    why = "a guest on another node than the disk uses the link between the processors for each I/O"
    nodes = state.matching("/sys/devices/system/node/node*/cpulist")
    if len(nodes) < 2:
        yield make_finding("NUMA", why, CheckedValue("one node") if nodes else None)
        return
    cpus = {int(path.split("/")[-2].removeprefix("node")): text for path, text in nodes.items()}
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
    advice = f"{pin}virsh emulatorpin and virsh vcpupin: virt-overhead does not pin"
    yield HostFinding("NUMA", value, Level.ADVICE, why, advice)
    if state.number("/proc/sys/kernel/numa_balancing"):
        why = "the kernel unmaps pages for a moment to learn which node uses them, and moves some of them"
        yield HostFinding("NUMA balancing", "on", Level.ADVICE, why, "sysctl kernel.numa_balancing=0")


@add_check(
    "dirty page limits",
    "a cached mode writes at the memory's speed up to these limits; compare it only between equal limits",
)
def _judge_dirty_limits(state: HostState) -> CheckedValue | None:
    keys = (("dirty_background", "written back from"), ("dirty", "writers blocked from"))
    parts = [_format_limit(state, key, what) for key, what in keys]
    return CheckedValue(", ".join(parts)) if all(parts) else None


def _format_limit(state: HostState, key: str, what: str) -> str:
    """One of the two limits in words; empty if the host does not report it. Only one of bytes and ratio is not 0."""
    size, ratio = state.number(f"/proc/sys/vm/{key}_bytes"), state.number(f"/proc/sys/vm/{key}_ratio")
    if size:
        return f"{what} {format_size(size)}"
    return "" if ratio is None else f"{what} {ratio} % of the available memory"


def examine(state: HostState, proof: Acceleration | None = None) -> list[HostFinding]:
    """The findings of all checks. Pure. `proof` is the result of booting a guest under the host's KVM, if one was."""
    return [
        check_kvm(state, proof),
        *chain.from_iterable(check(state) for check in CHECKS),
        *_check_held_settings(state),
    ]


def find_proof(facts: HostFacts, probes: Path | None = None) -> Acceleration | None:
    """The result that `lab.hosts` stored of booting a guest on this host, with this kernel, CPU and QEMU and any image.

    `probes` is the file with the results. None if no boot was tried or the file cannot be read.
    """
    # The embedded lab's result for this machine does not count: it is also "tcg" if only nested KVM does not work.
    host = f"{facts['hostname']}, {facts['kernel']}, {facts['cpu']}, {facts['qemu']}, guest "
    answers = [answer for key, answer in read_answers(probes or probes_file()).items() if key.startswith(host)]
    return answers[-1] if answers else None


def is_dead(record: SettingsRecord) -> bool:
    """Whether the process that holds the settings is known to have ended."""
    return record.machine == socket.gethostname() and not record.is_alive


def _check_held_settings(state: HostState) -> Iterator[HostFinding]:
    """A finding only if there is a record of changed settings."""
    if (record := SettingsRecord.parse(state.text(RECORD_FILE), state.root)) is None:
        return
    value = f"{len(record.before)} files, held by {record.holder}" + (", which has ended" if is_dead(record) else "")
    why = "settings that were changed for measuring remain until the process that changed them restores them"
    checked = CheckedValue(value) if record.is_alive else advise(value, "virt-overhead doctor --restore")
    yield make_finding("tuned settings", why, checked)
