"""What a campaign measures: the plans of the selected cells on one host, and the id and command of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.config.names import RunId
from harness.lab.inventory import HostSpec
from harness.model.mode import Budget, Cell, LabKind
from harness.results.assemble import Check, no_check
from harness.results.records import Planned, PlannedGroup
from harness.scenario.legality import budgets_for
from harness.scenario.plan import Plan
from harness.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class CampaignSpec:
    """What a campaign measures. `scenarios` has the scenarios of the plans, by name."""

    run_id: RunId
    host: HostSpec
    plans: tuple[Plan, ...]
    scenarios: Mapping[str, Scenario]
    profile: str
    seed: int
    command: str
    check: Check = no_check
    """What is checked of each cell beside the checks of the harness."""
    max_writes: str | None = None
    """The limit of the bytes written to each disk, as the user wrote it."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """The bytes that the run may write to each disk, by name; empty without a limit."""
    switches: frozenset[str] = frozenset()
    """The flags of features with which the run measures more."""

    @property
    def disks(self) -> frozenset[str]:
        return frozenset(disk for plan in self.plans for disk in plan.disks)

    @property
    def planned(self) -> Planned:
        """What the campaign measures at least, for those who follow the run."""
        groups = [
            PlannedGroup(
                group.id,
                len(group.cells),
                plan.rounds,
                plan.most_rounds,
                plan.rounds * group.round_seconds,
                plan.paces.seconds(plan.group_work(group)),
            )
            for plan in self.plans
            for group in plan.groups
        ]
        fio_seconds = sum(plan.fio_seconds for plan in self.plans)
        return Planned(tuple(groups), fio_seconds, sum(group.seconds for group in groups))

    def budgets(self, cell: Cell, lab_kind: LabKind) -> dict[str, Budget]:
        return budgets_for(self.scenarios[cell.scenario], cell, lab_kind)

    def family(self, lab_kind: LabKind) -> int:
        return sum(len(self.budgets(cell, lab_kind)) for plan in self.plans for cell in plan.cells)
