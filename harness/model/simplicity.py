"""Which attach modes are simple and safe, to choose among modes of equal speed. Declared here only. Pure."""

from __future__ import annotations

from harness.model.attach import Attach, Vfio
from harness.model.base import Md
from harness.model.mode import ModeDetail
from harness.model.values import names_of

SIMPLEST_FIRST = ("device", "partition", "md", "lvm", "raw", "lvm-thin", "zvol", "zfs", "qcow2")
"""Kinds of layout: fewer layers between guest and disk are simpler. Thin pools, copy on write and qcow2's tables need
space to be watched and metadata to be repaired."""
_DEFAULT = Attach()


def unfit(mode: ModeDetail) -> str | None:
    """Why a mode is never recommended, however fast it is; None if it may be."""
    attach, base = mode.attach, mode.layout.base
    if isinstance(base, Md) and not base.is_optimal:
        return "its array lacks a member"
    if not isinstance(attach, Attach):
        return None
    if attach.cache == "unsafe":
        return "cache unsafe ignores the guest's flushes: a power failure damages its file systems"
    if attach.cache == "writeback":
        return "cache writeback keeps completed writes in the host's memory: a power failure loses them"
    if attach.read_only:
        return "the guest cannot write"
    return None


def simplicity(mode: ModeDetail) -> tuple[int, int, int]:
    """Sorts modes, the simplest first: VFIO last, then by layers, then by options that differ from the default."""
    kind = mode.layout.kind
    layers = SIMPLEST_FIRST.index(kind) if kind in SIMPLEST_FIRST else len(SIMPLEST_FIRST)
    return int(isinstance(mode.attach, Vfio)), layers, len(_departures(mode))


def why_simpler(mode: ModeDetail, other: ModeDetail) -> str:
    """What makes a mode simpler than another, in words; empty if neither is simpler."""
    own, its = simplicity(mode), simplicity(other)
    if own >= its:
        return ""
    if own[0] < its[0]:
        return "the host keeps the disk, so the guest can be moved and its disk be copied"
    if own[1] < its[1]:
        return f"{mode.layout.words} has fewer layers to look after than {other.layout.words}"
    return f"it keeps the default of {', '.join(_departures(other)[:3])}"


def _departures(mode: ModeDetail) -> list[str]:
    """The options of the attachment that differ from the default."""
    attach = mode.attach
    if not isinstance(attach, Attach):
        return []
    return [name for name in names_of(attach) if getattr(attach, name) != getattr(_DEFAULT, name)]
