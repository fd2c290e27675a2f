"""Notes on cells: a note on whole modes appears once, a note on a single cell appears next to its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from harness.results import CellRecord


@dataclass(frozen=True, slots=True)
class ReportNote:
    """A note, and the cells that it is about."""

    text: str
    about: str


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of a disk's cells: `general` is for every cell, or every cell of some modes; `own` is by cell id."""

    general: tuple[ReportNote, ...]
    own: Mapping[str, tuple[str, ...]]


def notes_of(cells: Sequence[CellRecord]) -> Notes:
    """The notes of these cells: those that all measured cells of some modes (two or more) share, and those of a cell.

    Cells without a measurement, for example skipped ones, count only if their mode has no other cells.
    """
    measured = {cell.mode for cell in cells if cell.measured}
    counted = [cell for cell in cells if cell.measured or cell.mode not in measured]
    of_modes = Counter(cell.mode for cell in counted)
    guests = {cell.mode for cell in counted if not cell.is_baseline}
    holders: dict[str, list[str]] = {}
    for cell in counted:
        for text in cell.notes:
            holders.setdefault(text, []).append(cell.mode)
    general = {text: about for text, own in holders.items() if (about := _all_of(own, of_modes, guests))}
    return Notes(
        general=tuple(ReportNote(text, about) for text, about in general.items()),
        own={cell.id: tuple(text for text in cell.notes if text not in general) for cell in cells},
    )


def _all_of(own: Sequence[str], of_modes: Counter[str], guests: Set[str]) -> str:
    """The cells of a note that is in one cell for each of the modes `own`, in words; empty if other cells lack it."""
    modes = dict.fromkeys(own)
    if len(own) < 2 or len(own) != sum(of_modes[mode] for mode in modes):
        return ""
    if modes.keys() == of_modes.keys():
        return "every cell"
    return "every cell of a guest" if modes.keys() == guests else f"every cell of {', '.join(modes)}"
