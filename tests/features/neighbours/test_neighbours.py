"""Several guests at the same time, and a guest beside a neighbour: modes, arms, what is shared and what it costs."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from harness.features.decompose.records import compare_arms
from harness.features.io_costs.report import average_costs
from harness.features.neighbours import make_neighbour_mode
from harness.features.neighbours.measured import check_together, compute_jain_index, estimate_fairness
from harness.features.write_limit.fitting import slice_rate
from harness.model.attach import Attach
from harness.model.guest import GuestOptions
from harness.model.job import Job, parse_workload
from harness.model.layout import Lvm, Qcow2
from harness.model.mode import Arm, Budget, Mode, Neighbour, Place
from harness.report.html import render_html
from harness.report.markdown import markdown_table
from harness.report.section import find_sections
from harness.report.terminal import difference_lines, short_lines, summary_lines
from harness.results import CellRecord, Run
from harness.scenario.plan import expand, plan_for
from harness.scenario.scenario import Scenario
from harness.scenario.setups import by_guest, regions, setups
from harness.scenario.timetable import ScheduledArm, Slice
from tests.build import A_SLICE, optane, synthetic_run
from tests.replay import overhead_text
from tests.unit.test_scenario_load import complaint, load

FILE = """
title = "A disk"
modes = ["host", "lvm", "alone", "four"]
workloads = ["randread-4k"]
write_rate = "1 GiB/s"

[mode.alone]
layout = { kind = "lvm" }
attach = {}
neighbour = { workload = "randwrite-4k" }

[mode.four]
layout = { kind = "lvm" }
attach = {}
guests = 4
"""
NOISY = Neighbour(parse_workload("randwrite-4k"), 32)
ALONE = Mode("alone", Lvm(), Attach())
BESIDE = make_neighbour_mode(ALONE, NOISY)
FOUR = Mode("four", Lvm(), Attach(), guests=4)
JOB = Job("randread", 4096, iodepth=1, ramp=0.1, seconds=0.5)


def by_name(scenario: Scenario) -> dict[str, Mode]:
    return {mode.name: mode for mode in scenario.modes}


def test_a_mode_with_a_neighbour_is_measured_with_and_without_it(tmp_path: Path) -> None:
    scenario = load(tmp_path, FILE)
    modes = by_name(scenario)
    assert list(modes) == ["host", "lvm", "alone", "alone-neighbour", "four"]
    assert modes["alone-neighbour"].against == modes["alone"]
    assert modes["alone-neighbour"].detail.neighbour == "randwrite-4k-qd32"
    cells = [cell for cell in expand(scenario, "smoke") if cell.mode.name == "alone-neighbour"]
    assert {cell.id for cell in cells} == {"disk-alone-neighbour-randread-4k-qd32"}
    assert [arm.id for arm in cells[0].arms] == ["host", "twin:alone", "guest:alone", "guest:alone-neighbour"]


def test_the_baseline_of_several_guests_is_fio_on_all_their_volumes(tmp_path: Path) -> None:
    scenario = load(tmp_path, FILE)
    (cell,) = (cell for cell in expand(scenario, "smoke") if cell.mode.name == "four")
    assert [arm.id for arm in cell.arms] == ["twin:four", "guest:four"]
    parts = {str(place): arm.parts(cell.job) for place, arm in cell.by_role.items()}
    assert [part.machine for part in parts["host"]] == ["host", "host-2", "host-3", "host-4"]
    assert [part.machine for part in parts["guest"]] == ["guest", "guest-g2", "guest-g3", "guest-g4"]
    assert {part.job for own in parts.values() for part in own} == {cell.job}


def test_the_neighbour_runs_as_long_as_the_job_that_is_measured() -> None:
    own, other = Arm(Place.GUEST, BESIDE).parts(JOB)
    assert (own.arm, own.job, own.neighbour) == (Arm(Place.GUEST, ALONE), JOB, False)
    assert (other.machine, other.job.id, other.neighbour) == ("guest-g2", "randwrite-4k-qd32", True)
    assert (other.job.ramp, other.job.seconds) == (JOB.ramp, JOB.seconds)
    (single,) = Arm(Place.GUEST, ALONE).parts(JOB)
    assert (single.machine, single.job) == ("guest", JOB)


def test_all_guests_of_a_setup_have_the_disks_of_its_modes(tmp_path: Path) -> None:
    scenario = load(tmp_path, FILE).on(GuestOptions(vcpus=1))
    (together_,) = setups(scenario.modes)
    assert {name: [mode.name for mode in own] for name, own in by_guest(together_).items()} == {
        "": ["lvm", "alone", "four"],
        "g2": ["alone-g2", "four-g2"],
        "g3": ["four-g3"],
        "g4": ["four-g4"],
    }
    assert len(regions(together_)) == 7
    assert len(regions([replace(FOUR, layout=Qcow2())])) == 8


def test_a_neighbour_that_writes_counts_in_the_bytes_of_a_plan(tmp_path: Path) -> None:
    plan = plan_for(load(tmp_path, FILE), "smoke")
    assert plan.groups[0].writing_seconds > 0
    assert slice_rate(plan, Arm(Place.GUEST, BESIDE), JOB) == plan.write_rate
    assert slice_rate(plan, Arm(Place.GUEST, ALONE), JOB) == 0


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("guests = 4", "guests = 7", "mode.four.guests = 7: "),
        (
            "guests = 4",
            'guests = 4\nneighbour = { workload = "seqwrite-64k" }',
            "guests = 4 conflicts with neighbour, which is beside one guest",
        ),
        (
            'layout = { kind = "lvm" }\nattach = {}\nguests',
            'layout = { kind = "device" }\nattach = {}\nguests',
            'guests = 4 conflicts with layout.kind = "device", because each guest needs a volume of its own',
        ),
        ('"randwrite-4k" }', '"randwrite-5" }', "mode.alone.neighbour.workload"),
        (
            '"alone", "four"]',
            '"alone", "four", "four-g2"]\nmode.four-g2 = { layout = { kind = "lvm" }, attach = {} }',
            'mode.four: needs the name "four-g2" for itself; rename the mode four-g2',
        ),
        (
            "[mode.alone]",
            "[variant.old]\n[variant.new]\n[mode.alone]",
            "variant.old: conflicts with mode.alone.neighbour, because the guests of variants use the same volume",
        ),
        (
            "[mode.alone]",
            '[search.load]\nworkload = "randread-4k"\nbound = "1 ms"\nmodes = ["four"]\n[mode.alone]',
            'search.load.modes[0] = "four": others do I/O beside it',
        ),
    ],
)
def test_a_mistake_is_reported_with_its_key(tmp_path: Path, old: str, new: str, line: str) -> None:
    assert old in FILE
    found = complaint(tmp_path, FILE.replace(old, new))
    assert any(line in each for each in found), found


def test_a_neighbour_is_one_change_of_a_decomposition() -> None:
    found = compare_arms(Arm(Place.GUEST, ALONE), Arm(Place.GUEST, BESIDE))
    assert [change.words for change in found] == ["neighbour none -> randwrite-4k-qd32"]
    found = compare_arms(Arm(Place.GUEST, ALONE), Arm(Place.GUEST, FOUR))
    assert [change.words for change in found] == ["guests 1 -> 4"]


@pytest.mark.parametrize(
    ("amounts", "index"),
    [
        ((5, 5, 5, 5), 1),
        ((1, 0, 0, 0), 0.25),
        ((1, 1, 0, 0), 0.5),
        ((1e300, 1e300), 1),
        ((20, 80), 100**2 / (2 * 6800)),
    ],
)
def test_jains_index(amounts: tuple[float, ...], index: float) -> None:
    assert compute_jain_index(amounts) == pytest.approx(index)


@pytest.mark.parametrize("amounts", [(), (0, 0), (1, -1), (1, math.nan), (math.inf, 1)])
def test_jains_index_needs_amounts(amounts: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="amounts must be"):
        compute_jain_index(amounts)


def test_chance_within_blocks_is_not_unfair() -> None:
    """Each block favours another guest, and none in the sum."""
    blocks = [(120, 80), (80, 120)] * 10
    assert fmean(map(compute_jain_index, blocks)) < 0.97
    found = estimate_fairness(blocks)
    assert found.point == pytest.approx(1)
    assert found.low is not None
    assert found.low > 0.99
    unfair = estimate_fairness([(120 + n % 3, 80) for n in range(20)])
    assert unfair.high is not None
    assert unfair.high < 0.97
    assert estimate_fairness(blocks[:2]).low is None
    assert estimate_fairness([(3.0, 1.0), (0.0, 0.0), (0.0, 0.0)]).low is None


def test_slices_of_jobs_that_did_not_run_together_are_void() -> None:
    slices = [replace(A_SLICE, arm="guest:four", together=share) for share in (0.99, 0.97)]
    (check,) = check_together([*slices, A_SLICE])
    assert (check.check, check.ok) == ("together guest:four", True)
    (check,) = check_together([*slices, replace(A_SLICE, arm="guest:four", together=0.5)])
    assert not check.ok
    assert "set a longer runtime" in check.detail


def scenario(modes: tuple[Mode, ...], budgets: tuple[Budget, ...] = ()) -> Scenario:
    return replace(
        optane(), modes=(optane().modes[0], *modes), budgets=budgets, workloads=(parse_workload("randread-4k"),)
    )


def speed(arm: Arm, job: Job) -> float:
    """The guest beside a neighbour is three times as slow. Four guests do four times as much, and so do four fio."""
    slow = arm.in_guest and arm.mode is not None and arm.mode.neighbour is not None
    return 10_000.0 * job.iodepth * (arm.mode.guests if arm.mode else 1) / (3 if slow else 1)


def run(mode: Mode, *others: Mode, budgets: tuple[Budget, ...] = ()) -> Run:
    return synthetic_run(
        scenario=scenario((mode, *others)), speed=speed, rounds=12, budget=None, budgets=budgets, noise=0.02
    )


def cell_of(found: Run, mode: str, depth: int = 1) -> CellRecord:
    return found.cell(f"optane-{mode}-randread-4k-qd{depth}")


def test_the_neighbour_is_named_with_what_it_costs() -> None:
    shown = run(ALONE, BESIDE, budgets=(Budget("iops", difference=0.5),))
    cell = cell_of(shown, "alone-neighbour", 32)
    found = cell.metrics["clat_p99"].difference
    assert cell.against == "optane-alone-randread-4k-qd32"
    assert found is not None
    assert found.point == pytest.approx(2, rel=0.1)
    assert cell.neighbour is not None
    assert cell.neighbour.job == "randwrite-4k-qd32"
    assert len(cell.neighbour.iops) == 12
    (budget,) = cell.budget
    assert budget.verdict == "exceeds"
    (line,) = (each for each in difference_lines(shown) if each.startswith("alone-randread-4k-qd32: "))
    assert line.startswith("alone-randread-4k-qd32: p99 with the neighbour randwrite-4k-qd32: x 3.")
    assert "; IOPS x 0.3" in line
    assert line.endswith("exceeds 50 % in iops")
    assert any("with the neighbour randwrite-4k-qd32: x " in each for each in short_lines(shown))
    text = markdown_table(shown)
    assert "| `alone-randread-4k-qd32` | `randwrite-4k-qd32` | p99 |" in text
    page = render_html(shown)
    assert page.index("With a neighbour") < page.index("Overhead by mode and job")


def test_a_tail_with_and_without_the_neighbour_differs_by_the_factor_also_if_a_block_stalled() -> None:
    """A block that stalled contributes a multiple of any latency to the p99 of all blocks together."""
    shown = run(ALONE, BESIDE)
    name = "optane-alone-neighbour-randread-4k-qd32"
    metric = shown.cell(name).metrics["clat_p99"]
    guest = tuple(value * math.exp(55 if place == 3 else -5) for place, value in enumerate(metric.samples("guest")))
    changed = replace(metric, adjusted={**metric.adjusted, Place.GUEST: guest})
    cells = tuple(
        replace(cell, metrics={**cell.metrics, "clat_p99": changed}) if cell.id == name else cell
        for cell in shown.cells
    )
    (line,) = (each for each in difference_lines(replace(shown, cells=cells)) if "randread-4k-qd32: " in each)
    factor, before, after = re.findall(r": x ([\d.]+).*, ([\d ]+) to ([\d ]+) us", line)[0]
    assert int(after.replace(" ", "")) / int(before.replace(" ", "")) == pytest.approx(float(factor), rel=0.02)


def test_total_share_tail_and_fairness_of_several_guests() -> None:
    shown = run(FOUR)
    cell = cell_of(shown, "four", 32)
    assert cell.several is not None
    assert [each.number for each in cell.several.guests] == [1, 2, 3, 4]
    total = fmean(cell.metrics["iops"].guest)
    assert sum(fmean(each.guest) for each in cell.several.guests) == pytest.approx(total)
    # The made-up guests get 40, 30, 20 and 10 %.
    assert [round(each.share.point, 2) for each in cell.several.guests] == [0.4, 0.3, 0.2, 0.1]
    assert cell.several.fairness.point == pytest.approx(1 / (4 * 0.3), rel=1e-3)
    assert cell.several.host_fairness.point == pytest.approx(1)
    assert all(each.p99 is not None for each in cell.several.guests)
    assert cell.metrics["iops"].twin == ()
    (line,) = (each for each in difference_lines(shown) if each.startswith("four-randread-4k-qd32: "))
    assert line.startswith("four-randread-4k-qd32: 4 guests got ")
    assert "fairness 0.833" in line
    assert "shares 10.0 to 40.0 %" in line
    assert any(each.startswith("four-randread-4k-qd") for each in short_lines(shown))
    assert [f"| guest {number} |" in markdown_table(shown) for number in range(1, 6)] == [*[True] * 4, False]
    assert "4 guests at the same time" in render_html(shown)


def test_guests_that_share_are_not_compared_as_ways_to_attach() -> None:
    text = "\n".join(summary_lines(run(ALONE, BESIDE, FOUR)))
    assert "four" not in text.partition("cells:")[0]
    assert "alone-neighbour" in overhead_text(run(ALONE, BESIDE), width=120)


def test_fio_on_all_volumes_is_not_shown_as_the_bare_host() -> None:
    (workload,) = find_sections(run(ALONE, FOUR))[0].workloads
    series = {(each.place, each.mode): dict(each.points) for each in workload.series("throughput")}
    assert set(series) == {
        ("host", None),
        *((place, mode) for place in ("twin", "guest") for mode in ("alone", "four")),
    }
    assert series["host", None][32].point == pytest.approx(320_000, rel=0.05)
    assert series["twin", "four"][32].point == pytest.approx(4 * 320_000, rel=0.05)
    assert not [
        arm for arm in average_costs([cell for cell in workload.cells if cell.mode == "four"]) if arm.mode is None
    ]


def test_a_slice_has_the_jobs_of_its_arm() -> None:
    assert len(Slice(1, ScheduledArm(Arm(Place.TWIN, FOUR)), JOB, 0.0).parts) == 4
