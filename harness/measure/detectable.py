"""The smallest overhead that each cell of a plan can show, before anything is measured. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.analysis import METRICS, Sequential, smallest_detectable
from harness.measure.noise import KnownNoise, Noise
from harness.model.budget import Budget
from harness.model.cell import Cell
from harness.results import CONFIDENCE
from harness.scenario.legality import budgets_for
from harness.scenario.plan import MOST_ROUNDS, Group, Plan
from harness.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class SmallBudget:
    """A budget that is smaller than the smallest overhead that the cell can show, `share`.

    `seconds` is the time for measuring the scenario in which the cell could show it; None if no time is enough.
    """

    budget: Budget
    share: float
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Detectable:
    """The smallest overhead that a cell can show in its headline metric, as a share, with a probability of 80 %.

    It needs all rounds that the plan allows: `blocks` in each of `boots`. None if the noise is not known, or if there
    is only one sample.
    """

    cell: Cell
    share: float | None
    blocks: int
    boots: int
    source: str
    small_budgets: tuple[SmallBudget, ...] = ()


def detectable(plan: Plan, scenario: Scenario, known: KnownNoise) -> list[Detectable]:
    """The smallest overhead of each cell of the plan that has a guest, in the order of the plan."""
    return [
        _of_cell(plan, group, cell, scenario, known)
        for group in plan.groups
        for cell in group.cells
        if cell.mode.attach
    ]


def _of_cell(plan: Plan, group: Group, cell: Cell, scenario: Scenario, known: KnownNoise) -> Detectable:
    rounds = plan.most_rounds_of(group)
    blocks, boots = _samples(plan, group, rounds)
    noise = known.noise(cell, cell.job.headline)
    if noise is None:
        return Detectable(cell, None, blocks, boots, "")
    share = _share(plan, group, rounds, noise, cell.job.headline)
    budgets = budgets_for(scenario, cell, noise.lab_kind) if noise.lab_kind is not None else {}
    small = tuple(_too_small(plan, group, cell, budgets.values(), known))
    return Detectable(cell, share, blocks, boots, noise.source, small)


def _too_small(
    plan: Plan, group: Group, cell: Cell, budgets: Iterable[Budget], known: KnownNoise
) -> Iterator[SmallBudget]:
    """The budgets whose share the cell cannot show. A budget that an amount of time can also meet does not count."""
    for budget in budgets:
        noise = known.noise(cell, budget.metric)
        limit = budget.share
        if noise is None or limit is None or budget.both == "looser":
            continue
        share = _share(plan, group, plan.most_rounds_of(group), noise, budget.metric)
        if share is not None and share > limit:
            yield SmallBudget(budget, share, _seconds(plan, group, noise, budget.metric, limit))


def _seconds(plan: Plan, group: Group, noise: Noise, metric: str, limit: float) -> float | None:
    """The time for measuring the plan in which the group has enough rounds to show an overhead of `limit`."""

    def shows(rounds: int) -> bool:
        share = _share(plan, group, rounds, noise, metric)
        return share is not None and share <= limit

    numbers = range(plan.rounds, MOST_ROUNDS + 1)
    place = bisect_left(numbers, True, key=shows)
    if place == len(numbers):
        return None
    return plan.seconds_of(numbers[place])


def _share(plan: Plan, group: Group, rounds: int, noise: Noise, metric: str) -> float | None:
    """The smallest overhead that these rounds show. The last look has only the rest of the probability of error."""
    blocks, boots = _samples(plan, group, rounds)
    if blocks * boots < 2:
        return None
    look = Sequential(min(plan.rounds, rounds), rounds, CONFIDENCE).look(rounds, final=True)
    return smallest_detectable(
        noise.sd,
        blocks,
        confidence=look.confidence if look is not None else CONFIDENCE,
        higher_is_better=METRICS[metric].higher_is_better,
        boots=boots,
        sd_of_boots=noise.sd_of_boots,
        correlation=noise.correlation,
    )


def _samples(plan: Plan, group: Group, rounds: int) -> tuple[int, int]:
    """Blocks in each boot, and boots, of this number of rounds."""
    return (group.blocks, rounds) if plan.reboots(group) else (group.blocks * rounds, 1)
