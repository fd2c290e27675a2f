"""The scenario files that come with the project: what they measure, and that each mode is there for one thing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from harness.features.decompose.records import compare_arms
from harness.features.published.figures import find_counterparts, links
from harness.model.attach import Attach, Vfio
from harness.model.base import Device, Md, Shape
from harness.model.mode import Arm, Mode, Place
from harness.scenario.scenario import Scenario
from tests.shipped_scenarios import SCENARIOS


def guests(scenario: Scenario) -> list[Mode]:
    return [mode for mode in scenario.modes if mode.attach is not None]


def partners(mode: Mode, scenario: Scenario) -> Iterator[str]:
    """The modes that differ from this one in a single thing."""
    guest = Arm(Place.GUEST, mode)
    others = [other for other in guests(scenario) if other != mode]
    return (other.name for other in others if len(compare_arms(Arm(Place.GUEST, other), guest)) == 1)


@pytest.mark.parametrize("name", ["hdd", "optane", "sata_ssd"])
def test_the_matrix_of_the_study_is_there_for_each_of_its_disks(name: str) -> None:
    scenario = SCENARIOS[name]
    assert [mode.name for mode in scenario.modes] == ["host", "passthrough", "lvm", "raw", "raw-cached"]
    assert len(scenario.workloads) == 4
    assert scenario.published == f"local_disks.{name}"


@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if scenario.published])
def test_the_published_figures_that_a_scenario_names_belong_to_its_modes_and_jobs(name: str) -> None:
    scenario = SCENARIOS[name]
    assert scenario.published is not None
    link = links()[scenario.published]
    depths = {depth for profile in scenario.profiles for depth in profile.iodepth}
    jobs = [workload.job(depth, ramp=0, seconds=1) for workload in scenario.workloads for depth in depths]
    existing = Shape(5, 6) if scenario.disk_class == "array" else None
    modes = [
        mode.name for mode in scenario.modes if any(find_counterparts(link, mode.detail, job, existing) for job in jobs)
    ]
    if scenario.published.startswith("local_disks."):
        assert modes == ["host", "passthrough", "lvm", "raw", "raw-cached"]
    assert modes


def test_the_attach_matrix_has_more_than_thirty_combinations_on_any_host() -> None:
    modes = guests(SCENARIOS["attach_matrix"])
    combinations = {(mode.layout, mode.attach) for mode in modes}
    assert len(combinations) == len(modes)
    everywhere = [
        mode
        for mode in modes
        if mode.layout.kind not in ("zvol", "zfs")
        and isinstance(mode.attach, Attach)
        and mode.attach.bus != "nvme"
        and not mode.attach.iothread_vq_mapping
    ]
    assert len(everywhere) >= 30


def test_the_attach_matrix_tries_every_option_of_attaching_but_limits_and_those_of_other_scenarios() -> None:
    tried = [mode.attach for mode in guests(SCENARIOS["attach_matrix"]) if isinstance(mode.attach, Attach)]
    options = [name for name in Attach.__slots__ if len({getattr(attach, name) for attach in tried}) == 1]
    limits = [name for name in options if "iops" in name or "bw" in name or name == "burst_seconds"]
    others = ["throttle_group", "metadata_cache", "read_ahead_kb", "server", "device"]
    assert options == ["poll_max_ns", "read_only", *limits, *others]


def test_the_costs_of_an_io_are_asked_at_full_speed_and_at_a_fixed_rate() -> None:
    full, fixed = SCENARIOS["costs"].workloads
    assert fixed.rate is not None
    assert replace(fixed, rate=None) == full


@pytest.mark.parametrize("name", ["attach_matrix", "attach_read_only", "costs"])
def test_each_mode_changes_one_thing_against_another_one(name: str) -> None:
    alone = [mode.name for mode in guests(SCENARIOS[name]) if not any(partners(mode, SCENARIOS[name]))]
    assert alone == []


def test_a_lun_is_compared_with_the_same_threads() -> None:
    (lun,) = [mode for mode in guests(SCENARIOS["scsi_lun"]) if mode.name == "lun"]
    assert list(partners(lun, SCENARIOS["scsi_lun"])) == ["aio-threads"]


def test_the_arrays_have_every_level_two_legs_and_layers_on_them() -> None:
    modes = guests(SCENARIOS["arrays"])
    bare = [mode.layout for mode in modes if isinstance(mode.layout, Md)]
    assert {md.level for md in bare} == {0, 1, 5, 6, 10}
    assert {md.level for md in bare if md.legs == 2} == {0, 1}
    on_arrays = {mode.layout.kind for mode in modes if not isinstance(mode.layout, Device | Md)}
    assert on_arrays == {"lvm", "lvm-thin", "raw", "qcow2"}
    assert all(isinstance(mode.layout.base, Md) for mode in modes if mode.name != "passthrough")


def test_a_disk_that_the_guest_has_for_itself_is_measured_beside_the_host_alone() -> None:
    scenario = SCENARIOS["nvme_vfio"]
    assert [(mode.layout, mode.attach) for mode in scenario.modes] == [(Device(), None), (Device(), Vfio())]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_title_names_no_model_because_the_disk_of_a_lab_may_be_another_one(name: str) -> None:
    studied = [word for link in links().values() for disk in link.disks for word in disk.model.split()]
    models = {word.strip(",") for word in studied if any(each.isdigit() for each in word) and len(word) > 3}
    assert {"900P", "DC500M", "HUH728080ALE640"} <= models
    assert not models & {word.strip(":,") for word in SCENARIOS[name].title.split()}


def test_any_disk_has_the_usual_modes_and_budgets_for_them() -> None:
    scenario = SCENARIOS["any_disk"]
    assert scenario.disk_class == "any"
    assert [mode.name for mode in scenario.modes] == ["host", "passthrough", "lvm", "raw"]
    assert {mode for budget in scenario.budgets for mode in budget.modes or ()} == {"passthrough", "lvm", "raw"}
