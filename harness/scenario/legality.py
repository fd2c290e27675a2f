"""Which layouts, attach options, workloads and disks do not go together, whatever the hypervisor. Pure.

Each problem names two keys with their values, says why, and what is allowed. What only a certain version or host
cannot do is not told here: it is found there, and such a mode is skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from harness.model.attach import Attach, Attachment, Vfio
from harness.model.layout import Device, Layout, Md, RaidLevel
from harness.model.mode import Mode
from harness.model.values import shown_field
from harness.scenario.scenario import Scenario
from harness.units import format_size

FEWEST_DISKS: dict[RaidLevel, int] = {0: 2, 1: 2, 5: 3, 6: 4, 10: 4}
"""Of an array. md takes two for RAID 10, too: a mirror by another name."""

_VIRTIO = ("virtio-blk", "virtio-scsi")


def mode_problems(layout: Layout, attach: Attachment, given: Collection[str]) -> Iterator[str]:
    """What of one mode cannot be, with keys as in its table: `attach.aio = "native" (the default) does not go ...`.

    `given` are the keys that the file has; the value of another is told as its default.
    """
    md = layout.base
    if isinstance(md, Md):
        yield from _array(md, _Option("layout" if layout is md else "layout.on", md, given))
    if isinstance(attach, Attach):
        said = _Option("attach", attach, given)
        yield from _caches(attach, said)
        yield from _threads_and_queues(attach, said)
        yield from _ports(attach, said)
        yield from _block_sizes(attach, said)
        yield from _lun(attach, said)
    yield from _whole_device(layout, attach)


def vfio_problems(attach: object) -> Iterator[str]:
    """Keys beside `device = "vfio"`: the host's part of such a device has no options."""
    if isinstance(attach, Mapping) and attach.get("device") == "vfio":
        for key in sorted(set(attach) - {"device"}):
            why = "where the guest's own driver does all the work"
            yield _clash(f"attach.{key}", 'attach.device = "vfio"', why, "device alone, or device disk")


def scenario_problems(scenario: Scenario) -> Iterator[str]:
    """What of a scenario's modes does not go with its other modes, its disks or its workloads.

    The lines are as those of the schema: `mode.own.layout.disks = 6: does not go with disks = [...]...; allowed: ...`.
    """
    for index, mode in enumerate(scenario.modes):
        yield from _disks_for(mode, scenario)
        yield from _spans_for(mode, scenario)
        if isinstance(mode.attach, Vfio):
            yield from _beside_vfio(f'modes[{index}] = "{mode.name}"', mode, scenario)
        if isinstance(mode.attach, Attach):
            yield from _workloads_for(mode.name, mode.attach, scenario)


@dataclass(frozen=True, slots=True)
class _Option:
    """A key of a table with its value, as messages write it."""

    table: str
    values: Attach | Md
    given: Collection[str]

    def __call__(self, name: str) -> str:
        key = f"{self.table}.{name}"
        if getattr(self.values, name) is None:
            return f"{key} left out"
        return f"{key} = {shown_field(self.values, name)}" + ("" if key in self.given else " (the default)")

    def is_given(self, name: str) -> bool:
        return f"{self.table}.{name}" in self.given


def _clash(one: str, other: str, why: str, allowed: str) -> str:
    return f"{one} does not go with {other}, {why}; allowed: {allowed}"


def _array(md: Md, said: _Option) -> Iterator[str]:
    per_leg, fewest = md.disks // md.legs, FEWEST_DISKS[md.level]
    if md.disks % md.legs:
        yield _clash(said("disks"), said("legs"), "each of which has half of them", "an even number of disks")
    elif per_leg < fewest and md.legs == 1:
        yield _clash(said("disks"), said("level"), f"which needs {fewest} disks", f"disks = {fewest} and more")
    elif per_leg < fewest:
        needed = f"disks = {md.legs * fewest} and more, in even numbers, or legs = 1"
        yield _clash(said("legs"), said("disks"), f"as each is RAID {md.level}, which needs {fewest} disks", needed)
    if md.level == 1 and md.legs == 1 and said.is_given("chunk"):
        yield _clash(said("chunk"), said("level"), "whose disks hold the same", "no chunk, or another level")


def _caches(attach: Attach, said: _Option) -> Iterator[str]:
    if attach.aio == "native" and not attach.direct:
        allowed = "cache none or directsync, or aio threads or io_uring"
        yield _clash(said("aio"), said("cache"), "which is no direct I/O", allowed)
    if attach.detect_zeroes == "unmap" and attach.discard != "unmap":
        allowed = 'discard = "unmap", or detect_zeroes = "on"'
        yield _clash(said("detect_zeroes"), said("discard"), "which drops what zeroes would become", allowed)


def _threads_and_queues(attach: Attach, said: _Option) -> Iterator[str]:
    if attach.bus not in _VIRTIO:
        why = "whose requests QEMU's main thread serves"
        if attach.iothread:
            yield _clash(said("iothread"), said("bus"), why, "iothread = false, or bus virtio-blk or virtio-scsi")
        if attach.iothread_vq_mapping:
            yield _clash(said("iothread_vq_mapping"), said("bus"), why, "bus virtio-blk or virtio-scsi")
        for key in ("queues", "queue_size"):
            if getattr(attach, key) is not None:
                yield _clash(said(key), said("bus"), "which is not virtio", "bus virtio-blk or virtio-scsi")
        return
    if not attach.iothread_vq_mapping:
        return
    if attach.iothread:
        yield _clash(
            said("iothread"),
            said("iothread_vq_mapping"),
            "which names the threads of each queue",
            "iothread = false, or no iothread_vq_mapping",
        )
    if attach.queues is None or attach.queues < attach.iothread_vq_mapping:
        yield _clash(
            said("iothread_vq_mapping"),
            said("queues"),
            "as each thread needs a queue",
            f"queues = {attach.iothread_vq_mapping} and more",
        )


def _ports(attach: Attach, said: _Option) -> Iterator[str]:
    if attach.controller == "shared" and attach.bus != "virtio-scsi":
        allowed = "bus virtio-scsi, or no controller"
        yield _clash(said("controller"), said("bus"), "which has no controllers to choose", allowed)
    if attach.read_only and attach.bus in ("sata", "ide"):
        allowed = "bus virtio-blk, virtio-scsi or nvme"
        yield _clash(said("read_only"), said("bus"), "which knows no read-only disks", allowed)


def _block_sizes(attach: Attach, said: _Option) -> Iterator[str]:
    logical, physical = attach.logical_block_size, attach.physical_block_size
    if logical is None:
        return
    if logical > (physical or 512):
        allowed = f'physical_block_size = "{format_size(logical)}" and more'
        why = "as no physical block is smaller than a logical one"
        yield _clash(said("logical_block_size"), said("physical_block_size"), why, allowed)
    if logical != 512 and attach.bus in ("sata", "ide"):
        why = "whose blocks have 512 bytes in QEMU"
        yield _clash(said("logical_block_size"), said("bus"), why, "bus virtio-blk, virtio-scsi or nvme")


def _lun(attach: Attach, said: _Option) -> Iterator[str]:
    """The guest's SCSI commands go to the host's disk by ioctl (SG_IO): what QEMU's block layer does, it cannot do."""
    if attach.device != "lun":
        return
    why = "which hands the guest's SCSI commands to the disk"
    usual = Attach()
    if attach.bus != "virtio-scsi":
        yield _clash(said("bus"), said("device"), why, "bus virtio-scsi")
    if attach.cache != "none":
        yield _clash(said("cache"), said("device"), f"{why}, past every cache of the host", "cache none")
    if attach.aio != "threads":
        yield _clash(said("aio"), said("device"), f"{why} by QEMU's thread pool", "aio threads")
    for key in ("discard", "detect_zeroes", "logical_block_size", "physical_block_size", "read_only"):
        if getattr(attach, key) != getattr(usual, key):
            yield _clash(said(key), said("device"), f"{why} as they are", f"no {key}, or device disk")


def _whole_device(layout: Layout, attach: Attachment) -> Iterator[str]:
    """A disk that is passed through as a whole has no layer of the host."""
    said = f'attach.device = "{attach.device}"'
    if attach.device != "disk" and not isinstance(layout, Device):
        yield _clash(f'layout.kind = "{layout.kind}"', said, "which passes the whole disk through", "kind device")


def _beside_vfio(said: str, vfio: Mode, scenario: Scenario) -> Iterator[str]:
    for index, other in enumerate(scenario.modes):
        if other is not vfio and other.attach is not None:
            yield (
                f'modes[{index}] = "{other.name}": does not go with {said}, whose guest has the disk for itself; '
                "allowed: host beside it, and the others in a scenario of their own"
            )
    if len(scenario.disks) > 1:
        yield (
            f"disks = {_listed(scenario.disks)}: does not go with {said}, which passes one disk through; "
            "allowed: disk with one name"
        )


def _disks_for(mode: Mode, scenario: Scenario) -> Iterator[str]:
    md, have = mode.layout.base, len(scenario.disks)
    if isinstance(md, Md) and md.disks > have:
        key = "layout.disks" if mode.layout is md else "layout.on.disks"
        named = f"disks = {_listed(scenario.disks)}" if have > 1 else f'disk = "{scenario.disk}"'
        yield (
            f"mode.{mode.name}.{key} = {md.disks}: does not go with {named}, which names {have}; "
            f"allowed: {md.disks} names and more in disks, or an array over fewer"
        )


def _spans_for(mode: Mode, scenario: Scenario) -> Iterator[str]:
    """A region with fewer chunks than the array has disks lies on some of them alone: no array would be measured."""
    md = mode.layout.base
    if not isinstance(md, Md) or (md.level == 1 and md.legs == 1):
        return
    profile = min(scenario.profiles, key=lambda each: each.span)
    if md.chunk * md.disks > profile.span:
        key = "layout.chunk" if mode.layout is md else "layout.on.chunk"
        size, span = format_size(md.chunk), format_size(profile.span)
        yield (
            f'mode.{mode.name}.{key} = "{size}": does not go with profile.{profile.name}.span = "{span}", which has '
            f"fewer chunks than the array has disks, {md.disks}; allowed: a smaller chunk, or a larger span"
        )


def _workloads_for(name: str, attach: Attach, scenario: Scenario) -> Iterator[str]:
    for index, workload in enumerate(scenario.workloads):
        said = f'workloads[{index}] = "{workload.name}"'
        if attach.read_only and workload.rw not in ("read", "randread"):
            yield (
                f"mode.{name}.attach.read_only = true: does not go with {said}, which writes; "
                "allowed: seqread and randread, or a scenario of its own"
            )
        if workload.bs % (attach.logical_block_size or 512):
            size = format_size(attach.logical_block_size or 512)
            yield (
                f'mode.{name}.attach.logical_block_size = "{size}": does not go with {said}, whose blocks are no '
                f"multiple of it; allowed: multiples of {size}, or smaller logical blocks"
            )


def _listed(names: Collection[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
