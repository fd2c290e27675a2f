"""Searches in scenario files: what they mean, and which ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.features.search.request import PlannedSearch, Search
from harness.model.job import parse_workload
from harness.scenario.load import load_scenario
from harness.scenario.plan import Plan, plan_for
from harness.scenario.scenario import Scenario

FILE = """
title = "A disk"
disk = "optane"
modes = ["host", "passthrough", "lvm"]
workloads = ["randread-4k", "randwrite-4k", "randread-4k-i1000", "wal"]
write_rate = "1 GiB/s"

[search.busy]
workload = "randread-4k"
bound = "1 ms"
"""


def load(tmp_path: Path, *lines: str, replaced: tuple[str, str] = ("", "")) -> Scenario:
    path = tmp_path / "disk.toml"
    path.write_text(FILE.replace(*replaced) + "\n".join(lines), encoding="utf-8")
    return load_scenario(path)


def searches(plan: Plan) -> list[PlannedSearch]:
    return [follow_up for follow_up in plan.follow_ups if isinstance(follow_up, PlannedSearch)]


def test_a_search_has_a_workload_and_a_bound_and_defaults_for_the_rest(tmp_path: Path) -> None:
    found = load(tmp_path).requests_of(Search)
    assert found == {"busy": Search(parse_workload("randread-4k"), 1e-3)}
    search = found["busy"]
    assert (search.metric, search.iodepth, search.highest, search.modes) == ("clat_p99", 32, None, None)


def test_a_search_measures_the_arms_of_its_modes(tmp_path: Path) -> None:
    (every,) = searches(plan_for(load(tmp_path), "smoke"))
    assert [arm.id for arm in every.arms] == ["host", "guest:passthrough", "twin:lvm", "guest:lvm"]
    (one,) = searches(plan_for(load(tmp_path, 'modes = ["lvm"]'), "smoke"))
    assert [arm.id for arm in one.arms] == ["host", "twin:lvm", "guest:lvm"]


def test_a_search_belongs_to_the_cells_of_its_workload_and_depth(tmp_path: Path) -> None:
    scenario = load(tmp_path)
    cells = plan_for(scenario, "smoke").cells
    selected = [cell for cell in cells if cell.job.pattern == "randwrite"]
    assert searches(plan_for(scenario, "smoke", selected)) == []
    (search,) = searches(plan_for(scenario, "smoke"))
    assert {cell.job.id for cell in search.cells} == {"randread-4k-qd32"}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('metric = "iops"', 'search.busy.metric = "iops": not a latency of I/Os; allowed: lat_mean, '),
        ('metric = "sync_p99"', 'search.busy.metric = "sync_p99": not a latency of I/Os'),
        ("iodepth = 7", "search.busy.iodepth = 7: no profile measures at this depth; allowed: 1, 2, 4"),
        ("highest = 10", "search.busy.highest = 10: too few I/Os per second for clat_p99, which needs 1000 I/Os"),
        ("highest = 0", "search.busy.highest = 0"),
        ('modes = ["raw"]', 'search.busy.modes[0] = "raw": not a mode of this scenario; allowed: host, passthrough'),
        ('modes = ["lvm", "lvm"]', 'search.busy.modes[1] = "lvm": the same as search.busy.modes[0]'),
        ('time_limit = "0 s"', 'search.busy.time_limit = "0 s"'),
        ("rounds = 3", "search.busy.rounds"),
    ],
)
def test_a_search_that_cannot_be_measured_is_refused(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, line)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("workload", "problem"),
    [
        ("randread-4k-i1000", 'has a fixed rate, but a search sets the rates; allowed: "randread-4k"'),
        ("wal", "has times and rates of its own; allowed: a pattern with a block size, for example randread-4k"),
        ("randread-8k", "not a workload of this scenario; allowed: randread-4k, "),
        ("cdm8", "stands for several workloads"),
    ],
)
def test_a_workload_that_cannot_be_searched_is_refused(tmp_path: Path, workload: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, replaced=('workload = "randread-4k"', f'workload = "{workload}"'))
    assert f'search.busy.workload = "{workload}": {problem}' in str(refused.value)


def test_a_name_with_capital_letters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a valid name of a search"):
        load(tmp_path, replaced=("search.busy", "search.Busy"))


def test_a_search_without_a_bound_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"search\.busy\.bound"):
        load(tmp_path, replaced=('bound = "1 ms"', ""))
