"""What an I/O costs the host, as the report shows it: each arm's CPU time by part, cycles, exits, switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from harness.analysis import Estimate, estimate_mean
from harness.report.arms import label_of
from harness.report.cells import ArmName, CellView
from harness.results import Run
from harness.results.io_costs import CPU_PARTS, CYCLE_COSTS, TOTAL, IoCost


@dataclass(frozen=True, slots=True)
class ArmCosts:
    """One arm of a workload at one depth. `mode` is None for the bare host."""

    place: ArmName
    mode: str | None
    figures: Mapping[str, Estimate]
    """The mean over the blocks of each figure that the arm has, in the unit of the cost."""

    @classmethod
    def of(cls, cell: CellView, place: ArmName) -> Self:
        """The arm at this place of a cell."""
        values: dict[str, tuple[float, ...]] = {
            name: getattr(cost, place) for name, cost in cell.record.accounting.items()
        }
        return cls(
            place,
            None if place == "host" else cell.mode,
            {name: estimate_mean(own, confidence=cell.record.confidence) for name, own in values.items() if own},
        )

    @property
    def label(self) -> str:
        return label_of(self.place, self.mode)

    def figure(self, name: str) -> Estimate | None:
        """The mean over the blocks, in the unit of the cost; None if the arm does not have the figure."""
        return self.figures.get(name)

    @property
    def total(self) -> Estimate | None:
        return self.figure(TOTAL)


def arm_costs(cells: Sequence[CellView]) -> tuple[ArmCosts, ...]:
    """The host, then twin and guest of each mode, for cells of one job. Arms that are void or not counted are absent.

    The cells share the host. Its values come from the cell with the most blocks.
    """
    usable = [cell for cell in cells if cell.usable]
    bare = [cell for cell in usable if cell.record.mode_detail.has_bare_host]
    hosts = [ArmCosts.of(cell, "host") for cell in sorted(bare, key=lambda cell: -len(cell.record.rounds))[:1]]
    places: tuple[ArmName, ...] = ("twin", "guest")
    modes = [ArmCosts.of(cell, place) for cell in usable for place in places]
    return tuple(arm for arm in (*hosts, *modes) if arm.total is not None)


def parts_of(arms: Sequence[ArmCosts]) -> tuple[IoCost, ...]:
    """The parts of CPU time that at least one of these arms has."""
    return _present(CPU_PARTS, arms)


def cycles_of(arms: Sequence[ArmCosts]) -> tuple[IoCost, ...]:
    """The figures on cycles that at least one of these arms has; none if the host could not count cycles."""
    return _present(CYCLE_COSTS, arms)


def why_no_cycles(run: Run) -> str:
    """Why the host could not count cycles; empty if it could, or if an old run did not record it."""
    stored = run.provenance.get("cycles")
    return str(stored.get("why", "")) if isinstance(stored, dict) and not stored.get("counted") else ""


def _present(costs: Sequence[IoCost], arms: Sequence[ArmCosts]) -> tuple[IoCost, ...]:
    return tuple(cost for cost in costs if any(arm.figure(cost.name) is not None for arm in arms))
