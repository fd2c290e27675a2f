"""Budgets of a scenario: which cells they judge, in which lab, and how mistakes are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.analysis import METRICS
from harness.errors import ConfigError
from harness.model.mode import Budget, Cell, LabKind
from harness.scenario.legality import LAB_KINDS, budgets_for
from harness.scenario.load import load_scenario
from harness.scenario.plan import expand
from harness.scenario.scenario import Scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
LATENCIES = ", ".join(name for name, metric in METRICS.items() if metric.is_latency)
SHIPPED = ("hdd", "optane", "sata_ssd")

BASE = """
title = "A disk"
modes = ["host", "lvm", "raw"]
workloads = ["randread-4k", "seqwrite-256k"]
write_rate = "1 GiB/s"
"""
ANY = '[[budget]]\nmetric = "iops"\nshare = "30 %"\n'


def load(directory: Path, text: str, base: str = BASE) -> Scenario:
    path = directory / "disk.toml"
    path.write_text(f"{base}\n{text}", encoding="utf-8")
    return load_scenario(path)


def complaint(directory: Path, text: str, base: str = BASE) -> list[str]:
    """The lines of the error that the file is refused with, without the file's name."""
    with pytest.raises(ConfigError) as error:
        load(directory, text, base)
    return [line.removeprefix(f"{directory / 'disk.toml'}: ") for line in error.value.message.splitlines()]


def cell(scenario: Scenario, name: str) -> Cell:
    return {each.id: each for each in expand(scenario, "standard")}[f"{scenario.name}-{name}"]


def shares(scenario: Scenario, name: str, lab_kind: LabKind = "bare-metal") -> dict[str, float | None]:
    """What the cell may lose, by metric."""
    return {metric: rule.share for metric, rule in budgets_for(scenario, cell(scenario, name), lab_kind).items()}


# --------------------------------------------------------------------------------------------- which cells


def test_a_scenario_without_budgets_judges_nothing(tmp_path: Path) -> None:
    scenario = load(tmp_path, "")
    assert scenario.budgets == ()
    assert shares(scenario, "lvm-randread-4k-qd32") == {}


def test_a_budget_that_names_nothing_is_for_every_cell_but_the_hosts_on_bare_metal(tmp_path: Path) -> None:
    scenario = load(tmp_path, ANY)
    for each in expand(scenario, "standard"):
        expected = {} if each.mode.name == "host" else {"iops": Budget("iops", 0.3)}
        assert budgets_for(scenario, each, "bare-metal") == expected
        assert budgets_for(scenario, each, "nested") == {}
        assert budgets_for(scenario, each, "emulated") == {}


def test_a_budget_is_for_the_modes_workloads_and_depths_it_names(tmp_path: Path) -> None:
    names = 'modes = ["lvm"]\nworkloads = ["randread-4096"]\niodepth = [1, 32]\n'
    scenario = load(tmp_path, ANY + names)
    judged = [each.id for each in expand(scenario, "standard") if budgets_for(scenario, each, "bare-metal")]
    assert judged == ["disk-lvm-randread-4k-qd1", "disk-lvm-randread-4k-qd32"]


def test_a_lab_is_judged_by_the_budgets_written_for_it(tmp_path: Path) -> None:
    scenario = load(tmp_path, ANY + ANY.replace("30 %", "90 %") + 'lab = ["nested", "emulated"]\n')
    found = {kind: shares(scenario, "lvm-randread-4k-qd32", kind) for kind in LAB_KINDS}
    assert found == {"bare-metal": {"iops": 0.3}, "nested": {"iops": 0.9}, "emulated": {"iops": 0.9}}


def test_a_later_budget_wins_only_in_its_own_metric(tmp_path: Path) -> None:
    general = ANY + '[[budget]]\nmetric = "clat_p99"\nshare = "200 %"\n'
    scenario = load(tmp_path, general + ANY.replace("30 %", "40 %") + "iodepth = [256]\n")
    assert shares(scenario, "lvm-randread-4k-qd256") == {"iops": 0.4, "clat_p99": 2.0}
    assert shares(scenario, "lvm-randread-4k-qd128") == {"iops": 0.3, "clat_p99": 2.0}


def test_a_latency_may_have_an_absolute_budget_and_both(tmp_path: Path) -> None:
    text = '[[budget]]\nmetric = "clat_mean"\nabsolute = "+50 us"\nshare = "10 %"\nboth = "stricter"\n'
    (rule,) = load(tmp_path, text).budgets
    assert (rule.share, rule.both) == (0.1, "stricter")
    assert rule.absolute == pytest.approx(50e-6)


def test_workloads_of_every_form_are_found(tmp_path: Path) -> None:
    base = BASE.replace('"randread-4k"', '"randrw-8k-nj4-r67"')
    scenario = load(tmp_path, ANY + 'workloads = ["randrw-8k-nj4-r67"]\n', base)
    assert shares(scenario, "lvm-randrw-8k-qd32-nj4-r67") == {"iops": 0.3}
    assert shares(scenario, "lvm-seqwrite-256k-qd32") == {}


# ---------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            'modes = ["lvm", "rwa"]',
            '.modes[1] = "rwa": not a mode with a guest in this scenario; allowed: lvm, raw (did you mean "raw"?)',
        ),
        ('modes = ["host"]', '.modes[0] = "host": not a mode with a guest in this scenario; allowed: lvm, raw'),
        ('modes = ["lvm", "lvm"]', '.modes[1] = "lvm": the same as budget[0].modes[0]; allowed: each value once'),
        ("modes = []", ".modes = []: must not be empty"),
        (
            'workloads = ["randread-8k"]',
            (
                '.workloads[0] = "randread-8k": not a workload of this scenario; allowed: randread-4k, seqwrite-256k '
                '(did you mean "randread-4k"?)'
            ),
        ),
        (
            'workloads = ["randread-4k", "randread-4096"]',
            '.workloads[1] = "randread-4096": the same as budget[0].workloads[0]; allowed: each value once',
        ),
        (
            "iodepth = [3]",
            ".iodepth[0] = 3: no profile measures at this depth; allowed: 1, 2, 4, 8, 16, 32, 64, 128, 256",
        ),
        (
            'lab = ["bare metal"]',
            '.lab[0] = "bare metal": allowed: bare-metal, nested, emulated (did you mean "bare-metal"?)',
        ),
        (
            'mode = ["lvm"]',
            (
                '.mode = ["lvm"]: no such key; allowed: metric, share, absolute, both, modes, workloads, iodepth, lab, '
                'difference (did you mean "modes"?)'
            ),
        ),
        ('both = "looser"', ': both = "looser" needs two limits; allowed: only together with share and absolute'),
        (
            'absolute = "+50 us"\nboth = "looser"',
            (f': absolute = "+50 us" conflicts with metric = "iops"; allowed: share, or a latency ({LATENCIES})'),
        ),
        (
            'absolute = "50 us"',
            ('.absolute = "50 us": not a valid added duration; allowed: +, a number and a unit, for example +50 us'),
        ),
    ],
)
def test_a_mistake_is_reported_with_key_value_and_what_is_allowed(tmp_path: Path, text: str, line: str) -> None:
    assert complaint(tmp_path, f"{ANY}{text}\n") == [f"budget[0]{line}"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('share = "30 %"', ".metric: missing, and it has no default"),
        (
            'metric = "iop"\nshare = "30 %"',
            f'.metric = "iop": no such metric; allowed: {", ".join(METRICS)} (did you mean "iops"?)',
        ),
        ('metric = "iops"', ": has no limit; allowed: share, absolute, share and absolute with both, or difference"),
        (
            'metric = "iops"\nshare = "0.3"',
            '.share = "0.3": not a valid share; allowed: a number and %, for example 30 %',
        ),
        (
            'metric = "iops"\nshare = "100 %"',
            ': share = "100 %" of metric = "iops" can never be exceeded; allowed: less than 100 %',
        ),
        (
            'metric = "clat_mean"\nshare = "10 %"\nabsolute = "+50 us"',
            (': share and absolute together need the key both; allowed: both = "looser" or both = "stricter"'),
        ),
        (
            'metric = "clat_mean"\nshare = "10 %"\nabsolute = "+50 us"\nboth = "loser"',
            '.both = "loser": allowed: looser, stricter (did you mean "looser"?)',
        ),
    ],
)
def test_a_meaningless_amount_is_reported_with_what_is_allowed(tmp_path: Path, text: str, line: str) -> None:
    assert complaint(tmp_path, f"[[budget]]\n{text}\n") == [f"budget[0]{line}"]


def test_a_budget_hidden_by_later_ones_is_refused(tmp_path: Path) -> None:
    exception = ANY + "iodepth = [256]\n"
    assert len(load(tmp_path, ANY + exception).budgets) == 2
    (line,) = complaint(tmp_path, exception + ANY)
    assert line == (
        "budget[0]: has no effect, because later budgets of iops match all its cells; "
        "allowed: general budgets first, exceptions after them"
    )


def test_a_budget_of_a_scenario_that_measures_the_host_alone_matches_no_cell(tmp_path: Path) -> None:
    alone = BASE.replace('"host", "lvm", "raw"', '"host"')
    assert complaint(tmp_path, ANY, alone) == [
        "budget[0]: matches no cell, because only the host is measured; add a mode to modes, or remove the budget"
    ]
    (line,) = complaint(tmp_path, ANY + 'modes = ["lvm"]\n', alone)
    assert line.endswith("allowed: nothing, because only the host is measured")


FIXED = BASE.replace('"seqwrite-256k"', '"randread-4k-i1000"')


@pytest.mark.parametrize(
    ("base", "workloads", "key"),
    [
        (FIXED, 'workloads = ["randread-4k-i1000"]\n', "budget[0].workloads[0]"),
        (FIXED.replace('"randread-4k", ', ""), "", "workloads[0]"),
    ],
)
@pytest.mark.parametrize("metric", ["iops", "bw"])
def test_a_fixed_rate_cannot_have_a_budget_of_throughput(
    tmp_path: Path, base: str, workloads: str, key: str, metric: str
) -> None:
    (line,) = complaint(tmp_path, ANY.replace("iops", metric) + workloads, base)
    assert line == (
        f'budget[0].metric = "{metric}": conflicts with {key} = "randread-4k-i1000", which has a fixed rate; '
        f"allowed: {LATENCIES}"
    )
    assert load(tmp_path, ANY.replace("iops", "clat_mean") + workloads, base).budgets


def test_a_budget_for_all_workloads_may_include_one_with_a_fixed_rate(tmp_path: Path) -> None:
    assert len(load(tmp_path, ANY, FIXED).budgets) == 1


def test_a_depth_that_any_profile_measures_may_have_a_budget(tmp_path: Path) -> None:
    text = ANY + "iodepth = [3]\n[profile.smoke]\niodepth = [3]\n"
    assert load(tmp_path, text).budgets[0].iodepth == (3,)


# ----------------------------------------------------------------------------------------------- shipped


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_scenario_judges_every_mode_that_memory_does_not_serve(name: str) -> None:
    scenario = load_scenario(SCENARIOS / f"{name}.toml")
    assert [mode.name for mode in scenario.modes if mode.cached] == ["raw-cached"]
    judged = {c.mode.name for c in expand(scenario, "standard") if budgets_for(scenario, c, "bare-metal")}
    assert judged == {"passthrough", "lvm", "raw"}
    smoked = [c for c in expand(scenario, "smoke") if budgets_for(scenario, c, "bare-metal")]
    assert {c.job.workload for c in smoked} == set(scenario.workloads)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_lab_that_does_not_represent_hardware_is_judged_only_by_budgets_that_were_written_for_it(name: str) -> None:
    scenario = load_scenario(SCENARIOS / f"{name}.toml")
    cells = expand(scenario, "smoke")
    emulated = {each.job.workload.name for each in cells if budgets_for(scenario, each, "emulated")}
    assert emulated == {"randread-4k"}
    of_hardware = [rule for rule in scenario.budgets if "bare-metal" in rule.lab]
    for each in cells:
        own = budgets_for(scenario, each, "nested")
        assert bool(own) == (each.mode.name in ("passthrough", "lvm", "raw"))
        assert not any(rule in of_hardware for rule in own.values())
        assert all(rule.share is not None and rule.share >= 0.8 for rule in own.values())
