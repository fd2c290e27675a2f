"""Checks of the disks under test: what the kernel does with a request on its way to the disk."""

from __future__ import annotations

from collections.abc import Iterator

from harness.doctor.findings import Finding, Level, Setting, not_available
from harness.doctor.probe import DiskState, HostState

FOREIGN_REQUESTS = 10
"""Requests per second of other programs on a disk under test. Fewer may come from a monitor that reads its health."""


def disks(state: HostState) -> Iterator[Finding]:
    if not state.disks:
        why = "scheduler, queue and link of a disk are checked only if a lab file names the disk"
        yield Finding("disks under test", "none named", Level.UNKNOWN, why, "virt-overhead doctor --lab=FILE")
    for disk in state.disks:
        if not disk.device:
            yield _missing(disk)
            continue
        yield _scheduler(state, disk)
        yield _queue(state, disk)
        yield _write_cache(state, disk)
        yield _counted(state, disk)
        yield _others(state, disk)
        if disk.link_power:
            yield _link_power(disk)


def aspm(state: HostState) -> Iterator[Finding]:
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


def _missing(disk: DiskState) -> Finding:
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


def _scheduler(state: HostState, disk: DiskState) -> Finding:
    check = f"{disk.name}: I/O scheduler"
    why = "a scheduler costs CPU time and reorders requests; a disk without moving parts gains nothing from it"
    path = f"/sys/block/{disk.device}/queue/scheduler"
    now = state.chosen(path)
    if not now:
        return not_available(check, why)
    value = _of(disk, now)
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


def _queue(state: HostState, disk: DiskState) -> Finding:
    check = f"{disk.name}: queue"
    why = "the number of waiting requests, merging and the CPU of completions determine latency at high iodepth"
    queue = f"/sys/block/{disk.device}/queue"
    parts = [
        f"{name} {text}"
        for name in ("nr_requests", "nomerges", "rq_affinity")
        if (text := state.text(f"{queue}/{name}"))
    ]
    kind = {"0": ["not rotational"], "1": ["rotational"]}.get(state.text(f"{queue}/rotational"), [])
    return Finding(check, _of(disk, ", ".join([*kind, *parts])), Level.OK, why) if parts else not_available(check, why)


def _write_cache(state: HostState, disk: DiskState) -> Finding:
    check = f"{disk.name}: write cache"
    why = (
        "a volatile cache (write back) completes writes early and is emptied at each flush: compare only equal settings"
    )
    now = state.text(f"/sys/block/{disk.device}/queue/write_cache")
    return Finding(check, _of(disk, now), Level.OK, why) if now else not_available(check, why)


def _counted(state: HostState, disk: DiskState) -> Finding:
    check = f"{disk.name}: I/O accounting"
    why = "without the host's byte counter it is unknown whether the bytes that fio counted reached the disk"
    path = f"/sys/block/{disk.device}/queue/iostats"
    now = state.number(path)
    if now is None:
        return not_available(check, why)
    if now:
        return Finding(check, _of(disk, "on"), Level.OK, why)
    settings = (Setting(f"{state.root}{path}", "1"),) if disk.owned else ()
    return Finding(check, _of(disk, "off"), Level.PROBLEM, why, f"echo 1 > {path}", settings)


def _others(state: HostState, disk: DiskState) -> Finding:
    check = f"{disk.name}: other I/O"
    why = "requests of other programs wait in the same queue, and are counted as the guest's or the host's"
    path = f"/sys/block/{disk.device}/stat"
    samples = [sample.get(path, "").split() for sample in (state.before, state.after)]
    if not all(len(sample) > 4 for sample in samples):
        return not_available(check, why)
    # Fields 1 and 5: reads and writes completed (the kernel's Documentation/block/stat).
    before, after = (int(sample[0]) + int(sample[4]) for sample in samples)
    value = _of(disk, f"{after - before} requests within {state.seconds:g} s")
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


def _link_power(disk: DiskState) -> Finding:
    check = f"{disk.name}: SATA link power"
    why = "a link that sleeps between two requests takes microseconds to wake up"
    value = _of(disk, disk.link_power)
    if disk.link_power in ("max_performance", "keep_firmware_settings"):
        return Finding(check, value, Level.OK, why)
    command = "echo max_performance | tee /sys/class/scsi_host/host*/link_power_management_policy"
    return Finding(check, value, Level.ADVICE, why, command)


def _of(disk: DiskState, value: str) -> str:
    """The value with the name of its device, which may change when the host boots."""
    return f"{value} ({disk.device}{'' if disk.owned else ', which holds its file'})"


CHECKS = (disks, aspm)
