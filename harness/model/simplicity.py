"""Which attach modes are simple, safe and useful, to choose among modes of equal speed. Declared here only. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from harness.model.attach import Attach, Vfio
from harness.model.base import Md
from harness.model.mode import ModeDetail
from harness.model.values import names_of

_DEFAULT = Attach()


class UserNeed(StrEnum):
    """What the users of a disk may need besides speed."""

    HOST_KEEPS_DISK = "the host keeps the disk, so the guest can be moved and its disk be copied"
    SHARED = "it leaves the rest of the disk to other guests"
    SNAPSHOTS = "it has efficient snapshots"

    def met_by(self, mode: ModeDetail) -> bool:
        if self is UserNeed.HOST_KEEPS_DISK:
            return not isinstance(mode.attach, Vfio)
        if self is UserNeed.SHARED:
            return not mode.layout.is_base and not isinstance(mode.attach, Vfio)
        return mode.layout.has_snapshots


_HOST_MEMORY = "It takes memory of the host, and live migration needs QEMU 4.0 or later, which empties that cache"
_CAUTIONS = {
    "writeback": "cache writeback honours the guest's flushes. A power failure loses only what the guest has not "
    f"flushed, as on a disk with a volatile write cache. {_HOST_MEMORY}",
    "writethrough": f"cache writethrough loses no completed write, but each one waits for the disk. {_HOST_MEMORY}",
}


def unfit(mode: ModeDetail) -> str | None:
    """Why a mode is never recommended, however fast it is; None if it may be."""
    attach, base = mode.attach, mode.layout.base
    if isinstance(base, Md) and not base.is_optimal:
        return "its array lacks a member"
    if not isinstance(attach, Attach):
        return None
    if attach.cache == "unsafe":
        return "cache unsafe ignores the guest's flushes: a power failure damages its file systems"
    if attach.read_only:
        return "the guest cannot write"
    return None


def caution(mode: ModeDetail) -> str | None:
    """What to know about a mode before using it, in sentences without the last point; None if there is nothing."""
    return _CAUTIONS.get(mode.attach.cache) if isinstance(mode.attach, Attach) else None


def preference(mode: ModeDetail, needs: Sequence[UserNeed]) -> tuple[int, ...]:
    """Sorts modes of equal speed for a user with these needs, the most important first; then by `simplicity`."""
    return (*(int(not need.met_by(mode)) for need in needs), *simplicity(mode))


def explain_preference(mode: ModeDetail, other: ModeDetail, needs: Sequence[UserNeed]) -> str:
    """Why a user with these needs takes a mode and not another one of equal speed; empty if there is no reason."""
    for need in needs:
        if need.met_by(mode) != need.met_by(other):
            return str(need) if need.met_by(mode) else ""
    return explain_simpler(mode, other)


def simplicity(mode: ModeDetail) -> tuple[int, int, int]:
    """Sorts modes, the simplest first: VFIO last, then by layers, then by options that differ from the default."""
    return int(isinstance(mode.attach, Vfio)), mode.layout.effort, len(_departures(mode))


def explain_simpler(mode: ModeDetail, other: ModeDetail) -> str:
    """What makes a mode simpler than another, in words; empty if neither is simpler."""
    simple, other_simple = simplicity(mode), simplicity(other)
    if simple >= other_simple:
        return ""
    if simple[0] < other_simple[0]:
        return "the host keeps the disk, so the guest can be moved and its disk be copied"
    if simple[1] < other_simple[1]:
        return f"{mode.layout.words} has fewer layers to look after than {other.layout.words}"
    return f"it keeps the default of {', '.join(_departures(other)[:3])}"


def _departures(mode: ModeDetail) -> list[str]:
    """The options of the attachment that differ from the default."""
    attach = mode.attach
    if not isinstance(attach, Attach):
        return []
    return [name for name in names_of(attach) if getattr(attach, name) != getattr(_DEFAULT, name)]
