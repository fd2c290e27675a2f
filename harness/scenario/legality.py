"""What conflicts in a scenario: the options of one mode, its modes with each other, with its disks and workloads, and
its budgets with what it measures. Pure.

Each problem names two keys with their values, the reason, and what is allowed. Limits of one version or one host are
found on that host. A mode that a host does not support is skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from harness.analysis.metrics import METRICS
from harness.config.names import choices
from harness.config.problems import shown
from harness.feature import ArrayMaker, find_brought
from harness.model.attach import ATTACH_OPTIONS, LUN, Attach, Attachment
from harness.model.base import Device, Md
from harness.model.layout import Layout, OnFilesystem, Qcow2
from harness.model.mode import Budget, Cell, LabKind, Mode
from harness.model.values import format_field
from harness.scenario.plan import expand
from harness.scenario.scenario import Scenario
from harness.units import format_size


def find_mode_problems(layout: Layout, attach: Attachment, given: Collection[str]) -> Iterator[str]:
    """The conflicts within one mode, with the keys of its table: `attach.aio = "native" (the default) conflicts ...`.

    `given` holds the keys that the file sets. A message marks the value of any other key as the default.
    """
    md, maker = layout.base, find_brought(ArrayMaker)
    if isinstance(md, Md) and maker is not None:
        yield from maker.find_conflicts(md, ShownKey("layout" if layout is md else "layout.on", md, given))
    if isinstance(attach, Attach):
        option = ShownKey("attach", attach, given)
        yield from _of_options(layout, attach, option)
        if isinstance(layout, Qcow2) and layout.data_file:
            yield from _data_file(layout, attach, option)
    if isinstance(layout, OnFilesystem) and layout.nodatacow is not None and layout.filesystem != "btrfs":
        filesystem = f'layout.filesystem = "{layout.filesystem}"'
        filesystem += "" if "layout.filesystem" in given else " (the default)"
        why = "which never copies a block to write it"
        one = f"layout.nodatacow = {format_field(layout, 'nodatacow')}"
        yield describe_conflict(one, filesystem, why, "filesystem btrfs, or no nodatacow")
    yield from _whole_device(layout, attach)


def find_vfio_problems(attach: object) -> Iterator[str]:
    """Keys in addition to `device = "vfio"`. Such a device has no options on the host's side."""
    if isinstance(attach, Mapping) and attach.get("device") == "vfio":
        for key in sorted(set(attach) - {"device"}):
            why = "because the guest's own driver does all the work"
            yield describe_conflict(f"attach.{key}", 'attach.device = "vfio"', why, "device alone, or device disk")


@dataclass(frozen=True, slots=True)
class ShownKey:
    """A key of a table with its value, as messages write it."""

    table: str
    values: Attach | Md
    given: Collection[str]

    def __call__(self, name: str) -> str:
        key = f"{self.table}.{name}"
        if getattr(self.values, name) is None:
            return f"{key} left out"
        return f"{key} = {format_field(self.values, name)}" + ("" if key in self.given else " (the default)")

    def is_given(self, name: str) -> bool:
        return f"{self.table}.{name}" in self.given


def describe_conflict(one: str, other: str, why: str, allowed: str) -> str:
    """The message for two keys, as `ShownKey` names them."""
    return f"{one} conflicts with {other}, {why}; allowed: {allowed}"


def _of_options(layout: Layout, attach: Attach, option: ShownKey) -> Iterator[str]:
    """What the rows of the option table say."""
    used = attach.used
    for name, row in ATTACH_OPTIONS.items():
        for conflict in row.conflicts:
            if conflict.when(attach):
                allowed = conflict.allowed if isinstance(conflict.allowed, str) else conflict.allowed(attach)
                yield describe_conflict(option(name), option(conflict.other), conflict.why, allowed)
        if name not in used:
            continue
        if row.buses and attach.bus not in row.buses.names:
            yield describe_conflict(option(name), option("bus"), row.buses.why, row.buses.allowed)
        if row.needs_layout and layout.kind != row.needs_layout[0]:
            kind, why = row.needs_layout
            yield describe_conflict(option(name), f'layout.kind = "{layout.kind}"', why, f"kind {kind}")
        if not row.served and attach.server == "storage-daemon":
            why = "which does not have this option"
            yield describe_conflict(option(name), option("server"), why, f"no {name}, or server qemu")
        if not row.of_lun and attach.device == "lun":
            yield describe_conflict(option(name), option("device"), f"{LUN} unchanged", f"no {name}, or device disk")


def _data_file(layout: Qcow2, attach: Attach, option: ShownKey) -> Iterator[str]:
    one = "layout.data_file = true"
    if layout.snapshots:
        why = "because one option of the image is measured at a time"
        yield describe_conflict(one, f"layout.snapshots = {layout.snapshots}", why, "snapshots = 0")
    if not attach.in_qemu:
        why = "which gets the image only"
        yield describe_conflict(one, option("server"), why, "server qemu")


def _whole_device(layout: Layout, attach: Attachment) -> Iterator[str]:
    """A disk that is passed through as a whole has no layer of the host."""
    device = f'attach.device = "{attach.device}"'
    if attach.device != "disk" and not isinstance(layout, Device):
        yield describe_conflict(
            f'layout.kind = "{layout.kind}"', device, "which passes the whole disk through", "kind device"
        )


def find_scenario_problems(scenario: Scenario) -> Iterator[str]:
    """The conflicts of a scenario's modes with its other modes, its disks or its workloads.

    The lines have the form of the schema's messages: `mode.own.layout.disks = 6: conflicts with disks = ...`.
    """
    for mode in scenario.modes:
        if (maker := find_brought(ArrayMaker)) is not None:
            yield from maker.find_problems(mode, scenario)
        if isinstance(mode.attach, Attach):
            yield from find_workload_problems(mode.name, mode.attach, scenario)
        if isinstance(mode.layout, Qcow2) and mode.layout.snapshots:
            yield from _find_snapshot_conflicts(mode, mode.layout, scenario)


def find_workload_problems(name: str, attach: Attach, scenario: Scenario) -> Iterator[str]:
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


def _find_snapshot_conflicts(mode: Mode, layout: Qcow2, scenario: Scenario) -> Iterator[str]:
    """Reads beside writes: what is written is in the last image, so later reads do not pass through the chain."""
    reading = [workload.name for workload in scenario.workloads if workload.reads]
    writing = [workload.name for workload in scenario.workloads if workload.writes]
    if reading and writing:
        yield (
            f'mode.{mode.name}.layout.snapshots = {layout.snapshots}: conflicts with "{writing[0]}" beside '
            f'"{reading[0]}", because what is written is no longer read through the chain; allowed: workloads that '
            "only read, or workloads that only write"
        )


def list_names(names: Collection[str]) -> str:
    """Names as a file has them."""
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


LAB_KINDS: tuple[LabKind, ...] = get_args(LabKind)

_NOT_A_GUEST_MODE = "not a mode with a guest in this scenario"


def budgets_for(scenario: Scenario, cell: Cell, lab_kind: LabKind) -> dict[str, Budget]:
    """The budgets of `cell` in a lab of this kind, by their keys. Empty if the cell is not judged.

    If several budgets of one metric match, the last one counts. Those of a difference between variants count apart.
    """
    return {rule.key: rule for rule in scenario.budgets if rule.covers(cell, lab_kind)}


def find_reference_problems(scenario: Scenario) -> Iterator[str]:
    """One line for each name in `budget` that is not measured, and for each budget without effect.

    The lines have the form of the schema's messages: `budget[0].modes[1] = "lmv": ...; allowed: ...`.
    """
    modes = list(dict.fromkeys(name for mode in scenario.modes if mode.attach is not None for name in mode.names))
    workloads = [workload.name for workload in scenario.workloads]
    depths = sorted({depth for profile in scenario.profiles for depth in profile.iodepth})
    unknown: list[str] = []
    for index, rule in enumerate(scenario.budgets):
        key = f"budget[{index}]"
        named = [workload.name for workload in rule.workloads or ()]
        unknown += _find_unknown(f"{key}.modes", rule.modes or (), modes, _NOT_A_GUEST_MODE)
        unknown += _find_unknown(f"{key}.workloads", named, workloads, "not a workload of this scenario")
        unknown += [
            f"{key}.iodepth[{at}] = {depth}: no profile measures at this depth; allowed: {', '.join(map(str, depths))}"
            for at, depth in enumerate(rule.iodepth or ())
            if depth not in depths
        ]
    yield from unknown or [
        *_find_throughput_budgets_of_fixed_rates(scenario),
        *_find_budgets_of_syncs_without_any(scenario),
        *(_find_budgets_without_effect(scenario) if scenario.budgets else ()),
    ]


def _find_unknown(key: str, names: Sequence[str], allowed: Sequence[str], what: str) -> Iterator[str]:
    for index, name in enumerate(names):
        if name not in allowed:
            known = choices(name, allowed or ["nothing, because only the host is measured"])
            yield f"{key}[{index}] = {shown(name)}: {what}; {known}"


def _find_throughput_budgets_of_fixed_rates(scenario: Scenario) -> Iterator[str]:
    """Budgets of throughput for jobs with a fixed rate. Every arm has this throughput, so nothing can exceed them."""
    latencies = [name for name, metric in METRICS.items() if metric.is_latency]
    for index, rule in enumerate(scenario.budgets):
        workloads = rule.workloads or scenario.workloads
        if METRICS[rule.metric].higher_is_better and all(workload.rate is not None for workload in workloads):
            key = f"budget[{index}].workloads" if rule.workloads else "workloads"
            yield (
                f'budget[{index}].metric = "{rule.metric}": conflicts with {key}[0] = "{workloads[0].name}", which '
                f"has a fixed rate; allowed: {', '.join(latencies)}"
            )


def _find_budgets_of_syncs_without_any(scenario: Scenario) -> Iterator[str]:
    """Budgets for fdatasync where no job calls it."""
    for index, rule in enumerate(scenario.budgets):
        if METRICS[rule.metric].of == "syncs" and not any(
            workload.flushes for workload in rule.workloads or scenario.workloads
        ):
            yield (
                f'budget[{index}].metric = "{rule.metric}": none of its workloads calls fdatasync; '
                "allowed: a workload that does, for example wal, or another metric"
            )


def _find_budgets_without_effect(scenario: Scenario) -> Iterator[str]:
    """Budgets that cover no cell of any profile, or only cells that later budgets cover as well."""
    covering: set[int] = set()
    counting: set[int] = set()
    # Budgets do not depend on times, so profiles with the same depths have the same cells.
    profiles = {profile.iodepth: profile.name for profile in scenario.profiles}
    for cell in (cell for name in profiles.values() for cell in expand(scenario, name)):
        if len(counting) == len(scenario.budgets):
            break
        for lab_kind in LAB_KINDS:
            indices = [index for index, rule in enumerate(scenario.budgets) if rule.covers(cell, lab_kind)]
            covering.update(indices)
            counting.update({scenario.budgets[index].key: index for index in indices}.values())
    for index, rule in enumerate(scenario.budgets):
        compared = any(mode.against is not None for mode in scenario.modes)
        if rule.difference is not None and not compared:
            continue  # The lab file may have the variants.
        if index not in covering and rule.difference is not None:
            yield (
                f"budget[{index}]: matches no cell, because its modes are compared with no other; "
                "allowed: a variant that is not the reference, or a mode with a neighbour"
            )
        elif index not in covering:
            yield (
                f"budget[{index}]: matches no cell, because only the host is measured; "
                "add a mode to modes, or remove the budget"
            )
        elif index not in counting:
            yield (
                f"budget[{index}]: has no effect, because later budgets of {rule.key} match all its cells; "
                "allowed: general budgets first, exceptions after them"
            )
