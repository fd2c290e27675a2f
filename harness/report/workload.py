"""One workload of a section: its cells by depth and mode, and what its charts show."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from harness.analysis import Estimate
from harness.report.arms import arms_of
from harness.report.budgets import allowed
from harness.results import ArmName, CellRecord

Quantity = Literal["throughput", "latency"]


@dataclass(frozen=True, slots=True)
class ArmSeries:
    """One arm of a workload over the depths, in IO/s, B/s or seconds."""

    place: ArmName
    mode: str | None
    """None for the bare host."""
    points: tuple[tuple[int, Estimate], ...]
    """iodepth and the mean over blocks."""
    doubtful: frozenset[int] = frozenset()
    """Depths at which the guest is faster than its host, which needs an explanation."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """The worst values with which a mode's guest keeps its budget, by depth, in the quantity's unit."""

    mode: str
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Split:
    """The two parts of one mode's overhead at one depth."""

    mode: str
    layer: Estimate | None
    virtualisation: Estimate
    doubt: str
    """`void`, or `faster` than the host, which needs an explanation; else empty."""


@dataclass(frozen=True)
class WorkloadCells:
    """One workload of a section: its cells by depth and mode, and what its charts show."""

    name: str
    random: bool
    cells: tuple[CellRecord, ...]

    @cached_property
    def depths(self) -> tuple[int, ...]:
        return tuple(sorted({cell.iodepth for cell in self.cells}))

    @property
    def rated(self) -> bool:
        return self.cells[0].rated

    @property
    def unit(self) -> str:
        """The unit of the cells' main metric."""
        return self.cells[0].headline_unit

    def series(self, quantity: Quantity) -> tuple[ArmSeries, ...]:
        """The host, then twin and guest of each mode. Arms without a usable value are left out."""
        arms: dict[tuple[ArmName, str | None], dict[int, Estimate]] = {("host", None): {}}
        for depth in self.depths:
            for arm in arms_of(cell for cell in self.cells if cell.iodepth == depth):
                metric = arm.cell.throughput if quantity == "throughput" else arm.cell.latency
                if (mean := arm.cell.mean(metric, arm.source)) is not None:
                    arms.setdefault((arm.place, arm.mode), {})[depth] = mean
        order = {mode: number for number, mode in enumerate(dict.fromkeys(cell.mode for cell in self.cells))}
        ranked = sorted(arms, key=lambda arm: (-1 if arm[1] is None else order[arm[1]], arm[0] == "guest"))
        doubtful = {(cell.mode, cell.iodepth) for cell in self.cells if cell.better_than_host}
        return tuple(
            ArmSeries(
                place,
                mode,
                points=tuple(sorted(arms[place, mode].items())),
                doubtful=frozenset(depth for depth in self.depths if place == "guest" and (mode, depth) in doubtful),
            )
            for place, mode in ranked
        )

    def allowances(self, quantity: Quantity) -> tuple[Allowance, ...]:
        """What the budgets in the metric of this quantity allow, for each mode that has one."""
        by_mode: dict[str, dict[int, float]] = {}
        for cell in self.cells:
            metric, name = cell.throughput, cell.throughput_name
            if quantity == "latency":
                metric, name = cell.latency, cell.latency_name
            host = cell.mean(metric, "host")
            for budget in cell.budget:
                if budget.metric == name and budget.difference is None and host is not None and cell.usable:
                    by_mode.setdefault(cell.mode, {})[cell.iodepth] = allowed(host.point, budget)
        return tuple(Allowance(mode, tuple(sorted(points.items()))) for mode, points in by_mode.items())

    def split(self, iodepth: int) -> tuple[Split, ...]:
        """Storage layer and virtualisation of each mode with a value at this depth, doubtful ones marked."""
        return tuple(
            Split(cell.mode, cell.headline.layer, cell.headline.virtualisation, cell.doubt)
            for cell in self.cells
            if cell.iodepth == iodepth and cell.measured and cell.headline and cell.headline.virtualisation
        )
