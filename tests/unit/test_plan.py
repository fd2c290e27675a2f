"""The plan: cells and ids, groups of any selection, what they cost, and the order of a round."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.model.attach import Attach
from harness.model.base import Md
from harness.model.job import Job, Workload, parse_workload
from harness.model.layout import Layout, Lvm
from harness.model.mode import Arm, Cell, Mode, Place
from harness.model.profile import PROFILES, Conditioning
from harness.scenario.library import PRESETS
from harness.scenario.load import load_scenario
from harness.scenario.order import ALONE_SECONDS, fio_processes, job_order, round_order
from harness.scenario.plan import (
    FIO_SHARE,
    STARTUP_SECONDS,
    Group,
    Plan,
    expand,
    group_cells,
    plan_for,
)
from harness.scenario.scenario import Scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
GIB = 1024**3
HOST = Arm(Place.HOST)

OPTANE = Scenario(
    name="optane",
    title="An Optane",
    disk="nvme0",
    modes=PRESETS[:5],
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


def bracketed(cells: list[Cell]) -> Group:
    (group,) = group_cells(cells, max_round_seconds=3600, bracket=True)
    return group


def small_plan(*, time_limit: float | None = None, conditioning: Conditioning = "fill") -> Plan:
    """One group of LVM and RAW at random reads and writes; 3 to 12 rounds of 2 jobs of 10 s on 5 arms."""
    profile = replace(PROFILES[0], runtime=10, iodepth=(32,), most_rounds=12)
    scenario = replace(OPTANE, profiles=(replace(profile, time_limit=time_limit, conditioning=conditioning),))
    cells = [cell for cell in expand(scenario, "smoke") if cell.mode.name in ("lvm", "raw") and cell.job.bs == 4096]
    return plan_for(scenario, "smoke", cells)


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


def test_an_unknown_profile_is_reported_with_the_known_ones() -> None:
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


def test_a_bracketed_round_keeps_the_limit_with_the_host_in_it_twice() -> None:
    rng = random.Random(4)
    cells = expand(OPTANE, "standard")
    for _ in range(100):
        chosen = [cell for cell in cells if rng.random() < rng.choice((0.05, 0.5, 0.95))]
        groups = group_cells(chosen, 300, bracket=True)
        assert all(group.round_seconds <= 300 or len(group.jobs) == 1 for group in groups)


def test_a_bracket_costs_one_more_run_of_the_host() -> None:
    cells = selected("lvm-randread-4k-qd1", "lvm-randwrite-4k-qd1")
    assert (one_group(cells).round_seconds, bracketed(cells).round_seconds) == (6, 8)
    assert (one_group(cells).writing_seconds, bracketed(cells).writing_seconds) == (3, 4)


def test_cells_of_a_job_stay_in_one_group() -> None:
    for group in group_cells(expand(OPTANE, "standard"), max_round_seconds=1):
        assert len(group.jobs) == 1
        assert len(group.cells) == len(OPTANE.modes)


def test_scenarios_are_never_mixed_in_a_group() -> None:
    hdd = load_scenario(SCENARIOS / "hdd.toml")
    groups = group_cells([*expand(OPTANE, "smoke"), *expand(hdd, "smoke")], max_round_seconds=3600)
    assert [(group.scenario, group.disk) for group in groups] == [("optane", "nvme0"), ("hdd", "hdd")]


# ------------------------------------------------------------------------------------------ setups


def volumes(count: int, *, layout: Layout | None = None, disks: tuple[str, ...] = ()) -> Scenario:
    """The host and so many modes with a layer of their own, random reads and writes at two depths."""
    modes = [Mode(f"layer-{number}", layout or Lvm(), Attach()) for number in range(1, count + 1)]
    return replace(OPTANE, modes=(PRESETS[0], *modes), workloads=OPTANE.workloads[2:], disks=disks or ("nvme0",))


def test_modes_that_do_not_fit_together_are_measured_in_setups_one_after_the_other() -> None:
    plan = plan_for(volumes(19), "smoke")
    assert [len(setup.modes) for setup in plan.setups] == [9, 8, 3]
    assert [group.id for group in plan.groups] == ["optane-batch1", "optane-batch2", "optane-batch3"]
    assert [plan.setup_of(group).number for group in plan.groups] == [1, 2, 3]


def test_each_setup_has_the_host_so_that_every_cell_has_its_paired_baseline() -> None:
    for setup in plan_for(volumes(19), "smoke").setups:
        for group in setup.groups:
            assert arm_ids(group)[0] == "host"
            assert group.jobs_of(group.arms[0]) == group.jobs


def test_the_cells_come_in_the_order_in_which_they_are_measured() -> None:
    scenario = volumes(19)
    for profile in ("smoke", "standard"):
        assert [cell for group in plan_for(scenario, profile).groups for cell in group.cells] == expand(
            scenario, profile
        )


def test_the_groups_of_a_setup_follow_each_other() -> None:
    plan = plan_for(volumes(19), "standard")
    assert len(plan.groups) > 3
    numbers = [group.setup for group in plan.groups]
    assert numbers == sorted(numbers)
    assert [setup.groups for setup in plan.setups] == [
        tuple(group for group in plan.groups if group.setup == number) for number in (1, 2, 3)
    ]
    assert all(len(setup.jobs) == 18 for setup in plan.setups)


def test_a_selection_that_fits_together_is_one_setup() -> None:
    scenario = volumes(19)
    chosen = [cell for cell in expand(scenario, "smoke") if cell.mode.name in ("layer-1", "layer-9", "layer-19")]
    (setup,) = plan_for(scenario, "smoke", chosen).setups
    assert [mode.name for mode in setup.modes] == ["layer-1", "layer-9", "layer-19"]


def test_each_setup_is_built_filled_and_started_anew() -> None:
    plan = plan_for(volumes(19), "smoke")
    assert plan.fill_bytes(1000) == 1000 * (3 + 19)  # the bare device in each setup, and the volumes
    seconds = plan.fio_seconds / FIO_SHARE + 3 * STARTUP_SECONDS
    assert plan.minutes * 60 == pytest.approx(seconds, abs=1)
    assert plan.describe().startswith("80 cells in 3 groups and 3 setups, 39 arms, 3 rounds: ")


def test_a_setup_takes_as_many_disks_as_its_arrays_have() -> None:
    modes = (PRESETS[0], Mode("mirror", Lvm(Md(1, 2)), Attach()), Mode("stripe", Md(0, 3), Attach()))
    scenario = replace(OPTANE, modes=modes, disk="ssd1", disks=("ssd1", "ssd2", "ssd3", "ssd4"))
    plan = plan_for(scenario, "smoke")
    assert plan.disks == scenario.disks
    assert [setup.disks for setup in plan.setups] == [("ssd1", "ssd2", "ssd3")]
    assert plan.describe().endswith("written to ssd1, ssd2, ssd3")
    mirror = plan_for(scenario, "smoke", [cell for cell in expand(scenario, "smoke") if cell.mode.name != "stripe"])
    assert [setup.disks for setup in mirror.setups] == [("ssd1", "ssd2")]


@pytest.mark.parametrize(
    ("md", "written"),
    [
        (Md(0, 4), 1),
        (Md(1, 2), 2),
        (Md(1, 3), 3),
        (Md(5, 4), 4 / 3),
        (Md(6, 6), 6 / 4),
        (Md(10, 4), 2),
        (Md(5, 6, legs=2), 3 / 2),
        (Md(1, 4, legs=2), 2),
    ],
)
def test_what_is_written_to_an_array_counts_with_mirrors_and_parity(md: Md, written: float) -> None:
    disks = tuple(f"ssd{number}" for number in range(md.disks))
    plan = plan_for(volumes(1, layout=md, disks=disks), "smoke")
    assert plan.fill_bytes(3000) == pytest.approx(3000 * (1 + written))
    # Two depths of writes, each on the host's disk, and on all disks by the twin and by the guest.
    assert plan.groups[0].writing_seconds == 2 * (1 + 2 * md.disks)


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
    for profile in ("smoke", "standard"):
        plan = plan_for(OPTANE, profile, [])
        assert (plan.groups, plan.minutes, plan.most_minutes, plan.write_bytes) == ((), 0, 0, 0)


def test_a_plan_with_more_rounds_where_they_are_needed_says_the_least_and_the_most() -> None:
    plan = small_plan()
    assert (plan.rounds, plan.most_rounds) == (3, 12)
    assert plan.fio_seconds == 3 * 100
    assert plan.minutes * 60 == pytest.approx(3 * 100 / FIO_SHARE + STARTUP_SECONDS, abs=1)
    assert plan.most_minutes * 60 == pytest.approx(12 * 100 / FIO_SHARE + STARTUP_SECONDS, abs=1)
    assert plan.write_bytes == plan.fill_bytes(plan.span) + 12 * 5 * 10 * 2 * GIB
    assert plan.describe() == (
        "4 cells in 1 group, 5 arms, 3 to 12 rounds: about 6 min, at most 24 min, at most 1.172 TiB written to nvme0"
    )


@pytest.mark.parametrize(("minutes", "rounds"), [(None, 12), (60, 12), (10, 5), (1, 3)])
def test_the_time_limit_bounds_the_rounds_but_not_the_fewest(minutes: float | None, rounds: int) -> None:
    plan = small_plan(time_limit=minutes and minutes * 60)
    assert [plan.most_rounds_of(group) for group in plan.groups] == [rounds]
    assert plan.most_minutes * 60 == pytest.approx(rounds * 100 / FIO_SHARE + STARTUP_SECONDS, abs=1)


def test_a_steady_state_costs_two_fills_and_5_to_25_rounds_of_the_jobs_on_the_device() -> None:
    fill, steady = small_plan(), small_plan(conditioning="steady")
    assert steady.fill_bytes(1000) == 2 * fill.fill_bytes(1000) == 2 * 3 * 1000
    assert (steady.minutes - fill.minutes) * 60 == pytest.approx(5 * 20 / FIO_SHARE, abs=1)
    assert (steady.most_minutes - fill.most_minutes) * 60 == pytest.approx(25 * 20 / FIO_SHARE, abs=1)
    one_more_fill = fill.fill_bytes(fill.span)
    assert steady.write_bytes - fill.write_bytes == one_more_fill + 25 * 10 * 2 * GIB


def test_the_groups_of_a_disk_share_its_filled_regions() -> None:
    plan = plan_for(OPTANE, "standard")
    assert len(plan.groups) == 8
    assert plan.fill_bytes(plan.span) == 2 * 4 * plan.span


def test_a_plan_carries_what_its_profile_says_of_rounds_and_conditioning() -> None:
    plan = plan_for(OPTANE, "standard")
    assert (plan.rounds, plan.most_rounds, plan.target, plan.time_limit) == (3, 12, 0.05, 90 * 60)
    assert (plan.conditioning, plan.bracket) == ("steady", True)
    assert all(group.bracket for group in plan.groups)


def test_a_fixed_number_of_rounds_can_be_requested() -> None:
    for number in (1, 7, 30):
        plan = plan_for(OPTANE, "standard").with_rounds(number)
        assert (plan.rounds, plan.most_rounds) == (number, number)
        assert {plan.most_rounds_of(group) for group in plan.groups} == {number}


def test_the_most_rounds_are_never_below_the_fewest() -> None:
    plan = plan_for(OPTANE, "smoke")
    assert replace(plan, rounds=5).most_rounds == 5
    assert Plan("nvme0", plan.groups, 3, plan.span, plan.write_rate).most_rounds == 3


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


def test_a_bracketed_round_begins_and_ends_with_the_host() -> None:
    group = bracketed(expand(OPTANE, "smoke"))
    between = set()
    for round_number in range(20):
        first, *others, last = [arm.id for arm in round_order(group, 7, round_number)]
        assert first == last == "host"
        assert sorted(others) == sorted(arm_ids(group)[1:])
        between.add(tuple(others))
    assert len(between) == 20


def test_the_host_alone_is_not_bracketed_by_itself() -> None:
    assert [arm.id for arm in round_order(bracketed(selected("host-randread")), 7, 1)] == ["host"]


def test_the_order_changes_with_round_seed_and_group() -> None:
    groups = group_cells(expand(OPTANE, "standard"), max_round_seconds=600)
    orders = {
        tuple(arm.id for arm in round_order(group, seed, round_number))
        for group in groups
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


# ------------------------------------------------------------------------------------- fio processes


def job(name: str, iodepth: int = 1) -> Job:
    return parse_workload(name).job(iodepth, ramp=0, seconds=1)


def test_a_reader_and_a_writer_share_a_process_that_reads_first() -> None:
    read, write = job("randread-4k"), job("seqwrite-256k")
    assert fio_processes([read, write], HOST) == [(read, write)]
    assert fio_processes([write, read], HOST) == [(read, write)]


def test_jobs_of_one_direction_each_have_a_process() -> None:
    reads = [job("randread-4k", depth) for depth in (8, 1, 32)]
    assert fio_processes(reads, HOST) == [(read,) for read in reads]


def test_a_mixed_job_has_its_own_process() -> None:
    read, mixed, write = job("seqread-256k"), job("randrw-8k-r70"), job("randwrite-4k")
    assert fio_processes([mixed, read, write], HOST) == [(mixed,), (read, write)]
    assert fio_processes([read, mixed, write], HOST) == [(read, write), (mixed,)]


def test_a_job_whose_cpu_time_is_reported_has_its_own_process() -> None:
    read, write = job("seqread-256k"), job("randwrite-4k")
    rated, long = job("randread-4k-i1000"), replace(job("seqwrite-256k"), ramp=2, seconds=ALONE_SECONDS - 2)
    assert fio_processes([read, rated, write], HOST) == [(read, write), (rated,)]
    assert fio_processes([long, read, write], HOST) == [(long,), (read, write)]


def test_on_an_array_every_job_has_a_process_of_its_own() -> None:
    read, write = job("randread-4k"), job("randwrite-4k")
    on_array = Mode("raid5-lvm", Lvm(Md(5, 4)), Attach())
    assert fio_processes([read, write], Arm(Place.TWIN, on_array)) == [(read,), (write,)]
    assert fio_processes([read, write], Arm(Place.TWIN, Mode("lvm", Lvm(), Attach()))) == [(read, write)]


def test_a_jobs_name_ends_with_what_the_workload_sets() -> None:
    assert job("randrw-8k-nj4-r67-i1000", 8).id == "randrw-8k-qd8-nj4-r67-i1000"
    assert job("randrw-8k-nj4-r67-i1000", 8).workload.name == "randrw-8k-nj4-r67-i1000"


def test_the_headline_of_a_job_at_a_fixed_rate_is_its_latency() -> None:
    assert [job(name).headline for name in ("randread-4k", "seqread-1m", "seqread-1m-i100")] == [
        "iops",
        "bw",
        "clat_mean",
    ]


def test_no_jobs_need_no_process() -> None:
    assert fio_processes([], HOST) == []


def test_the_fewest_processes_hold_every_job_once_with_one_of_each_direction_in_order() -> None:
    rng = random.Random(5)
    names = ("randread-4k", "seqread-256k", "randwrite-4k", "seqwrite-256k", "randrw-8k-r70", "seqrw-64k-r50")
    everything = [job(name, depth) for name in names for depth in (1, 8, 32)]
    for _ in range(500):
        jobs = rng.sample(everything, rng.randrange(len(everything) + 1))
        found = fio_processes(jobs, HOST)
        assert fio_processes(jobs, HOST) == found
        assert sorted(jobs, key=jobs.index) == sorted((each for batch in found for each in batch), key=jobs.index)
        for batch in found:
            assert sum(each.reads for each in batch) <= 1
            assert sum(each.writes for each in batch) <= 1
            assert [each.writes for each in batch] == sorted(each.writes for each in batch)
        mixed = sum(each.reads and each.writes for each in jobs)
        readers = sum(each.reads for each in jobs) - mixed
        writers = sum(each.writes for each in jobs) - mixed
        assert len(found) == max(readers, writers) + mixed
        firsts = [min(jobs.index(each) for each in batch) for batch in found]
        assert firsts == sorted(firsts)
