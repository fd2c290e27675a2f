"""Checks of the disks under test: what the kernel does to a request on its way there."""

from __future__ import annotations

from collections.abc import Iterator

from harness.doctor.findings import Finding, Level, Setting, not_available
from harness.doctor.probe import DiskState, HostState

FOREIGN_REQUESTS = 10
"""Requests per second of somebody else on a disk under test; fewer are a monitor that asks for its health."""


def disks(seen: HostState) -> Iterator[Finding]:
    if not seen.disks:
        why = "scheduler, queue and link of a disk are looked at where a lab file says which disk is measured"
        yield Finding("disks under test", "none named", Level.UNKNOWN, why, "virt-overhead doctor --lab=FILE")
    for disk in seen.disks:
        if not disk.device:
            yield _missing(disk)
            continue
        yield _scheduler(seen, disk)
        yield _queue(seen, disk)
        yield _write_cache(seen, disk)
        yield _counted(seen, disk)
        yield _others(seen, disk)
        if disk.link_power:
            yield _link_power(disk)


def aspm(seen: HostState) -> Iterator[Finding]:
    check = "PCIe link power"
    why = "a link that was put to sleep between two requests takes microseconds to wake up"
    path = "/sys/module/pcie_aspm/parameters/policy"
    policy = seen.chosen(path)
    if not policy:
        yield not_available(check, why)
    elif policy.startswith("power"):
        yield Finding(check, policy, Level.ADVICE, why, f"echo performance > {path}")
    else:
        yield Finding(check, policy, Level.OK, why)


def _missing(disk: DiskState) -> Finding:
    if not disk.owned:
        why = "a file on something that is no disk, such as memory or a network, is as fast as that"
        return Finding(f"{disk.name}: disk below its file", "there is none", Level.UNKNOWN, why)
    why = "what is not there cannot be measured"
    return Finding(
        f"{disk.name}: device", f"no whole disk is {disk.identity}", Level.PROBLEM, why, "ls -l /dev/disk/by-id/"
    )


def _scheduler(seen: HostState, disk: DiskState) -> Finding:
    check = f"{disk.name}: I/O scheduler"
    why = "a scheduler costs CPU time and reorders; a disk without moving parts gains nothing from it"
    path = f"/sys/block/{disk.device}/queue/scheduler"
    now = seen.chosen(path)
    if not now:
        return not_available(check, why)
    value = _of(disk, now)
    if seen.number(f"/sys/block/{disk.device}/queue/rotational") == 1:
        why = "order is worth much to a disk with a moving head: the same scheduler for everything that is compared"
        return Finding(check, value, Level.OK, why)
    if now == "none" or "none" not in seen.text(path).split():
        return Finding(check, value, Level.OK, why)
    # Another scheduler brings queue depth and tunables of its own along (block/elevator.c, elevator_switch()).
    queue = f"/sys/block/{disk.device}/queue"
    resets = [
        path for name in ("nr_requests", "wbt_lat_usec", "iosched/*") for path in seen.matching(f"{queue}/{name}")
    ]
    setting = Setting(f"{seen.root}{path}", "none", tuple(f"{seen.root}{each}" for each in resets))
    # Somebody else's disk, which holds the file, is advised on and left as it is.
    return Finding(check, value, Level.ADVICE, why, f"echo none > {path}", (setting,) if disk.owned else ())


def _queue(seen: HostState, disk: DiskState) -> Finding:
    check = f"{disk.name}: queue"
    why = "how many requests wait, whether neighbours are merged and where completions run decides latency at depth"
    queue = f"/sys/block/{disk.device}/queue"
    parts = [
        f"{name} {text}"
        for name in ("nr_requests", "nomerges", "rq_affinity")
        if (text := seen.text(f"{queue}/{name}"))
    ]
    kind = {"0": ["not rotational"], "1": ["rotational"]}.get(seen.text(f"{queue}/rotational"), [])
    return Finding(check, _of(disk, ", ".join([*kind, *parts])), Level.OK, why) if parts else not_available(check, why)


def _write_cache(seen: HostState, disk: DiskState) -> Finding:
    check = f"{disk.name}: write cache"
    why = "a volatile cache (write back) takes writes early and empties at each flush: compare like with like"
    now = seen.text(f"/sys/block/{disk.device}/queue/write_cache")
    return Finding(check, _of(disk, now), Level.OK, why) if now else not_available(check, why)


def _counted(seen: HostState, disk: DiskState) -> Finding:
    check = f"{disk.name}: I/O accounting"
    why = "without the host's count of bytes nobody can tell whether what fio counted has reached the disk"
    path = f"/sys/block/{disk.device}/queue/iostats"
    now = seen.number(path)
    if now is None:
        return not_available(check, why)
    if now:
        return Finding(check, _of(disk, "on"), Level.OK, why)
    settings = (Setting(f"{seen.root}{path}", "1"),) if disk.owned else ()
    return Finding(check, _of(disk, "off"), Level.PROBLEM, why, f"echo 1 > {path}", settings)


def _others(seen: HostState, disk: DiskState) -> Finding:
    check = f"{disk.name}: other I/O"
    why = "requests of others wait in the same queue, and are taken for the guest's or the host's"
    path = f"/sys/block/{disk.device}/stat"
    samples = [sample.get(path, "").split() for sample in (seen.before, seen.after)]
    if not all(len(sample) > 4 for sample in samples):
        return not_available(check, why)
    # Fields 1 and 5: reads and writes completed (the kernel's Documentation/block/stat).
    before, after = (int(sample[0]) + int(sample[4]) for sample in samples)
    value = _of(disk, f"{after - before} requests within {seen.seconds:g} s")
    if after - before <= FOREIGN_REQUESTS * seen.seconds:
        return Finding(check, value, Level.OK, why)
    level = Level.PROBLEM if disk.owned else Level.ADVICE
    return Finding(check, value, level, why, f"find who uses it: fuser -v /dev/{disk.device}; lsblk /dev/{disk.device}")


def _link_power(disk: DiskState) -> Finding:
    check = f"{disk.name}: SATA link power"
    why = "a link that was put to sleep between two requests takes microseconds to wake up"
    value = _of(disk, disk.link_power)
    if disk.link_power in ("max_performance", "keep_firmware_settings"):
        return Finding(check, value, Level.OK, why)
    command = "echo max_performance | tee /sys/class/scsi_host/host*/link_power_management_policy"
    return Finding(check, value, Level.ADVICE, why, command)


def _of(disk: DiskState, value: str) -> str:
    """The value, and the device that it is of, which is another one from start to start."""
    return f"{value} ({disk.device}{'' if disk.owned else ', which holds its file'})"


CHECKS = (disks, aspm)
