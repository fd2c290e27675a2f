"""The warning that a percentile with a budget cannot be judged: when it comes, and what it proposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.measure.interim_analysis import warn_out_of_reach
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.job import Job
from harness.model.mode import Budget, Cell, Mode
from harness.results import Measurement
from harness.scenario.plan import Plan, group_cells
from tests.build import build_measurement

JOB = Job("randread", 4096, iodepth=1, ramp=0, seconds=1)
P999, P99 = Budget("clat_p999", 0.5), Budget("clat_p99", 0.5)


def cell(job: Job = JOB) -> Cell:
    return Cell("hdd", "hdd", Mode("passthrough", Device(), Attach()), job)


def plan_of(job: Job = JOB, *, rounds: int = 3, reboot: bool = False) -> Plan:
    groups = tuple(group_cells([Cell("hdd", "hdd", Mode("host", Device(), None), job), cell(job)], 300, blocks=2))
    return Plan("hdd", groups, rounds, 64 << 20, 1 << 30, reboot=reboot)


def completed(job: Job = JOB, **ios: int) -> list[Measurement]:
    """Two blocks of each arm, with so many I/Os."""
    arms = {"host": "host", "guest": "guest:passthrough", "other": "guest:other"}
    return [
        build_measurement(
            arms[arm],
            job=job,
            group="hdd-batch1",
            block=block,
            started=1000.0 + block,
            metrics={"iops": float(number)},
            histogram={1000: number},
        )
        for arm, number in ios.items()
        for block in (1, 2)
    ]


def warnings(plan: Plan, budgets: Sequence[Budget], measurements: Sequence[Measurement] = ()) -> list[str]:
    group = plan.groups[0]
    return list(
        warn_out_of_reach(plan, group, {each.id: budgets for each in plan.cells if each.mode.attach}, measurements)
    )


def test_the_measured_rate_says_which_percentile_cannot_be_judged_and_the_remedy() -> None:
    (text,) = warnings(plan_of(rounds=12), [P99, P999], completed(host=260, guest=200))
    assert text.startswith("hdd-batch1: randread-4k-qd1 has a budget for clat_p999 that cannot be judged: ")
    assert "guest:passthrough completes about 200 I/Os in a block" in text
    assert "the 10000 I/Os that it needs take 25 rounds, and the plan has at most 12" in text
    assert "--rounds=25, or --time=2min" in text
    assert text.endswith("set the budget for clat_p99")


def test_the_proposed_rounds_are_enough() -> None:
    few = completed(host=260, guest=200)
    assert warnings(plan_of(rounds=24), [P999], few)
    assert not warnings(plan_of(rounds=25), [P999], few)
    assert not warnings(replace(plan_of(rounds=3), time_limit=2 * 60.0, most_rounds=1000), [P999], few)


def test_without_a_lower_percentile_the_mean_is_proposed() -> None:
    (text,) = warnings(plan_of(rounds=3), [P99], completed(host=3, guest=2))
    assert text.endswith("set the budget for clat_mean")


def test_a_time_that_no_run_takes_is_not_proposed() -> None:
    (text,) = warnings(plan_of(rounds=3), [P999], completed(host=3, guest=2))
    assert "--time" not in text
    assert "use longer slices (runtime)" in text


def test_percentiles_without_a_budget_and_arms_of_other_cells_do_not_matter() -> None:
    assert not warnings(plan_of(), [Budget("iops", 0.1)], completed(host=6, guest=5))
    assert not warnings(plan_of(), [P99], completed(host=1000, guest=1000, other=5))


def test_at_a_fixed_rate_the_warning_needs_no_measurement() -> None:
    slow = replace(JOB, rate=100)
    (text,) = warnings(plan_of(slow), [P99])
    assert "every arm completes about 100 I/Os in a block" in text
    assert not warnings(plan_of(replace(JOB, rate=1000)), [P99])
    assert not warnings(plan_of(), [P99])


def test_boots_are_the_samples_if_each_round_has_one() -> None:
    enough_in_one_boot = completed(host=600, guest=600)
    assert not warnings(plan_of(rounds=2), [P99], enough_in_one_boot)
    assert not warnings(plan_of(rounds=2, reboot=True), [P99], enough_in_one_boot)
    assert warnings(plan_of(rounds=1, reboot=True), [P99], completed(host=6000, guest=6000))
