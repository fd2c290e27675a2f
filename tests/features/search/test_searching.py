"""Searches for the highest load: a campaign on a disk whose latency follows from the load, and what is stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.events import Event, Note
from harness.features.search.curve import LimitedBy
from harness.features.search.request import PlannedSearch, SearchArm, SearchRecord
from harness.measure.series import RoundSegment
from harness.model.mode import Place
from harness.results import Measurement, Run, RunStore
from harness.scenario.plan import describe_plan
from harness.scenario.setups import Group
from harness.scenario.timetable import Slice
from tests.build import RUN_ID
from tests.features.search.queueing import CAPACITY, CPU, FULL_SPEED, Queue, known_answer, searched_run, searching
from tests.unit import killed_campaign
from tests.unit.killed_campaign import campaign, measured


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.chdir(tmp_path)
    killed_campaign.record()
    return RunStore.create(tmp_path / "reports", RUN_ID)


def arms(run: Run) -> dict[str, SearchArm]:
    (search,) = run.of(SearchRecord)
    return {each.arm: each for each in search.arms}


def test_the_search_finds_the_load_at_which_a_known_queue_reaches_the_bound(store: RunStore) -> None:
    found = arms(searched_run(store, searching()))
    for arm, place in (("host", Place.HOST), ("guest:passthrough", Place.GUEST)):
        own, answer = found[arm], known_answer(place)
        assert own.limited_by is LimitedBy.BOUND
        assert own.iops == pytest.approx(answer, rel=0.01)
        assert own.low is not None
        assert own.high is not None
        assert own.low < answer < own.high
        assert own.high / own.low < 1.05


def test_each_arm_is_measured_at_its_own_rates_and_only_while_it_needs_them(store: RunStore) -> None:
    found = arms(searched_run(store, searching()))
    rates = {arm: [each.rate for each in own.rates if each.rate is not None] for arm, own in found.items()}
    assert max(rates["guest:passthrough"]) < CAPACITY[Place.GUEST] < max(rates["host"])
    assert len(set(rates["host"]) & set(rates["guest:passthrough"])) < 2
    for own in found.values():
        near = [each for each in own.rates if own.low and own.high and own.low <= each.iops[0] <= own.high]
        assert all(len(each.iops) >= 8 for each in near)


def test_the_cpu_time_of_an_io_is_known_at_each_rate(store: RunStore) -> None:
    for own in arms(searched_run(store, searching())).values():
        assert [each.cpu for each in own.rates] == [pytest.approx(CPU)] * len(own.rates)


def test_a_search_ends_at_the_highest_rate_that_the_scenario_allows(store: RunStore) -> None:
    found = arms(searched_run(store, searching(highest=60_000)))
    host, guest = found["host"], found["guest:passthrough"]
    assert (host.limited_by, host.iops, host.high) == (LimitedBy.HIGHEST, 60_000, None)
    assert max(each.rate or 0 for each in host.rates) == 60_000
    assert guest.limited_by is LimitedBy.BOUND


def test_an_arm_that_keeps_the_bound_at_full_speed_sustains_its_full_speed(store: RunStore) -> None:
    found = arms(searched_run(store, searching(bound=0.1)))["host"]
    assert found.limited_by is LimitedBy.FULL_SPEED
    assert found.iops == pytest.approx(FULL_SPEED * CAPACITY[Place.HOST])


def test_a_bound_below_every_latency_gives_no_load(store: RunStore) -> None:
    found = arms(searched_run(store, searching(bound=1e-6)))["host"]
    assert (found.limited_by, found.iops, found.low) == (LimitedBy.LOWEST, None, None)
    assert found.high is not None
    assert found.high < 1000


def test_slices_at_low_rates_are_long_enough_for_the_percentile() -> None:
    (planned,) = killed_campaign.plan(searching()).follow_ups
    assert isinstance(planned, PlannedSearch)
    slow, fast = planned.job_at(200, 50_000, ramp=0), planned.job_at(20_000, 50_000, ramp=0)
    assert slow.seconds * 200 >= 1000
    assert fast.seconds == planned.job.seconds


def test_the_plan_counts_the_time_and_the_bytes_of_its_searches() -> None:
    plain, reading = killed_campaign.plan(killed_campaign.scenario()), killed_campaign.plan(searching())
    writing = killed_campaign.plan(searching(workload=killed_campaign.scenario().workloads[1]))
    assert "3 rounds, 1 x highest load: about" in describe_plan(reading.with_rounds(3))
    assert reading.minutes > plain.minutes
    assert reading.most_minutes == pytest.approx(plain.most_minutes + 10)
    assert reading.write_bytes == plain.write_bytes
    assert writing.write_bytes > plain.write_bytes


def test_a_search_ends_when_its_time_is_spent(store: RunStore) -> None:
    stopped = searched_run(store, searching(time_limit=1e-9)).of(SearchRecord)[0]
    assert stopped.rounds == 1
    assert stopped.stopped == "time_limit = 1 ns"


def test_the_cells_are_the_same_as_without_a_search(store: RunStore, tmp_path: Path) -> None:
    plain = searched_run(RunStore.create(tmp_path / "plain", RUN_ID), replace(searching(), requests=()))
    assert searched_run(store, searching()).cells == plain.cells


class Ends(Queue):
    """Is interrupted in the third round of the search."""

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        if "search" in group.id and segment.number == 3:
            raise KeyboardInterrupt
        return super().measure(group, segment, began)


def test_a_resumed_search_continues_with_its_whole_rounds(store: RunStore) -> None:
    interrupted = campaign(store, resume=False, of=searching(), measurer=Ends)
    with pytest.raises(KeyboardInterrupt):
        measured(interrupted)
    begun = interrupted.close(interrupted=True).of(SearchRecord)[0]
    assert (begun.rounds, begun.stopped) == (2, None)
    heard: list[Event] = []
    resumed = measured(campaign(store, resume=True, of=searching(), heard=heard.append, measurer=Queue))
    assert resumed.of(SearchRecord)[0].stopped is not None
    assert arms(resumed)["host"].limited_by is LimitedBy.BOUND
    assert sum("search-busy" in each.text for each in heard if isinstance(each, Note)) == 1
    rounds = [each.round for each in store.read_journal().rounds if "search" in each.group and each.event == "begun"]
    assert rounds == list(range(1, len(rounds) + 1))


def test_a_finished_run_is_searched_when_its_scenario_gets_a_search(store: RunStore) -> None:
    plain = replace(searching(), requests=())
    assert searched_run(store, plain).of(SearchRecord) == ()
    added = measured(campaign(store, resume=True, of=searching(), measurer=Queue))
    assert arms(added)["host"].limited_by is LimitedBy.BOUND
