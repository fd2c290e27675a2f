"""What the next run is announced to take, from what the last ones took."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from harness.features.breakdown.measuring import estimate_seconds
from harness.lab.inventory import HostSpec
from harness.measure.phases import MOST_RUNS, Timing, add_pace, identify_host, pace_file, read_paces
from harness.scenario.plan import Plan, plan_for
from harness.scenario.setups import LAB_SECONDS, START_SECONDS, Kind, Pace, Paces, pace_of
from harness.scenario.timetable import ScheduledArm, Timetable, timetables
from tests.build import optane
from tests.unit import killed_campaign

EMBEDDED = HostSpec("lab", "embedded", None, (), simulated="everything")
LOCAL = HostSpec("node1", "local", None, ())


def a_plan() -> Plan:
    return plan_for(optane(), "smoke").on(Paces({}), None)


def ratios(boot: float, *scenarios: str) -> Pace:
    return Pace(scenarios or ("optane",), {"boot": boot})


def test_without_an_earlier_run_the_usual_times_count() -> None:
    assert Paces.of((), ("optane",), simulated=True).seconds({"boot": 10.0}) == 10.0
    real = Paces.of((), ("optane",), simulated=False)
    assert real.seconds({"lab": 10.0}) < 10.0, "a real host is not booted"


def test_the_median_of_the_last_runs_counts_so_that_one_under_load_does_not() -> None:
    runs = [ratios(9.0), *(ratios(2.0 + number / 10) for number in range(4)), *[ratios(50.0)] * 9]
    assert Paces.of(runs, ("optane",), simulated=True).of_kind("boot") == pytest.approx(2.2)


def test_runs_of_the_same_scenarios_count_more_than_others() -> None:
    runs = [ratios(5.0, "arrays"), ratios(5.0, "arrays"), ratios(2.0, "optane")]
    assert Paces.of(runs, ("optane",), simulated=True).of_kind("boot") == 2.0
    assert Paces.of(runs, ("raid0",), simulated=True).of_kind("boot") == 5.0
    building = [Pace(("optane",), {"build": 4.0}), Pace(("hdd",), {"build": 3.0})]
    assert Paces.of(building, ("optane",), simulated=True).of_kind("build") == 4.0
    assert Paces.of(building, ("raid0",), simulated=True).of_kind("build") == 1.0, "other layouts"


def test_what_took_no_time_says_nothing_about_the_pace() -> None:
    assert pace_of(["optane"], {"boot": 10.0, "end": 0.5}, {"boot": 15.0, "end": 3.0}).ratios == {"boot": 1.5}


def test_a_run_is_stored_by_its_host(own_paces: Path) -> None:
    own_paces.unlink(missing_ok=True)
    assert pace_file() == own_paces
    for number in range(MOST_RUNS + 3):
        add_pace(EMBEDDED, ratios(float(number)))
    add_pace(LOCAL, ratios(0.5))
    assert [each.ratios["boot"] for each in read_paces(EMBEDDED)][:2] == [MOST_RUNS + 2, MOST_RUNS + 1]
    assert len(read_paces(EMBEDDED)) == MOST_RUNS
    assert read_paces(LOCAL) == (ratios(0.5),)
    assert identify_host(LOCAL) != identify_host(replace(LOCAL, name="node2"))


def test_a_damaged_file_is_as_none(own_paces: Path) -> None:
    own_paces.write_text("{")
    assert read_paces(EMBEDDED) == ()
    add_pace(EMBEDDED, ratios(1.0))
    assert read_paces(EMBEDDED) == (ratios(1.0),)


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    add_pace(EMBEDDED, ratios(1.0), tmp_path / "file" / "paces.json")


def measured(timing: Timing, plan: Plan, beside: float) -> list[Timetable]:
    """The timetables of a round, each of which took so many seconds beside its slices."""
    (group,) = plan.groups
    turns = {job: [ScheduledArm(arm) for arm in group.arms if job in group.jobs_of(arm)] for job in group.jobs}
    tables = timetables(turns, group.blocks, chance=random.Random("paces"), pause=group.usual_pause)
    for table in tables:
        timing.ran(group, table, table.seconds + beside)
    return tables


def test_what_is_left_follows_from_the_pace_of_the_timetables_so_far() -> None:
    plan = a_plan()
    slow, usual = Timing([plan]), Timing([plan])
    tables = measured(slow, plan, 5 * START_SECONDS)
    measured(usual, plan, START_SECONDS)
    assert usual.seconds_of(tables) == pytest.approx(
        sum(table.seconds for table in tables) + len(tables) * START_SECONDS
    )
    assert slow.seconds_of(tables) > usual.seconds_of(tables) + len(tables) * START_SECONDS


def test_a_run_that_was_slow_makes_the_next_announcement_longer() -> None:
    plan = a_plan()
    timing = Timing([plan])
    measured(timing, plan, 4 * START_SECONDS)
    usual = plan.work(0)
    phases = {"layouts": 3 * usual["build"], "boot": 2 * usual["boot"], "condition": usual["condition"]}
    found = timing.pace(phases, 0.0)
    assert found.ratios["build"] == pytest.approx(3)
    assert found.ratios["boot"] == pytest.approx(2)
    assert found.ratios["start"] == pytest.approx(4)
    assert "fio" not in found.ratios
    known: dict[Kind, float] = {**Paces.of([found], ["optane"], simulated=True).ratios}
    assert plan.on(Paces(known), None).minutes > plan.minutes


def test_breakdowns_are_part_of_the_announcement() -> None:
    plan = a_plan()
    traced = estimate_seconds(plan)
    assert traced > 0
    longer = plan.on(plan.paces, None, further_seconds=traced)
    assert (longer.minutes - plan.minutes) * 60 == pytest.approx(traced)


def test_the_remaining_time_counts_everything_that_follows_the_group() -> None:
    plan = plan_for(killed_campaign.scenario(), "smoke").on(Paces({}), None)
    timing = Timing([plan])
    first, *others = plan.groups
    alone = timing.after(first, {each.id for each in others})
    assert alone == pytest.approx(plan.setup_of(first).end_seconds)
    assert timing.after(first, ()) >= alone


def test_a_lab_that_runs_already_is_not_booted_and_says_nothing_about_its_boots() -> None:
    runs = [Pace(("optane",), {"lab": 2.0})]
    assert Paces.of(runs, ("optane",), simulated=True).of_kind("lab") == 2.0
    assert Paces.of(runs, ("optane",), simulated=True, running=True).of_kind("lab") < 0.5
    plan = plan_for(optane(), "smoke").on(Paces.of((), (), simulated=True), None)
    assert "lab" not in Timing([plan]).pace({"lab": 2.0}, 0.0).ratios
    assert Timing([plan]).pace({"lab": 2 * LAB_SECONDS}, 0.0).ratios["lab"] == pytest.approx(2)
