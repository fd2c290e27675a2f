"""The arms of a job as charts show them: the bare host once, then twin and guest of each mode, each with its look."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.analysis import Estimate
from harness.report.draw import safe
from harness.report.theme import HOST, mode_colours, mode_symbols
from harness.results import ArmName, CellRecord

_DASH = {"host": "solid", "twin": "dash", "guest": "solid"}


@dataclass(frozen=True, slots=True)
class ArmStyle:
    """How an arm looks in every chart. `key` is the name by which the page's legend shows and hides it."""

    name: str
    key: str
    colour: str
    symbol: str
    dash: str


@dataclass(frozen=True, slots=True)
class ArmOfCell:
    """One arm with the cell that has its values."""

    place: ArmName
    mode: str | None
    """None for the bare host."""
    cell: CellRecord
    source: ArmName
    """Where the cell's records have the arm's values. The baseline of several guests is their host, shown as a twin."""

    @property
    def label(self) -> str:
        return label_of(self.place, self.mode)

    @property
    def throughput(self) -> Estimate | None:
        """The mean over its blocks, in IO/s or B/s."""
        return self.cell.mean(self.cell.throughput, self.source)

    def mean(self, name: str) -> Estimate | None:
        """The mean over its blocks of the metric of this name, in its unit; None if it does not have it."""
        return self.cell.mean(self.cell.metrics.get(name), self.source)


def label_of(place: str, mode: str | None) -> str:
    """For example "guest lvm"; "host" for the bare host, whose mode is None."""
    return "host" if mode is None else f"{place} {mode}"


def look_of(modes: Sequence[str], place: str, mode: str | None) -> ArmStyle:
    """The look of an arm among these `modes` of its disk. Its name is escaped."""
    return ArmStyle(
        name="host" if mode is None else f"{place} {safe(mode)}",
        key="host" if mode is None else f"{place}:{mode}",
        colour=HOST if mode is None else mode_colours(modes).get(mode, HOST),
        symbol="circle" if mode is None else mode_symbols(modes).get(mode, "circle"),
        dash=_DASH[place],
    )


def arms_of(cells: Iterable[CellRecord]) -> tuple[ArmOfCell, ...]:
    """The arms of usable cells of one job: the host, then twin and guest of each mode in the order of the cells.

    The cells share the host. Its values come from the cell with the most blocks.
    """
    usable = [cell for cell in cells if cell.usable]
    bare = [cell for cell in usable if cell.mode_detail.has_bare_host]
    arms_of_cell = [ArmOfCell("host", None, cell, "host") for cell in sorted(bare, key=_blocks)[-1:]]
    for cell in usable:
        if cell.is_baseline:
            continue
        if not cell.mode_detail.has_bare_host:
            # The baseline of several guests is fio on their volumes, as a twin.
            arms_of_cell.append(ArmOfCell("twin", cell.mode, cell, "host"))
        arms_of_cell += [ArmOfCell(place, cell.mode, cell, place) for place in ("twin", "guest")]
    return tuple(arms_of_cell)


def _blocks(cell: CellRecord) -> int:
    return len(cell.rounds)
