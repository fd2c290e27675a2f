"""The plan: cells and ids, groups of any selection, what they cost, and the order of a round."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.scenario.library import PRESETS, PROFILES
from harness.scenario.load import load_scenario
from harness.scenario.model import Cell, Scenario, Workload
from harness.scenario.plan import (
    FIO_SHARE,
    STARTUP_SECONDS,
    Group,
    expand,
    group_cells,
    job_order,
    plan_for,
    round_order,
)

SCENARIOS = Path(__file__).parents[2] / "scenarios"
GIB = 1024**3

OPTANE = Scenario(
    name="optane",
    title="An Optane",
    disk="nvme0",
    modes=PRESETS,
    workloads=(
        Workload("read", 256 * 1024),
        Workload("write", 256 * 1024),
        Workload("randread", 4096),
        Workload("randwrite", 4096),
    ),
    write_rate=2 * GIB,
    # What is tested here does not change with what the library finds good for a smoke run.
    profiles=(replace(PROFILES[0], runtime=1, iodepth=(1, 32)), *PROFILES[1:]),
)


def selected(*ids: str) -> list[Cell]:
    """The smoke cells whose id contains one of `ids`, as `pytest -k "a or b"` selects them."""
    return [cell for cell in expand(OPTANE, "smoke") if any(part in cell.id for part in ids)]


def one_group(cells: list[Cell]) -> Group:
    (group,) = group_cells(cells, max_round_seconds=3600)
    return group


def arm_ids(group: Group) -> list[str]:
    return [arm.id for arm in group.arms]


# --------------------------------------------------------------------------------------------- cells


@pytest.mark.parametrize("name", ["hdd", "optane", "sata_ssd"])
@pytest.mark.parametrize(("profile", "count"), [("smoke", 20), ("standard", 180), ("publish", 180)])
def test_a_shipped_scenario_has_modes_x_workloads_x_depths_cells_with_unique_ids(
    name: str, profile: str, count: int
) -> None:
    ids = [cell.id for cell in expand(load_scenario(SCENARIOS / f"{name}.toml"), profile)]
    assert len(ids) == len(set(ids)) == count


def test_ids_say_scenario_mode_and_job() -> None:
    ids = [cell.id for cell in expand(OPTANE, "smoke")]
    assert "optane-lvm-randread-4k-qd32" in ids
    assert ids[:6] == [
        "optane-host-seqread-256k-qd1",
        "optane-passthrough-seqread-256k-qd1",
        "optane-lvm-seqread-256k-qd1",
        "optane-raw-seqread-256k-qd1",
        "optane-raw-cached-seqread-256k-qd1",
        "optane-host-seqread-256k-qd32",
    ]


def test_the_hdd_is_smoked_at_shallow_depths() -> None:
    cells = expand(load_scenario(SCENARIOS / "hdd.toml"), "smoke")
    assert {cell.job.iodepth for cell in cells} == {8}


def test_a_cell_can_be_selected_by_its_facets() -> None:
    (cell,) = selected("raw-cached-randread-4k-qd32")
    assert cell.facets == {
        "scenario": "optane",
        "disk": "nvme0",
        "mode": "raw-cached",
        "pattern": "randread",
        "bs": "4k",
        "iodepth": 32,
        "numjobs": 1,
    }


def test_the_profile_sets_the_times_of_every_job() -> None:
    assert {(cell.job.ramp, cell.job.seconds) for cell in expand(OPTANE, "publish")} == {(5, 60)}


def test_an_unknown_profile_is_told_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r'"smok": no such profile; allowed: smoke, standard, publish \(did you'):
        expand(OPTANE, "smok")


# -------------------------------------------------------------------------------------------- groups


def test_the_whole_smoke_matrix_is_one_group_with_the_host_first() -> None:
    assert arm_ids(one_group(expand(OPTANE, "smoke"))) == [
        "host",
        "guest:passthrough",
        "twin:lvm",
        "guest:lvm",
        "twin:raw",
        "guest:raw",
        "twin:raw-cached",
        "guest:raw-cached",
    ]


def test_an_arm_runs_the_jobs_that_were_selected_for_its_mode_and_the_host_runs_all() -> None:
    group = one_group(selected("lvm-randread-4k-qd1", "raw-randwrite-4k-qd32"))
    jobs = {arm.id: [job.id for job in group.jobs_of(arm)] for arm in group.arms}
    assert jobs == {
        "host": ["randread-4k-qd1", "randwrite-4k-qd32"],
        "twin:lvm": ["randread-4k-qd1"],
        "guest:lvm": ["randread-4k-qd1"],
        "twin:raw": ["randwrite-4k-qd32"],
        "guest:raw": ["randwrite-4k-qd32"],
    }
    assert group.round_seconds == 6


def test_the_host_alone_can_be_measured() -> None:
    group = one_group(selected("host-randread"))
    assert arm_ids(group) == ["host"]
    assert group.round_seconds == 2


def test_a_batch_keeps_a_round_under_the_limit_for_any_selection() -> None:
    rng = random.Random(3)
    cells = expand(OPTANE, "standard")
    for _ in range(200):
        chosen = [cell for cell in cells if rng.random() < rng.choice((0.05, 0.5, 0.95))]
        limit = rng.uniform(50, 900)
        groups = group_cells(chosen, limit)
        assert all(group.round_seconds <= limit or len(group.jobs) == 1 for group in groups)
        assert [cell for group in groups for cell in group.cells] == chosen
        assert len({group.id for group in groups}) == len(groups)


def test_a_batch_takes_as_many_jobs_as_fit() -> None:
    groups = group_cells(expand(OPTANE, "standard"), max_round_seconds=600)
    assert [len(group.jobs) for group in groups] == [6] * 6
    assert [group.round_seconds for group in groups] == [576] * 6
    assert [group.id for group in groups][:2] == ["optane-batch1", "optane-batch2"]


def test_cells_of_a_job_stay_in_one_group() -> None:
    for group in group_cells(expand(OPTANE, "standard"), max_round_seconds=1):
        assert len(group.jobs) == 1
        assert len(group.cells) == len(PRESETS)


def test_scenarios_are_never_mixed_in_a_group() -> None:
    hdd = load_scenario(SCENARIOS / "hdd.toml")
    groups = group_cells([*expand(OPTANE, "smoke"), *expand(hdd, "smoke")], max_round_seconds=3600)
    assert [(group.scenario, group.disk) for group in groups] == [("optane", "nvme0"), ("hdd", "hdd")]


# ---------------------------------------------------------------------------------------------- cost


def test_the_plan_says_what_it_costs() -> None:
    plan = plan_for(OPTANE, "smoke")
    assert plan.fio_seconds == 3 * 8 * 8
    assert plan.fill_bytes(plan.span) == 4 * plan.span  # the device, lvm, raw and raw-cached
    assert plan.write_bytes == plan.fill_bytes(plan.span) + 3 * 8 * 4 * 2 * GIB
    assert plan.minutes * 60 == pytest.approx(192 / FIO_SHARE + STARTUP_SECONDS, abs=1)
    assert plan.describe() == ("40 cells in 1 group, 8 arms, 3 rounds: about 4 min, at most 192.2 GiB written to nvme0")


def test_a_selection_costs_only_what_it_needs() -> None:
    plan = plan_for(OPTANE, "smoke", selected("lvm-randread-4k-qd1"))
    assert plan.describe() == "1 cell in 1 group, 3 arms, 3 rounds: about 1 min, at most 128 MiB written to nvme0"


def test_nothing_selected_costs_nothing() -> None:
    plan = plan_for(OPTANE, "smoke", [])
    assert (plan.groups, plan.minutes, plan.write_bytes) == ((), 0, 0)


# --------------------------------------------------------------------------------------------- order


def test_the_order_of_a_round_is_reproducible() -> None:
    first, again = (one_group(expand(OPTANE, "smoke")) for _ in range(2))
    for round_number in range(20):
        assert round_order(first, 7, round_number) == round_order(again, 7, round_number)
        assert job_order(first, 7, round_number) == job_order(again, 7, round_number)


def test_the_recorded_order_of_a_known_seed_never_changes() -> None:
    group = one_group(selected("lvm-randread-4k-qd1", "lvm-seqread"))
    assert [arm.id for arm in round_order(group, 1, 1)] == ["host", "guest:lvm", "twin:lvm"]
    assert [job.id for job in job_order(group, 1, 1)] == ["seqread-256k-qd1", "seqread-256k-qd32", "randread-4k-qd1"]


def test_a_round_has_every_arm_and_every_job_once() -> None:
    group = one_group(expand(OPTANE, "smoke"))
    for round_number in range(20):
        arms, jobs = round_order(group, 7, round_number), job_order(group, 7, round_number)
        assert len(arms) == len(group.arms)
        assert set(arms) == set(group.arms)
        assert len(jobs) == len(group.jobs)
        assert set(jobs) == set(group.jobs)


def test_the_order_changes_with_round_seed_and_group() -> None:
    batches = group_cells(expand(OPTANE, "standard"), max_round_seconds=600)
    orders = {
        tuple(arm.id for arm in round_order(group, seed, round_number))
        for group in batches
        for seed in range(4)
        for round_number in range(5)
    }
    assert len(orders) > 110  # of 120; 8! orders make a collision rare


def test_no_arm_has_a_favoured_place() -> None:
    group = one_group(expand(OPTANE, "smoke"))
    rounds = 4000
    firsts = [round_order(group, 1, number)[0].id for number in range(rounds)]
    for arm in group.arms:
        assert firsts.count(arm.id) / rounds == pytest.approx(1 / 8, abs=0.025)
