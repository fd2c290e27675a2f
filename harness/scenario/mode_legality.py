"""Finds layouts and attach options of one mode that conflict on every hypervisor. Pure.

Each problem names two keys with their values, the reason, and what is allowed. Limits of one version or one host are
found on that host. A mode that a host does not support is skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from harness.model.attach import ATTACH_OPTIONS, LUN, Attach, Attachment
from harness.model.base import Device, Md, RaidLevel
from harness.model.layout import Layout, Qcow2
from harness.model.values import shown_field

FEWEST_DISKS: dict[RaidLevel, int] = {0: 2, 1: 2, 5: 3, 6: 4, 10: 4}
"""The fewest disks of an array. md also accepts two for RAID 10, but that is a mirror."""


def mode_problems(layout: Layout, attach: Attachment, given: Collection[str]) -> Iterator[str]:
    """The conflicts within one mode, with the keys of its table: `attach.aio = "native" (the default) conflicts ...`.

    `given` holds the keys that the file sets. A message marks the value of any other key as the default.
    """
    md = layout.base
    if isinstance(md, Md):
        yield from _array(md, _Option("layout" if layout is md else "layout.on", md, given))
    if isinstance(attach, Attach):
        option = _Option("attach", attach, given)
        yield from _of_options(layout, attach, option)
        if isinstance(layout, Qcow2) and layout.data_file:
            yield from _data_file(layout, attach, option)
    yield from _whole_device(layout, attach)


def vfio_problems(attach: object) -> Iterator[str]:
    """Keys in addition to `device = "vfio"`. Such a device has no options on the host's side."""
    if isinstance(attach, Mapping) and attach.get("device") == "vfio":
        for key in sorted(set(attach) - {"device"}):
            why = "because the guest's own driver does all the work"
            yield _conflict(f"attach.{key}", 'attach.device = "vfio"', why, "device alone, or device disk")


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


def _conflict(one: str, other: str, why: str, allowed: str) -> str:
    return f"{one} conflicts with {other}, {why}; allowed: {allowed}"


def _array(md: Md, option: _Option) -> Iterator[str]:
    per_leg, fewest = md.disks // md.legs, FEWEST_DISKS[md.level]
    if md.disks % md.legs:
        yield _conflict(
            option("disks"), option("legs"), "because each leg has half of the disks", "an even number of disks"
        )
    elif per_leg < fewest and md.legs == 1:
        yield _conflict(option("disks"), option("level"), f"which needs {fewest} disks", f"disks = {fewest} or more")
    elif per_leg < fewest:
        needed = f"an even number of disks, disks = {md.legs * fewest} or more, or legs = 1"
        yield _conflict(
            option("legs"), option("disks"), f"because a leg of RAID {md.level} needs {fewest} disks", needed
        )
    if md.starts and len(md.starts) != md.legs:
        places = "one place" if md.legs == 1 else "two places"
        yield _conflict(
            option("starts"), option("legs"), "because each leg starts at one disk", f"{places}, or no starts"
        )
    elif len(set(md.places)) < len(md.places):
        needed = f"places that are {per_leg} or more apart"
        yield _conflict(option("starts"), option("disks"), f"because each leg needs {per_leg} disks of its own", needed)
    yield from _state(md, option)
    if md.level == 1 and md.legs == 1 and option.is_given("chunk"):
        why = "because all disks of RAID 1 hold the same data"
        yield _conflict(option("chunk"), option("level"), why, "no chunk, or another level")


def _state(md: Md, option: _Option) -> Iterator[str]:
    if md.spares and md.state != "rebuilding":
        why = "because md rebuilds a spare at once" if md.state == "degraded" else "in which a spare moves no data"
        yield _conflict(option("spares"), option("state"), why, 'spares = 0, or state = "rebuilding"')
    if md.is_optimal:
        return
    if md.level == 0:
        allowed = 'level 1, 5, 6 or 10, or state = "optimal"'
        yield _conflict(option("state"), option("level"), "which cannot lose a member", allowed)
    if md.legs == 2:
        allowed = 'legs = 1, or state = "optimal"'
        yield _conflict(option("state"), option("legs"), "because the member of one array is missing", allowed)
    if md.state == "rebuilding" and not md.spares:
        yield _conflict(option("state"), option("spares"), "because a spare is rebuilt", "spares = 1")


def _of_options(layout: Layout, attach: Attach, option: _Option) -> Iterator[str]:
    """What the rows of the option table say."""
    used = attach.used
    for name, row in ATTACH_OPTIONS.items():
        for conflict in row.conflicts:
            if conflict.when(attach):
                allowed = conflict.allowed if isinstance(conflict.allowed, str) else conflict.allowed(attach)
                yield _conflict(option(name), option(conflict.other), conflict.why, allowed)
        if name not in used:
            continue
        if row.buses and attach.bus not in row.buses.names:
            yield _conflict(option(name), option("bus"), row.buses.why, row.buses.allowed)
        if row.needs_layout and layout.kind != row.needs_layout[0]:
            kind, why = row.needs_layout
            yield _conflict(option(name), f'layout.kind = "{layout.kind}"', why, f"kind {kind}")
        if not row.served and attach.server == "storage-daemon":
            why = "which does not have this option"
            yield _conflict(option(name), option("server"), why, f"no {name}, or server qemu")
        if not row.of_lun and attach.device == "lun":
            yield _conflict(option(name), option("device"), f"{LUN} unchanged", f"no {name}, or device disk")


def _data_file(layout: Qcow2, attach: Attach, option: _Option) -> Iterator[str]:
    one = "layout.data_file = true"
    if layout.snapshots:
        why = "because one option of the image is measured at a time"
        yield _conflict(one, f"layout.snapshots = {layout.snapshots}", why, "snapshots = 0")
    if not attach.in_qemu:
        why = "which gets the image only"
        yield _conflict(one, option("server"), why, "server qemu")


def _whole_device(layout: Layout, attach: Attachment) -> Iterator[str]:
    """A disk that is passed through as a whole has no layer of the host."""
    device = f'attach.device = "{attach.device}"'
    if attach.device != "disk" and not isinstance(layout, Device):
        yield _conflict(f'layout.kind = "{layout.kind}"', device, "which passes the whole disk through", "kind device")
