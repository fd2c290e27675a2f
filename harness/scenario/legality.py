"""Finds modes that conflict with other modes, with the disks or with the workloads of their scenario. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from harness.model.attach import Attach, Vfio
from harness.model.base import Md
from harness.model.layout import Qcow2
from harness.model.mode import Mode
from harness.model.values import shown_field
from harness.scenario.scenario import Scenario
from harness.units import format_size


def scenario_problems(scenario: Scenario) -> Iterator[str]:
    """The conflicts of a scenario's modes with its other modes, its disks or its workloads.

    The lines have the form of the schema's messages: `mode.own.layout.disks = 6: conflicts with disks = ...`.
    """
    for index, mode in enumerate(scenario.modes):
        yield from _disks_for(mode, scenario)
        yield from _spans_for(mode, scenario)
        if isinstance(mode.attach, Vfio):
            yield from _conflicts_with_vfio(f'modes[{index}] = "{mode.name}"', mode, scenario)
        if isinstance(mode.attach, Attach):
            yield from workload_problems(mode.name, mode.attach, scenario)
        if isinstance(mode.layout, Qcow2) and mode.layout.snapshots:
            yield from _snapshots_for(mode, mode.layout, scenario)
    yield from _groups_of(scenario)


def workload_problems(name: str, attach: Attach, scenario: Scenario) -> Iterator[str]:
    """The conflicts of a mode with this name and attachment with the workloads of a scenario."""
    for index, workload in enumerate(scenario.workloads):
        shown_workload = f'workloads[{index}] = "{workload.name}"'
        if attach.read_only and workload.rw not in ("read", "randread"):
            yield (
                f"mode.{name}.attach.read_only = true: conflicts with {shown_workload}, which writes; "
                "allowed: seqread and randread, or another scenario for this mode"
            )
        rounded_up = workload.sizes or workload.from_file
        if not rounded_up and workload.bs % (attach.logical_block_size or 512):
            size = format_size(attach.logical_block_size or 512)
            yield (
                f'mode.{name}.attach.logical_block_size = "{size}": conflicts with {shown_workload}, whose '
                f"block size is not a multiple of it; allowed: multiples of {size}, or smaller logical blocks"
            )


def _disks_for(mode: Mode, scenario: Scenario) -> Iterator[str]:
    md, have = mode.layout.base, len(scenario.disks)
    if isinstance(md, Md) and (needed := max(md.places) + 1) > have:
        table, key = "layout" if mode.layout is md else "layout.on", "starts" if md.starts else "disks"
        key = "spares" if needed - md.spares <= have else key
        named = f"disks = {_listed(scenario.disks)}" if have > 1 else f'disk = "{scenario.disk}"'
        yield (
            f"mode.{mode.name}.{table}.{key} = {shown_field(md, key)}: conflicts with {named}, which has only {have}; "
            f"allowed: {needed} or more names in disks, or an array of fewer disks"
        )


def _spans_for(mode: Mode, scenario: Scenario) -> Iterator[str]:
    """A region with fewer chunks than the array has disks uses only some of them. That would not measure the array."""
    md = mode.layout.base
    if not isinstance(md, Md) or (md.level == 1 and md.legs == 1):
        return
    profile = min(scenario.profiles, key=lambda profile: profile.span)
    if md.chunk * md.disks > profile.span:
        key = "layout.chunk" if mode.layout is md else "layout.on.chunk"
        size, span = format_size(md.chunk), format_size(profile.span)
        yield (
            f'mode.{mode.name}.{key} = "{size}": conflicts with profile.{profile.name}.span = "{span}", which has '
            f"fewer chunks than the array has disks ({md.disks}); allowed: a smaller chunk, or a larger span"
        )


def _snapshots_for(mode: Mode, layout: Qcow2, scenario: Scenario) -> Iterator[str]:
    """Reads beside writes: what is written is in the last image, so later reads do not pass through the chain."""
    reading = [workload.name for workload in scenario.workloads if workload.reads]
    writing = [workload.name for workload in scenario.workloads if workload.writes]
    if reading and writing:
        yield (
            f'mode.{mode.name}.layout.snapshots = {layout.snapshots}: conflicts with "{writing[0]}" beside '
            f'"{reading[0]}", because what is written is no longer read through the chain; allowed: workloads that '
            "only read, or workloads that only write"
        )


def _groups_of(scenario: Scenario) -> Iterator[str]:
    """Modes of one throttle group: QEMU gives all its disks the limits of the last one."""
    first: dict[str, tuple[str, Attach]] = {}
    for mode in scenario.modes:
        if isinstance(attach := mode.attach, Attach) and (group := attach.throttle_group) is not None:
            name, other = first.setdefault(group, (mode.name, attach))
            if other.limits != attach.limits:
                yield (
                    f'mode.{mode.name}.attach.throttle_group = "{group}": conflicts with mode.{name}, which has other '
                    "limits in the same group; allowed: the same iops, bw and bursts, or another group"
                )


def _conflicts_with_vfio(shown_vfio: str, vfio: Mode, scenario: Scenario) -> Iterator[str]:
    for index, other in enumerate(scenario.modes):
        if other is not vfio and other.attach is not None:
            yield (
                f'modes[{index}] = "{other.name}": conflicts with {shown_vfio}, which needs the whole disk; '
                "allowed: host and one mode with vfio; put other modes into another scenario"
            )
    if len(scenario.disks) > 1:
        yield (
            f"disks = {_listed(scenario.disks)}: conflicts with {shown_vfio}, which passes only one disk through; "
            "allowed: disk with one name"
        )


def _listed(names: Collection[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
