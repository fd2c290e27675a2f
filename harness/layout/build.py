"""Builds all layouts of a disk side by side, each on its region, and takes them down again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from harness.errors import Unsupported
from harness.lab.facts import HostFacts
from harness.lab.guard import require_writable
from harness.lab.inventory import DiskSpec
from harness.lab.transport.base import Runner
from harness.layout import lvm, raw_file
from harness.layout.device import block_device
from harness.layout.regions import partitioned, span_for
from harness.layout.source import BlockSource
from harness.scenario.layouts import Device, Layout, Lvm, RawFile
from harness.scenario.model import Mode


@dataclass(frozen=True, slots=True)
class Layouts:
    """The built layouts of one disk: where each mode's data is, all spans equal. `span` in bytes."""

    device: BlockSource
    by_mode: Mapping[str, BlockSource]
    span: int

    def source(self, mode: Mode | None) -> BlockSource:
        """What an arm of this mode works on; the bare device for the host and for modes without a layer."""
        return self.device if mode is None else self.by_mode[mode.name]


def missing_prerequisite(layout: Layout, facts: HostFacts) -> str | None:
    """Why this layout cannot be built on the host, with the remedy; None where it can. Pure."""
    if isinstance(layout, Lvm):
        if not facts.has_tool("lvm"):
            return "LVM is not installed there: apt-get install lvm2"
        if not facts.has_device_mapper:
            return "its kernel has no device-mapper, which LVM needs: load dm_mod, or measure on another host"
    if isinstance(layout, RawFile) and not facts.has_tool(f"mkfs.{layout.filesystem}"):
        return f"mkfs.{layout.filesystem} is not installed there: apt-get install e2fsprogs"
    return None


@contextmanager
def built(
    runner: Runner, facts: HostFacts, disk: DiskSpec, modes: Sequence[Mode], *, span: int, run_id: str
) -> Iterator[Layouts]:
    """The layouts of `modes` on `disk`, each `span` bytes or what fits; everything is removed at the end.

    The guard is asked immediately before the first write. Raises SafetyError, Unsupported or HostError.
    """
    for tool in ("sfdisk", "wipefs"):
        if not facts.has_tool(tool):
            raise Unsupported(f"{runner.name}: {tool} is not installed", hint="apt-get install fdisk util-linux")
    volumes = [mode.name for mode in modes if isinstance(mode.layout, Lvm)]
    files = [mode.name for mode in modes if isinstance(mode.layout, RawFile)]
    with ExitStack() as stack:
        device = stack.enter_context(block_device(runner, disk))
        seen = require_writable(runner, disk, device)
        fixed = (lvm.OVERHEAD if volumes else 0) + (raw_file.FIXED_OVERHEAD if files else 0)
        file_share = len(files) * (1 + raw_file.SHARE_OVERHEAD)
        span = span_for(seen.size_bytes, fixed=fixed, shares=1 + len(volumes) + file_share, wanted=span)
        sizes = [("device", span)]
        if volumes:
            sizes.append(("lvm", span * len(volumes) + lvm.OVERHEAD))
        if files:
            sizes.append(("ext4", int(span * file_share) + raw_file.FIXED_OVERHEAD))
        parts = stack.enter_context(partitioned(runner, device, run_id, sizes))
        bare = BlockSource(device, "block", parts["device"].offset, span)
        sources = {mode.name: bare for mode in modes if isinstance(mode.layout, Device)}
        if volumes:
            sources |= stack.enter_context(lvm.volumes(runner, parts["lvm"].device, run_id, volumes, span))
        if files:
            sources |= stack.enter_context(raw_file.raw_files(runner, parts["ext4"].device, run_id, files, span))
        yield Layouts(bare, sources, span)
