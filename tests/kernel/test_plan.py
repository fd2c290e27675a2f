"""The plan: cells and ids, groups of any selection, and what they cost."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.feature import find_conditioner
from harness.measure.prepare import SetupRequest
from harness.model.attach import Attach, Vfio
from harness.model.base import Device, Md
from harness.model.job import Job, Workload, parse_workload
from harness.model.layout import Layout, Lvm, ZfsFile, Zvol
from harness.model.mode import Cell, Mode
from harness.model.workloads import PROFILES, Conditioning
from harness.scenario.load import load_scenario
from harness.scenario.plan import FIO_SHARE, Plan, describe_plan, expand, group_cells, plan_for
from harness.scenario.scenario import PRESETS, Scenario
from harness.scenario.setups import LAB_SECONDS, REBUILD_SECONDS, RECOVERY_SECONDS, START_SECONDS, Group, Paces

SCENARIOS = Path(__file__).parents[2] / "scenarios"
GIB = 1024**3

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
    # What is tested here does not change with what the library finds good for a smoke run or a standard one.
    profiles=(
        replace(PROFILES[0], runtime=1, rounds=3, most_rounds=3, blocks=1, iodepth=(1, 32)),
        replace(PROFILES[1], ramp=2, runtime=10, blocks=1, round_limit=600),
        *PROFILES[2:],
    ),
)


def selected(*ids: str) -> list[Cell]:
    """The smoke cells whose id contains one of `ids`, as `pytest -k "a or b"` selects them."""
    return [cell for cell in expand(OPTANE, "smoke") if any(part in cell.id for part in ids)]


def one_group(cells: list[Cell]) -> Group:
    (group,) = group_cells(cells, max_round_seconds=3600)
    return group


def of_blocks(blocks: int, cells: list[Cell]) -> Group:
    (group,) = group_cells(cells, max_round_seconds=3600, blocks=blocks)
    return group


def small_plan(*, time_limit: float | None = None, conditioning: Conditioning = "fill") -> Plan:
    """One group of LVM and RAW at random reads and writes; 3 to 12 rounds of 2 jobs of 10 s on 5 arms."""
    profile = replace(PROFILES[0], runtime=10, rounds=3, blocks=1, iodepth=(32,), most_rounds=12)
    scenario = replace(OPTANE, profiles=(replace(profile, time_limit=time_limit, conditioning=conditioning),))
    cells = [cell for cell in expand(scenario, "smoke") if cell.mode.name in ("lvm", "raw") and cell.job.bs == 4096]
    return plan_for(scenario, "smoke", cells)


def test_the_fewest_rounds_are_measured_together_as_far_as_they_fit_into_a_timetable() -> None:
    plan = small_plan()
    group = replace(plan.groups[0], blocks=2)
    assert group.round_seconds == 2 * 2 * 5 * 10
    assert plan.count_together(group, 3) == 1, "a round takes longer than a timetable"
    short = replace(group, cells=tuple(replace(cell, job=replace(cell.job, seconds=2.0)) for cell in group.cells))
    assert [plan.count_together(short, rounds) for rounds in (0, 1, 2, 3, 6)] == [1, 1, 2, 3, 4]
    assert plan.count_together(replace(short, blocks=1), 3) == 1
    assert replace(plan, reboot=True).count_together(short, 3) == 1
    assert replace(plan, limits={"nvme0": 2**40}).count_together(short, 3) == 1


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
        "workload": "randread-4k",
        "pattern": "randread",
        "bs": "4k",
        "iodepth": 32,
        "numjobs": 1,
    }


def test_the_profile_sets_the_times_of_every_job() -> None:
    assert {(cell.job.ramp, cell.job.seconds) for cell in expand(OPTANE, "standard")} == {(2, 10)}


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


def test_a_round_of_several_blocks_keeps_the_limit() -> None:
    rng = random.Random(4)
    cells = expand(OPTANE, "standard")
    for _ in range(100):
        chosen = [cell for cell in cells if rng.random() < rng.choice((0.05, 0.5, 0.95))]
        groups = group_cells(chosen, 100, blocks=3)
        assert all(group.round_seconds <= 100 or len(group.jobs) == 1 for group in groups)
        assert {group.blocks for group in groups} <= {3}


def test_each_block_of_a_round_runs_every_job_on_every_arm_once_more() -> None:
    cells = selected("lvm-randread-4k-qd1", "lvm-randwrite-4k-qd1")
    assert (one_group(cells).round_seconds, of_blocks(4, cells).round_seconds) == (6, 24)
    assert (one_group(cells).writing_seconds, of_blocks(4, cells).writing_seconds) == (3, 12)


def passed_through() -> list[Cell]:
    """The host, and a disk that only the guest has while it is measured."""
    modes = (PRESETS[0], Mode("vfio", Device(), Vfio()))
    scenario = replace(OPTANE, modes=modes, profiles=(replace(OPTANE.profiles[0], runtime=2, blocks=4),))
    return expand(scenario, "smoke")


def test_arms_that_take_turns_have_one_long_slice_instead_of_several() -> None:
    cells = passed_through()
    assert {cell.job.seconds for cell in cells} == {8}
    group = of_blocks(4, cells)
    assert group.blocks == 1
    assert group.round_seconds == 8 * 2 * 8  # 8 jobs, of 8 s, on 2 arms


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
    work = plan.work(0)
    for kind in ("build", "condition", "boot", "end"):
        assert work[kind] == pytest.approx(sum(plan.setup_work(setup, 0)[kind] for setup in plan.setups))
    assert work["lab"] == LAB_SECONDS, "the host is opened once"
    assert describe_plan(plan).startswith("80 cells in 3 groups and 3 setups, 39 arms, 3 rounds: ")


def test_a_setup_takes_as_many_disks_as_its_arrays_have() -> None:
    modes = (PRESETS[0], Mode("mirror", Lvm(Md(1, 2)), Attach()), Mode("stripe", Md(0, 3), Attach()))
    scenario = replace(OPTANE, modes=modes, disk="ssd1", disks=("ssd1", "ssd2", "ssd3", "ssd4"))
    plan = plan_for(scenario, "smoke")
    assert plan.disks == scenario.disks
    assert [setup.disks for setup in plan.setups] == [("ssd1", "ssd2", "ssd3")]
    assert describe_plan(plan).endswith("written to ssd1, ssd2, ssd3")
    mirror = plan_for(scenario, "smoke", [cell for cell in expand(scenario, "smoke") if cell.mode.name != "stripe"])
    assert [setup.disks for setup in mirror.setups] == [("ssd1", "ssd2")]


def test_a_setup_leaves_the_disks_alone_that_its_arrays_do_not_use() -> None:
    disks = tuple(f"ssd{number}" for number in range(1, 7))
    modes = (PRESETS[0], Mode("paths", Md(0, 4, legs=2, starts=(1, 5)), Attach()))
    plan = plan_for(replace(OPTANE, modes=modes, disk="ssd1", disks=disks), "smoke")
    assert [setup.disks for setup in plan.setups] == [("ssd1", "ssd2", "ssd5", "ssd6")]
    assert SetupRequest.of(plan, plan.groups[0]).disks == disks, "an array finds its disks by their places"


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
    work = plan.work(0)
    assert work["fio"] == 192
    assert work["start"] == 3 * 3 * START_SECONDS, "two pieces, and one of the cached arms"
    assert plan.minutes * 60 == pytest.approx(sum(seconds * plan.paces.of_kind(kind) for kind, seconds in work.items()))
    assert describe_plan(plan) == (
        "40 cells in 1 group, 8 arms, 3 rounds: about 4 min, at most 192.2 GiB written to nvme0"
    )


def test_a_selection_costs_only_what_it_needs() -> None:
    plan = plan_for(OPTANE, "smoke", selected("lvm-randread-4k-qd1"))
    assert describe_plan(plan) == "1 cell in 1 group, 3 arms, 3 rounds: about 1 min, at most 128 MiB written to nvme0"


def test_nothing_selected_costs_nothing() -> None:
    for profile in ("smoke", "standard"):
        plan = plan_for(OPTANE, profile, [])
        assert (plan.groups, plan.minutes, plan.most_minutes, plan.write_bytes) == ((), 0, 0, 0)


def test_a_plan_with_more_rounds_where_they_are_needed_says_the_least_and_the_most() -> None:
    plan = small_plan()
    assert (plan.rounds, plan.most_rounds) == (3, 12)
    assert plan.fio_seconds == 3 * 100
    assert (plan.work(0)["fio"], plan.work(0, most=True)["fio"]) == (3 * 100, 12 * 100)
    assert plan.minutes < plan.most_minutes
    assert plan.write_bytes == plan.fill_bytes(plan.span) + 12 * 5 * 10 * 2 * GIB
    assert describe_plan(plan) == (
        "4 cells in 1 group, 5 arms, 3 to 12 rounds: about 6 min, at most 22 min, at most 1.172 TiB written to nvme0"
    )


@pytest.mark.parametrize(("minutes", "rounds"), [(None, 12), (60, 12), (10, 5), (1, 3)])
def test_the_time_limit_bounds_the_rounds_but_not_the_fewest(minutes: float | None, rounds: int) -> None:
    plan = small_plan(time_limit=minutes and minutes * 60)
    assert [plan.most_rounds_of(group) for group in plan.groups] == [rounds]
    assert plan.work(0, most=True)["fio"] == rounds * 100


def test_the_groups_of_a_disk_divide_the_time_limit_by_the_length_of_their_rounds() -> None:
    plan = plan_for(replace(OPTANE, profiles=(replace(OPTANE.profiles[1], time_limit=3600),)), "standard")
    assert sum(map(plan.limit_of, plan.groups)) == pytest.approx(3600)
    assert len({plan.limit_of(group) / group.round_seconds for group in plan.groups}) == 1
    assert plan.limit_of(plan.groups[0]) == pytest.approx(600)
    assert {plan.most_rounds_of(group) for group in plan.groups} == {plan.rounds}
    assert math.isinf(replace(plan, time_limit=None).limit_of(plan.groups[0]))


def test_a_steady_state_costs_two_fills_and_5_to_25_rounds_of_a_job_on_each_region() -> None:
    fill, steady = small_plan(), small_plan(conditioning="steady")
    assert steady.fill_bytes(1000) == 2 * fill.fill_bytes(1000) == 2 * 3 * 1000
    seconds = 3 * find_conditioner("steady").seconds  # the device, lvm and raw
    assert (steady.minutes - fill.minutes) * 60 == pytest.approx(5 * seconds / FIO_SHARE, abs=1)
    assert (steady.most_minutes - fill.most_minutes) * 60 == pytest.approx(25 * seconds / FIO_SHARE, abs=1)
    one_more_fill = fill.fill_bytes(fill.span)
    assert steady.write_bytes - fill.write_bytes == one_more_fill + 25 * seconds * 2 * GIB


def test_the_groups_of_a_disk_share_its_filled_regions() -> None:
    plan = plan_for(OPTANE, "standard")
    assert len(plan.groups) == 6
    assert plan.fill_bytes(plan.span) == 2 * 4 * plan.span


def test_a_plan_carries_what_its_profile_says_of_rounds_and_conditioning() -> None:
    plan = plan_for(replace(OPTANE, profiles=PROFILES), "standard")
    assert (plan.rounds, plan.most_rounds, plan.target, plan.time_limit) == (4, 24, 0.03, 3600)
    assert (plan.conditioning, plan.reboot) == ("steady", True)
    assert {group.blocks for group in plan.groups} == {PROFILES[1].blocks}


def test_a_fixed_number_of_rounds_can_be_requested() -> None:
    for number in (1, 7, 30):
        plan = plan_for(OPTANE, "standard").with_rounds(number)
        assert (plan.rounds, plan.most_rounds) == (number, number)
        assert {plan.most_rounds_of(group) for group in plan.groups} == {number}


def test_the_most_rounds_are_never_below_the_fewest() -> None:
    plan = plan_for(OPTANE, "smoke")
    assert replace(plan, rounds=5).most_rounds == 5
    assert Plan("nvme0", plan.groups, 3, plan.span, plan.write_rate).most_rounds == 3


# ---------------------------------------------------------------------------------------------- jobs


def job(name: str, iodepth: int = 1) -> Job:
    return parse_workload(name).job(iodepth, ramp=0, seconds=1)


def test_a_jobs_name_ends_with_what_the_workload_sets() -> None:
    assert job("randrw-8k-nj4-r67-i1000", 8).id == "randrw-8k-qd8-nj4-r67-i1000"
    assert job("randrw-8k-nj4-r67-i1000", 8).workload.name == "randrw-8k-nj4-r67-i1000"


def test_the_headline_of_a_job_at_a_fixed_rate_is_its_latency() -> None:
    assert [job(name).headline for name in ("randread-4k", "seqread-1m", "seqread-1m-i100")] == [
        "iops",
        "bw",
        "clat_mean",
    ]


def test_the_jobs_of_a_rebuilding_array_share_a_recovery_that_writes_to_the_spare() -> None:
    disks = ("a", "b", "c", "d")
    optimal = plan_for(volumes(1, layout=Md(5, 3), disks=disks), "smoke")
    rebuilding = plan_for(volumes(1, layout=Md(5, 3, state="rebuilding", spares=1), disks=disks), "smoke")
    (group,) = rebuilding.groups
    assert len(group.jobs) == 4
    assert group.recoveries == 1
    assert rebuilding.work(0)["recovery"] == rebuilding.rounds * RECOVERY_SECONDS
    assert optimal.work(0)["recovery"] == 0
    assert rebuilding.minutes > optimal.minutes
    arms = [job.wall for _ in ("twin", "guest") for job in group.jobs]
    spare = group.blocks * sum(arms) + group.recoveries * REBUILD_SECONDS
    assert group.writing_seconds - optimal.groups[0].writing_seconds == pytest.approx(spare)


def test_modes_that_a_storage_in_use_does_not_offer_take_no_time_in_the_estimate() -> None:
    whole = plan_for(OPTANE, "smoke")
    modes = {cell.mode.name for cell in whole.cells if cell.mode.attach is not None}
    raw = whole.on(whole.paces, None, ("raw",))
    only = whole.without(
        cell for cell in whole.cells if cell.mode.attach is not None and cell.mode.layout.kind != "raw"
    )
    assert {cell.mode.layout.kind for cell in only.cells if cell.mode.attach is not None} == {"raw"}
    assert len(modes) > 2
    assert raw.cells == whole.cells, "the run records why it skips them"
    assert raw.minutes == pytest.approx(only.minutes)
    assert raw.minutes < whole.minutes
    nothing = whole.on(whole.paces, None, ("zvol",))
    assert nothing.work(0)["fio"] == 0, "nothing is measured just for the host"


def test_a_slow_disk_needs_longer_pauses_if_many_ios_are_in_flight() -> None:
    fast, slow = plan_for(OPTANE, "smoke").on(Paces(), 10_000), plan_for(OPTANE, "smoke").on(Paces(), 100)
    assert slow.work(0)["pause"] > 4 * fast.work(0)["pause"]
    assert slow.work(0)["fio"] == fast.work(0)["fio"]


def on_zfs(*modes: Mode) -> list[Cell]:
    workloads = tuple(map(parse_workload, ("randread-4k", "randwrite-4k")))
    return expand(replace(OPTANE, modes=(PRESETS[0], *modes), workloads=workloads, profiles=PROFILES), "smoke")


def test_slices_that_write_on_zfs_last_for_whole_transaction_groups() -> None:
    """A quarter of a second shows the speed of the memory: ZFS writes after five seconds."""
    cells = on_zfs(Mode("zvol", Zvol(), Attach()), Mode("file", ZfsFile(), Attach()))
    assert {(cell.job.rw, cell.job.ramp, cell.job.seconds) for cell in cells} == {
        ("randread", 0, 0.25),
        ("randwrite", 5, 10),
    }
    reads, writes = group_cells(cells, max_round_seconds=3600, blocks=10)
    assert (reads.blocks, writes.blocks) == (10, 1)
    assert [cell.mode.name for cell in writes.cells] == ["host", "zvol", "file"]
    # Ramp and slice, and the pause in which the last group is written: of the host, two twins and two guests.
    assert writes.round_seconds == 5 * (5 + 10 + 6)


def test_modes_on_other_layouts_keep_their_slices_beside_zfs() -> None:
    cells = on_zfs(Mode("lvm", Lvm(), Attach()), Mode("zvol", Zvol(), Attach()))
    short, long = group_cells(cells, max_round_seconds=3600, blocks=10)
    assert [cell.id for cell in cells] == [cell.id for group in (short, long) for cell in group.cells]
    assert {cell.mode.name for cell in long.cells} == {"zvol"}
    assert arm_ids(long) == ["host", "twin:zvol", "guest:zvol"]
    alone = on_zfs(Mode("lvm", Lvm(), Attach()))
    assert [cell for cell in short.cells if cell.mode.name != "zvol"] == alone
