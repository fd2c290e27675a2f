"""The page of what comes with the project: scenarios, presets, named workloads, published figures, simulated disks."""

from __future__ import annotations

from collections.abc import Iterator

from docs.website.tables import format_table, quote
from harness.features.embedded.disks import (
    CONTROLLER_DISKS,
    CONTROLLERS,
    DISKS,
    NullBlkDisk,
    ScsiDisk,
    SimulatedDisk,
)
from harness.features.published.figures import links
from harness.files import shipped
from harness.model.attach import Attach
from harness.model.job import Workload
from harness.model.workloads import NAMED, Named
from harness.scenario.load import find_scenarios, load_scenario
from harness.scenario.scenario import PRESETS, Scenario
from harness.units import format_duration, format_size, short_size

_INTRODUCTION = """For people who choose what to run: the scenarios that come with the project and what they name. Made
from the code by `python -m docs.website.generate`. [What to run](../what-to-run.md) begins with your question,
[scenarios](../scenarios.md) explains the files."""

_HEAD_OF_NAMES = ("name", "what it is", "tests, or its I/O", "depths", "metric", "source")


def shipped_page() -> str:
    scenarios = [load_scenario(path) for path in find_scenarios(shipped("scenarios"))]
    disks = [disk for disk in DISKS if disk not in CONTROLLER_DISKS]
    parts = (
        ("Scenarios", ("`-k`", "disk", "what it measures", "modes", "workloads"), map(_describe_scenario, scenarios)),
        ("Presets of modes", ("preset", "layout", "bus", "cache", "aio", "iothread"), _list_presets()),
        ("Named workloads", _HEAD_OF_NAMES, map(_describe_named, NAMED.values())),
        ("Published figures", ("`published`", "what was measured", "disk or arrays"), _list_links()),
        ("Disks of the embedded lab", ("disk", "identity", "what it is", "size"), map(_describe_disk, disks)),
        ("Disks behind controllers", ("disks", "identity of the first", "what they are", "size"), _list_controllers()),
    )
    lines = [line for title, head, rows in parts for line in format_table(title, head, rows)]
    return "\n".join(["# What comes with the project", "", _INTRODUCTION, "", *lines])


def _describe_scenario(scenario: Scenario) -> tuple[str, ...]:
    modes = quote(mode.name for mode in scenario.modes if mode.name != "host")
    workloads = quote(workload.name for workload in scenario.workloads)
    disks = [*scenario.disks] if scenario.disks else [scenario.disk]
    named = f"`{disks[0]}`" if len(disks) == 1 else f"`{disks[0]}` and {len(disks) - 1} more"
    disk = named if scenario.disk_class in (None, scenario.disk) else f"{named}, else `{scenario.disk_class}`"
    return f"`{scenario.name}`", disk, scenario.title, modes, workloads


def _list_presets() -> Iterator[tuple[str, ...]]:
    for mode in PRESETS[1:]:
        layout = f"`{mode.layout.kind}`" + (f" on {fs}" if (fs := getattr(mode.layout, "filesystem", None)) else "")
        options = ("the PCI device itself (VFIO)", "", "", "")
        if isinstance(mode.attach, Attach):
            attach = mode.attach
            options = (attach.bus, attach.cache, attach.aio, "yes" if attach.iothread else "no")
        yield (f"`{mode.name}`", layout, *options)


def _describe_named(named: Named) -> tuple[str, ...]:
    (first, *_) = named.workloads
    tests = quote(workload.label for workload in named.workloads) if named.is_set else _describe_io(first)
    depths = dict.fromkeys(depth for workload in named.workloads for depth in workload.iodepths)
    metrics = quote(workload.headline for workload in named.workloads)
    return f"`{named.name}`", named.title, tests, ", ".join(map(str, depths)), metrics, named.source


def _describe_io(workload: Workload) -> str:
    sizes = [short_size(share.bs) for share in workload.sizes] or [short_size(workload.bs)]
    size = sizes[0] if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    shares = {"reads": workload.read_share, "random": workload.random_share}
    parts = [f"{share:.0%} {what}".replace("%", " %") for what, share in shares.items() if share is not None]
    processes = "1 process" if workload.numjobs == 1 else f"{workload.numjobs} processes"
    return ", ".join((workload.pattern, size, *parts, processes))


def _list_links() -> Iterator[tuple[str, ...]]:
    for name, link in links().items():
        yield f"`{name}`", link.study.title, link.models


def _describe_disk(disk: SimulatedDisk) -> tuple[str, ...]:
    words = "an NVMe controller that QEMU emulates, alone in its IOMMU group"
    if isinstance(disk, NullBlkDisk):
        rate = f", at most {disk.bandwidth_mib_s} MiB/s" if disk.bandwidth_mib_s else ""
        answer = format_duration(disk.completion_ns / 1e9)
        words = f"null_blk: answers after {answer}, {disk.queue_depth} at once in each queue{rate}"
    elif isinstance(disk, ScsiDisk):
        words = "a SCSI disk that QEMU emulates, behind virtio-scsi"
        if disk.cache is not None:
            words += f"; its cache takes {disk.cache.writes} writes and drains {disk.cache.drained_per_s} per second"
    return f"`{disk.name}`", _identity(disk), words, format_size(disk.size_bytes)


def _list_controllers() -> Iterator[tuple[str, ...]]:
    for controller in CONTROLLERS:
        first, *_, last = (disk for disk in CONTROLLER_DISKS if disk.controller == controller)
        limits = (f"{limit.iops} IOPS, {format_size(limit.bytes_per_s)}/s" for limit in (first.limit, controller.limit))
        words = "; behind one controller of ".join(limits)
        yield f"`{first.name}` to `{last.name}`", _identity(first), words, f"{format_size(first.size_bytes)} each"


def _identity(disk: SimulatedDisk) -> str:
    return f"`{disk.spec.id}`, serial `{disk.spec.serial}`"
