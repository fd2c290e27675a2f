"""What a plan writes to each disk, and what it leaves out to stay below a limit of the bytes written."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from harness.errors import ConfigError
from harness.features.write_limit.fitting import (
    BUILD_BYTES,
    BUILD_SHARE,
    MaxWrites,
    fitted,
    fitted_together,
    planned_writes,
    slice_rate,
)
from harness.model.base import Md
from harness.model.job import parse_workload
from harness.model.layout import Zvol
from harness.model.mode import Arm, Mode, Place
from harness.scenario.plan import Plan, describe_plan, fio_rate, plan_for
from harness.scenario.scenario import Scenario
from harness.units import parse_endurance
from tests.shipped_scenarios import SCENARIOS

GIB = 1024**3
CONSUMER = parse_endurance("600 TBW")
"""The rated endurance of a consumer NVMe SSD of 1 TB."""


@cache
def plan_of(name: str, profile: str) -> Plan:
    return plan_for(SCENARIOS[name], profile)


def publish(name: str) -> Plan:
    return plan_of(name, "publish")


def within(plan: Plan, size: float) -> Plan:
    """The plan that writes at most so many bytes to each disk."""
    return fitted(plan, dict.fromkeys(plan.disks, int(size)))


def writing_depths(plan: Plan) -> set[int]:
    return {cell.job.iodepth for cell in plan.cells if cell.job.writes}


def reading(plan: Plan) -> set[str]:
    return {cell.id for cell in plan.cells if not cell.job.writes}


# --- the limit of the user ---


@pytest.mark.parametrize(
    ("text", "size", "share"),
    [("2TiB", 2 * 1024**4, None), ("500 GiB", 500 * GIB, None), ("1%", None, 0.01), ("0.5 %", None, 0.005)],
)
def test_a_limit_is_a_size_or_a_share(text: str, size: int | None, share: float | None) -> None:
    assert MaxWrites.parse(text) == MaxWrites(size, share, text)


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "2 TB", "much", "-1GiB"])
def test_a_limit_that_allows_nothing_or_is_ambiguous_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: "):
        MaxWrites.parse(text)


def test_a_share_is_one_of_the_disks_endurance() -> None:
    assert MaxWrites.parse("1%").of_disk("nvme", CONSUMER) == 6 * 10**12
    assert MaxWrites.parse("2TiB").of_disk("nvme", None) == 2 * 1024**4


def test_a_share_of_an_unknown_endurance_names_the_disk_and_the_key() -> None:
    with pytest.raises(ConfigError, match="the rated endurance of disk nvme is not known") as error:
        MaxWrites.parse("1%").of_disk("nvme", None)
    assert 'endurance = "600 TBW"' in str(error.value.hint)


@pytest.mark.parametrize("text", ["600", "600 TB", "0 TBW", "many TBW"])
def test_an_endurance_is_in_terabytes_written(text: str) -> None:
    with pytest.raises(ValueError, match="600 TBW"):
        parse_endurance(text)


# --- what a plan writes ---


def test_a_publishable_run_on_a_consumer_ssd_costs_less_than_one_percent_of_its_endurance() -> None:
    """The arithmetic of docs/running.md: 600 TBW, and `pytest -k nvme_vfio --profile=publish --max-writes=1%`."""
    plan = publish("nvme_vfio")
    rate = 7 * GIB
    filled = 1 * 64 * GIB  # the bare disk, which is also the guest's
    conditioning = 2 * filled + BUILD_SHARE * filled + BUILD_BYTES + 25 * 10 * rate
    measuring = 5 * 2 * 9 * 2 * rate  # rounds, arms, depths, seconds of slices in a round: two jobs that write
    assert planned_writes(plan)["nvme"] == pytest.approx(conditioning + 2 * measuring)
    assert planned_writes(plan)["nvme"] < 0.01 * CONSUMER
    found = within(plan, 0.01 * CONSUMER)
    assert (found.cells, found.left_out, found.conditioning) == (plan.cells, (), "steady")


@pytest.mark.parametrize("name", sorted(SCENARIOS))
@pytest.mark.parametrize("profile", ["smoke", "publish"])
@pytest.mark.parametrize("size", [6e12, 1e12, 1e11])
def test_no_shipped_plan_exceeds_a_limit_and_every_cell_is_measured_or_left_out(
    name: str, profile: str, size: float
) -> None:
    plan = plan_of(name, profile)
    found = within(plan, size)
    assert max(planned_writes(found).values()) <= size
    left_out = [cell for each in found.left_out for cell in each.cells]
    assert sorted(cell.id for cell in (*found.cells, *left_out)) == sorted(cell.id for cell in plan.cells)


def test_a_plan_within_the_limit_leaves_nothing_out() -> None:
    plan = publish("optane")
    found = within(plan, 1e15)
    assert (found.cells, found.left_out, found.conditioning) == (plan.cells, (), "steady")


def test_depths_go_first_then_the_steady_state_then_workloads_that_write_and_reads_stay() -> None:
    plan = publish("optane")
    found = [within(plan, size) for size in (4.5e12, 3.2e12, 1e12, 5e11, 4e11)]
    assert [sorted(writing_depths(each)) for each in found] == [[1, 2, 32, 256], [32], [32], [32], []]
    assert [each.conditioning for each in found] == ["steady", "fill", "fill", "fill", "fill"]
    assert all(reading(each) == reading(plan) for each in found)
    assert [each.what for each in found[3].left_out] == [
        "iodepth 1, 2, 4, 8, 16, 64, 128, 256 of jobs that write",
        "conditioning until steady: the disk is filled once instead",
        "the workloads randwrite-4k",
    ]


def test_a_limit_below_one_fill_leaves_everything_out() -> None:
    found = within(publish("optane"), 1e10)
    assert found.groups == ()
    (left_out,) = found.left_out
    assert "even filling the disk once" in left_out.what
    assert planned_writes(found) == {"optane": 0.0}


def test_a_workload_with_a_depth_of_its_own_is_not_left_out_with_that_depth() -> None:
    plan = publish("stalls")
    found = within(plan, 1.2e12)
    assert {cell.job.name for cell in plan.cells} == {cell.job.name for cell in found.cells}


def test_groups_and_setups_keep_their_names() -> None:
    plan = publish("optane")
    found = within(plan, 6e12)
    assert {group.id for group in found.groups} <= {group.id for group in plan.groups}
    kept = {cell.id for cell in found.cells}
    for group in found.groups:
        (same,) = (each for each in plan.groups if each.id == group.id)
        assert [cell.id for cell in group.cells] == [cell.id for cell in same.cells if cell.id in kept]


def test_a_disk_of_an_array_gets_its_part_of_what_the_array_writes() -> None:
    array = Mode("raid1", Md(1, 2), None)
    scenario = replace(
        SCENARIOS["arrays"], modes=(SCENARIOS["arrays"].modes[0], array), workloads=(parse_workload("randwrite-4k"),)
    )
    plan = plan_for(scenario, "smoke")
    first, second, third, _ = planned_writes(plan).values()
    assert first > second > 0
    assert third == 0


def test_a_job_with_a_rate_of_its_own_writes_what_it_requests() -> None:
    plan = publish("optane")
    paced = parse_workload("randwrite-4k-i1000").job(1, ramp=0, seconds=2)
    assert slice_rate(plan, Arm(Place.HOST), paced) == pytest.approx(1.25 * 1000 * 4096)
    assert slice_rate(plan, Arm(Place.HOST), replace(paced, rate=None)) == plan.write_rate


def test_fio_may_write_less_to_a_layout_that_writes_more_than_it_gets() -> None:
    job = parse_workload("randwrite-4k").job(1, ramp=0, seconds=2)
    assert fio_rate(1000, None, job) == 1000
    assert fio_rate(1000, Zvol(), job) <= 1000 / 4


def two_plans() -> dict[str, Plan]:
    of: Scenario = SCENARIOS["optane"]
    return {name: plan_for(replace(of, name=name), "publish") for name in ("first", "second")}


def test_plans_on_the_same_disk_share_its_limit() -> None:
    found = fitted_together(two_plans(), {"optane": int(12e12)})
    assert sum(planned_writes(plan)["optane"] for plan in found.values()) <= 12e12
    assert [plan.limits for plan in found.values()] == [{"optane": int(6e12)}] * 2


def test_the_plan_announces_no_more_than_its_limit() -> None:
    assert "at most 1 TiB written to optane" in describe_plan(within(publish("optane"), 1024**4))
