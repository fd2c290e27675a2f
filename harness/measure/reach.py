"""Which percentiles with a budget cannot be judged in the rounds of the plan, because of too few I/Os. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import get_args

from harness.analysis import METRICS, Calls, Metric, fewest_rounds
from harness.model.budget import Budget
from harness.model.cell import Cell, Place
from harness.model.job import Job
from harness.results import Measurement
from harness.results.percentiles import histogram_of
from harness.scenario.plan import MOST_ROUNDS, Group, Plan

_PERCENTILES: Mapping[Calls, Sequence[Metric]] = {
    of: [metric for metric in METRICS.values() if metric.quantile is not None and metric.of == of]
    for of in get_args(Calls)
}
"""From the lowest to the highest."""
_MEANS: Mapping[Calls, str] = {"ios": "clat_mean", "syncs": "sync_mean"}


def out_of_reach(
    plan: Plan, group: Group, budgets: Mapping[str, Iterable[Budget]], measured: Sequence[Measurement]
) -> Iterator[str]:
    """One sentence with the remedy for each job and percentile with a budget that gets fewer than two samples.

    `budgets` are by cell id. The I/Os of a block are those in `measured`, the measurements of the group so far. Without
    any, the job's fixed rate gives them, and jobs at full speed are left out.
    """
    rounds = plan.most_rounds_of(group)
    for (job, own), (of, percentiles) in product(_by_job(group.cells).items(), _PERCENTILES.items()):
        slowest = _slowest(
            job, {arm.id for cell in own for arm in cell.arms if arm.place is not Place.REFERENCE}, measured, of
        )
        if slowest is None:
            continue
        arm, ios = slowest
        needed = {
            metric: fewest_rounds(ios, metric.fewest_ios, group.blocks, reboot=plan.reboots(group))
            for metric in percentiles
        }
        reached = [metric.name for metric, least in needed.items() if least is not None and least <= rounds]
        judged = {rule.metric for cell in own for rule in budgets.get(cell.id, ())}
        for metric, least in needed.items():
            if metric.name in judged and metric.name not in reached:
                yield (
                    f"{group.id}: {job.id} has a budget for {metric.name} that cannot be judged: {arm} completes about "
                    f"{ios:.0f} I/Os in a block, so two samples of {metric.fewest_ios} I/Os take "
                    f"{least or 'too many'} rounds, and the plan has at most {rounds}; "
                    f"{_remedy(plan, least)}, or set the budget for {reached[-1] if reached else _MEANS[of]}"
                )


def _by_job(cells: Iterable[Cell]) -> dict[Job, list[Cell]]:
    found: dict[Job, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.job, []).append(cell)
    return found


def _slowest(job: Job, arms: set[str], measured: Sequence[Measurement], of: Calls) -> tuple[str, float] | None:
    """The arm of the job that completes the fewest I/Os in a block, and their mean number; None if it is not known."""
    counted: dict[str, list[int]] = {}
    for each in measured:
        if each.job == job.id and each.arm in arms:
            counted.setdefault(each.arm, []).append(sum(histogram_of(each, of).values()))
    if counted:
        return min(((arm, fmean(ios)) for arm, ios in counted.items()), key=lambda each: each[1])
    return None if job.rate is None or of != "ios" else ("every arm", job.rate * job.seconds)


def _remedy(plan: Plan, rounds: int | None) -> str:
    if rounds is None or rounds > MOST_ROUNDS:
        return "use longer slices (runtime)"
    minutes = math.ceil(plan.seconds_of(rounds) / 60)
    return f"measure {rounds} rounds (--rounds={rounds}, or --time={minutes}min)"
