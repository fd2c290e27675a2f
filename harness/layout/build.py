"""Builds all layouts of a scenario's disks side by side, each on its region or on an md array, and removes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from harness.errors import Unsupported
from harness.events import Events
from harness.feature import array_maker
from harness.lab.counters import NFS
from harness.lab.created import CreationLog
from harness.lab.facts import HostFacts
from harness.lab.guard import Writable
from harness.lab.guard.room import FileReserve
from harness.lab.inventory import DiskByFile, DiskSpec
from harness.lab.pin import TAG
from harness.lab.transport.base import Runner
from harness.layout import BlockSource, Sources
from harness.layout.disks import inhibit_udev, partitioned_disks
from harness.layout.layers import BARE, BasePlan, plan_bases
from harness.layout.regions import Need, PartitionedDisk, Region, partition_array
from harness.model.base import Md
from harness.model.mode import Mode
from harness.scenario.setups import places_needed

_COUNTED = ("dm-", "rbd")
"""Devices whose own counters show what reached the disks. ZFS serves reads of a zvol from its cache, so zd is none."""


class Reserve(Protocol):
    """Keeps the reserve of a storage in use free while a run fills its volumes there and measures them."""

    def require(self, size_bytes: int) -> None:
        """Raise SafetyError if `size_bytes` more would leave too little free now, or if the free space is unknown."""
        ...

    def require_for(self, path: str, size_bytes: int, part_bytes: int) -> None:
        """The same before `part_bytes` of the volume at `path` are written, which has `size_bytes`.

        What the volume has already been allocated is not needed again. Raises SafetyError, HostError.
        """
        ...


class Rebuild(Protocol):
    """An array with a missing member, and its spare, which is not part of the array until a recovery begins."""

    def running(self, seconds: float) -> AbstractContextManager[None]:
        """A recovery runs in the block, and lasts for at least `seconds`. Raises SafetyError, HostError."""
        ...


@dataclass(frozen=True, slots=True)
class SharedStorage:
    """The storage in use that the layouts of a run are on.

    `disks` are the kernel's names of the disks below it, which others use, too, or the mount of
    an NFS server. Empty if the host has none (CIFS).
    """

    words: str
    """For example `thin pool pve/data`."""
    disks: tuple[str, ...]
    room: Reserve
    """Asked before each part of the volumes is filled, and before each group is measured."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the results say about it."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """How the volume of a mode differs from what the mode requests, by the mode's name."""

    def counted(self, source: BlockSource) -> tuple[str, ...]:
        """The device of the volume, if its counters show which bytes reached the disks. Only this run uses it."""
        grant = (source.data or source).grant
        name = grant.name if grant is not None and source.network is None else ""
        return (name,) if name.startswith(_COUNTED) else ()

    def how_counted(self, source: BlockSource) -> str:
        """How the bytes of this volume are checked, in words."""
        if self.counted(source):
            return "counted on the volume itself"
        if self.disks and self.disks[0].startswith(NFS):
            return f"counted at {self.disks[0].removeprefix(NFS)} by NFS, together with those of others"
        if self.disks:
            return f"counted on the disks below ({', '.join(self.disks)}), together with those of others"
        return "not counted on a disk, because the host has none below it: fio is only compared with QEMU"


@dataclass(frozen=True, slots=True)
class Layouts:
    """The layouts of one scenario, as built: where the data of each mode is. All spans are equal. `span` in bytes.

    `device` is the bare region of the first disk, or the volume of the baseline on a storage in use. `by_mode` has the
    source that each mode's guest gets, `twins` the source for fio on the host, if it is another one, and `members` the
    kernel names of the disks of each mode on an array, with its spare.
    """

    device: BlockSource
    by_mode: Mapping[str, BlockSource]
    span: int
    disk: str
    """The kernel's name of the first disk."""
    twins: Mapping[str, BlockSource] = field(default_factory=dict)
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """The name in the lab of each disk by its kernel name."""
    arrays: Mapping[str, str] = field(default_factory=dict)
    """The kernel's name of the array of each mode on one."""
    rebuilds: Mapping[str, Rebuild] = field(default_factory=dict)
    """How the spare of each mode on an array that is to be rebuilding is rebuilt."""
    shared: SharedStorage | None = None
    """The storage in use that all of them are on; None on disks that only this run uses."""
    files: FileReserve | None = None
    """Of the file systems that the files behind the disks are on; None if all disks are real ones."""

    @property
    def reserve(self) -> Reserve | None:
        """What is asked before a part of them is filled, because others use the same space."""
        return self.shared.room if self.shared else self.files

    def narrowed(self, span: int) -> Layouts:
        """The same bare device, of which only the first `span` bytes are used. It must have no modes."""
        return replace(self, device=replace(self.device, size=span), span=span)

    def guest(self, mode: Mode) -> BlockSource:
        """The source that the guest of this mode gets as its disk."""
        return self.by_mode[mode.stored.name]

    def twin(self, mode: Mode | None) -> BlockSource:
        """The source for fio on the host: the twin of this mode, or with None the bare device.

        The twin of a qcow2 file is a RAW file of the same size on the same file system, because fio cannot read the
        format.
        """
        if mode is None:
            return self.device
        return self.twins.get(mode.stored.name, self.by_mode[mode.stored.name])

    def disks(self, mode: Mode | None) -> tuple[str, ...]:
        """Kernel names (`nvme0n1`) of the disks below all layers. The sum of their counters is what reached disks.

        On a storage in use, the device of the mode's own volume, because others use the disks. Empty for files there.
        """
        if self.shared is not None:
            # A guest with a file system has a volume of its own, and only one of the two is used at a time.
            sources = (self.twin(mode), *([self.guest(mode)] if mode is not None else ()))
            return tuple(dict.fromkeys(name for source in sources for name in self.shared.counted(source)))
        return (self.disk,) if mode is None else self.members.get(mode.stored.name, (self.disk,))

    @property
    def regions(self) -> dict[str, BlockSource]:
        """The sources that the host can write to, each once, by the first mode that uses it or `device` if bare."""
        regions = {self.device: BARE}
        for name, source in self.by_mode.items():
            regions.setdefault(self.twins.get(name, source), name)
        return {name: source for source, name in regions.items()}

    @property
    def images(self) -> list[Sources]:
        """The sources that only QEMU can write to (qcow2 files), with their twins."""
        pairs = (Sources(self.by_mode[name], twin) for name, twin in self.twins.items())
        return [pair for pair in pairs if pair.guest.format != "raw"]


@contextmanager
def built(
    log: CreationLog,
    facts: HostFacts,
    disks: Sequence[DiskSpec],
    modes: Sequence[Mode],
    *,
    span: int,
    events: Events | None = None,
) -> Iterator[Layouts]:
    """The layouts of `modes` on `disks`, each `span` bytes or what fits. Removes everything at the end.

    Layouts on one disk use the first disk; an array uses the disks at its places. Other disks are not touched. The
    guard checks each disk immediately before the first write to it. Raises SafetyError, Unsupported or HostError.
    """
    runner = log.runner
    _require_tools(runner, facts)
    on_disk, *plans = plan_bases(modes)
    arrays = [(plan, plan.base) for plan in plans if isinstance(plan.base, Md)]
    places = places_needed(modes)
    if len(disks) <= places[-1]:
        raise Unsupported(
            f"{runner.name}: an array that uses {places[-1] + 1} disks is requested, but the scenario has {len(disks)}",
            hint="name more disks in the scenario, or select modes on smaller arrays with -k",
        )
    needs: dict[int, dict[str, Need]] = {place: {} for place in places}
    needs[0] |= on_disk.needs
    for plan, base in arrays:
        for place in base.places:
            needs[place][plan.label] = array_maker().compute_need(base, plan.needs.values())
    with ExitStack() as stack:
        used = [disks[place] for place in places]
        partitioned, span = stack.enter_context(partitioned_disks(log, used, list(needs.values()), span=span))
        ready = dict(zip(places, partitioned, strict=True))
        builder = Builder(log, span, events or Events())
        first = ready[0]
        files = tuple((str(disk.file), disk.size) for disk in used if isinstance(disk, DiskByFile))
        stack.enter_context(inhibit_udev(log, first.device))
        bare = BlockSource(first.link, "block", first.regions[BARE].offset, span, grant=first.device)
        sources = {mode: Sources.same(bare) for mode in on_disk.bare}
        sources |= stack.enter_context(builder.layers(on_disk, first.regions))
        members: dict[str, tuple[str, ...]] = {}
        names: dict[str, str] = {}
        rebuilds: dict[str, Rebuild] = {}
        for plan, base in arrays:
            on = [ready[place] for place in base.places]
            device, on_array = stack.enter_context(builder.array(plan, base, on))
            sources |= on_array
            members |= dict.fromkeys(on_array, tuple(disk.device.name for disk in on))
            names |= dict.fromkeys(on_array, device.name)
            if base.spares:
                rebuilds |= dict.fromkeys(on_array, array_maker().rebuild(device, on[-1].regions[plan.label].device))
        yield Layouts(
            device=bare,
            by_mode={name: pair.guest for name, pair in sources.items()},
            span=span,
            disk=first.device.name,
            twins={name: pair.twin for name, pair in sources.items() if pair.twin != pair.guest},
            members=members,
            names={
                partitioned_disk.device.name: disk.name
                for disk, partitioned_disk in zip(used, partitioned, strict=True)
            },
            arrays=names,
            rebuilds=rebuilds,
            files=FileReserve(runner, files) if files else None,
        )


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds arrays and layers for one run on one host. `span` is the size of each mode in bytes."""

    log: CreationLog
    span: int
    events: Events

    @contextmanager
    def array(
        self, plan: BasePlan, base: Md, disks: Sequence[PartitionedDisk]
    ) -> Iterator[tuple[Writable, dict[str, Sources]]]:
        """The array over its regions of these disks, and everything that is built on it."""
        maker = array_maker()
        members = [disk.regions[plan.label] for disk in disks]
        sizes = [(what, need.bytes(self.span)) for what, need in plan.needs.items()]
        alignment = maker.compute_alignment(base)
        name = f"{TAG}-{self.log.run_id}-{plan.label}"
        with (
            maker.create(self.log, base, name, members, self.events) as device,
            partition_array(self.log, device, sizes, alignment=alignment) as regions,
            self.layers(plan, regions) as layered,
        ):
            bare = [
                BlockSource(device.path, "block", regions[BARE].offset, self.span, grant=device) for _ in plan.bare[:1]
            ]
            yield device, {mode: Sources.same(source) for source in bare for mode in plan.bare} | layered

    @contextmanager
    def layers(self, plan: BasePlan, regions: Mapping[str, Region]) -> Iterator[dict[str, Sources]]:
        """The layers on the regions of this base."""
        name = "-".join(filter(None, (TAG, self.log.run_id, plan.label)))
        sources: dict[str, Sources] = {}
        with ExitStack() as stack:
            for layer in plan.layers:
                sources |= stack.enter_context(layer.build(self.log, regions[layer.region], name, self.span))
            yield sources


def _require_tools(runner: Runner, facts: HostFacts) -> None:
    for tool in ("sfdisk", "wipefs"):
        if not facts.has_tool(tool):
            raise Unsupported(f"{runner.name}: {tool} is not installed", hint=facts.install("fdisk", "util-linux"))
