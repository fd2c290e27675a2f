"""Notes on cells: a note on a whole mode appears once, a note on a single cell appears next to its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.report.cells import CellView


@dataclass(frozen=True, slots=True)
class ReportNote:
    """A note, and the cells that it is about."""

    text: str
    about: str


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of a disk's cells: `general` is for every cell, or every cell of a mode; `own` is by cell id."""

    general: tuple[ReportNote, ...]
    own: Mapping[str, tuple[str, ...]]


def notes_of(cells: Sequence[CellView]) -> Notes:
    """The notes of these cells: those that all of a mode's cells (two or more) share, and those of single cells."""
    of_modes = Counter(cell.mode for cell in cells)
    holders: dict[str, list[CellView]] = {}
    for cell in cells:
        for text in cell.record.notes:
            holders.setdefault(text, []).append(cell)
    general = {text: about for text, own in holders.items() if (about := _all_of(own, of_modes))}
    return Notes(
        general=tuple(ReportNote(text, about) for text, about in general.items()),
        own={cell.id: tuple(text for text in cell.record.notes if text not in general) for cell in cells},
    )


def _all_of(own: Sequence[CellView], of_modes: Counter[str]) -> str:
    """ "every cell" or "every cell of MODE"; empty if the note is about only some cells or one."""
    if len(own) < 2:
        return ""
    if len(own) == of_modes.total():
        return "every cell"
    mode, *others = {cell.mode for cell in own}
    return f"every cell of {mode}" if not others and len(own) == of_modes[mode] else ""
