"""A run that another shell follows: what it reads of the files while a campaign writes them."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli import main
from harness.events import Event, Events, GroupMeasured
from harness.features.watch.commands import log_lines, looks
from harness.features.watch.progress import QUIET_SECONDS, read_progress, watch_lines
from harness.measure import recorder
from harness.measure.campaign import Campaign
from harness.measure.phases import Phases
from harness.measure.resume import Earlier
from harness.measure.series import CampaignSpec
from harness.results import RunStore
from harness.results.records import Planned
from harness.results.store import JournalTail
from tests.build import RUN_ID
from tests.unit import killed_campaign
from tests.unit.killed_campaign import HOST, plan, record
from tests.unit.recorded_campaign import RecordedMeasurer

OLD_RUN = Path(__file__).parents[2] / "unit" / "data" / "stored_run"


@pytest.fixture
def heard() -> list[Event]:
    return []


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: list[Event]) -> Campaign:
    """Two scenarios on one host; nothing is measured yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recorder, "WRITING_SHARE", math.inf)  # results.json is always up to date
    record()
    scenarios = {name: replace(killed_campaign.scenario(), name=name) for name in ("first", "second")}
    plans = tuple(map(plan, scenarios.values()))
    spec = CampaignSpec(RUN_ID, HOST, plans, scenarios, "smoke", seed=7, command="pytest")
    store, phases = RunStore.create(tmp_path / "reports", RUN_ID), Phases(Events(heard.append))
    return Campaign(spec, store, RecordedMeasurer(spec, store, None, phases), phases, Earlier())


def measure(campaign: Campaign, *numbers: int) -> None:
    """Measure the groups of these numbers."""
    groups = [group for each in campaign.spec.plans for group in each.groups]
    for number in numbers:
        for cell in groups[number].cells:
            campaign.record(cell)


def test_the_state_is_that_of_the_stored_files(campaign: Campaign) -> None:
    store, groups = campaign.store, [group.id for each in campaign.spec.plans for group in each.groups]
    measure(campaign, 0)
    last = max(each.started + each.wall for each in store.read_journal().measurements)
    state = read_progress(store.read_results(), store.read_journal(), now=last + 1)
    assert (state.run, state.status, state.ended) == (RUN_ID, "running", False)
    assert (state.groups, state.planned_groups, state.rounds) == (1, len(groups), 2)
    planned = Planned.of(store.read_results())
    assert planned is not None
    assert [group.id for group in planned.groups] == groups
    assert state.left_s is not None
    assert 0 < state.left_s < planned.seconds
    assert all(verdict.startswith("first-") for verdict in state.verdicts)
    assert state.verdicts
    lines = list(watch_lines(state))
    assert lines[:2] == [f"run {RUN_ID}: running", "now: preparing, or between two rounds"]
    assert any(line.startswith("remaining: about ") for line in lines)
    assert not any(line.startswith("no new measurement") for line in lines)
    silent = read_progress(store.read_results(), store.read_journal(), now=last + QUIET_SECONDS + 1)
    assert any(line.startswith("no new measurement for 10 min 1 s: ") for line in watch_lines(silent))


def test_after_each_group_the_listeners_hear_its_verdicts_and_how_far_the_run_is(
    campaign: Campaign, heard: list[Event]
) -> None:
    measure(campaign, 0, 2)
    groups = [group.id for each in campaign.spec.plans for group in each.groups]
    assert [each for each in heard if isinstance(each, GroupMeasured)] == [
        GroupMeasured(groups[0], 2, 8, "1 within"),
        GroupMeasured(groups[2], 4, 8, "1 within"),
    ]


def test_the_round_that_is_measured_is_named_with_its_newest_slice(campaign: Campaign, tmp_path: Path) -> None:
    measure(campaign, 0)
    lines = campaign.store.journal_path.read_text().splitlines(keepends=True)
    begun = max(number for number, line in enumerate(lines) if json.loads(line).get("event") == "begun")
    part = RunStore(shutil.copytree(campaign.store.path, tmp_path / "part"))
    part.journal_path.write_text("".join(lines[: begun + 2]))
    state = read_progress(part.read_results(), part.read_journal(), now=0.0)
    event, newest = json.loads(lines[begun]), json.loads(lines[begun + 1])
    assert state.current.startswith(f"{event['group']}, round 2 of 2: ")
    assert state.current.endswith(f"1 of {event['measurements']} slices, newest {newest['job']} in {newest['arm']}")


def test_a_follower_sees_each_change_and_ends_with_the_run(campaign: Campaign) -> None:
    steps = iter((lambda: measure(campaign, 2, 3), lambda: None, lambda: campaign.close(interrupted=False)))
    measure(campaign, 0, 1)
    lines = list(log_lines(looks(campaign.store, pause=lambda _: next(steps)())))
    assert [line.partition("; ")[0] for line in lines[:2]] == [f"run {RUN_ID}: running"] * 2
    assert "done: 4 rounds in 2 of 4 groups" in lines[0]
    assert "done: 8 rounds in 4 of 4 groups" in lines[1]
    assert lines[2:4] == [f"run {RUN_ID}: complete", "done: 8 rounds in 4 of 4 groups"]
    assert next(steps, None) is None


def test_a_run_whose_process_was_killed_is_not_followed_for_ever(campaign: Campaign) -> None:
    measure(campaign, 0, 1)
    followed = looks(campaign.store, pause=lambda _: campaign.store.release())
    assert next(followed).status == "running"
    (killed,) = followed
    assert list(watch_lines(killed))[:2] == [
        f"run {RUN_ID}: killed",
        "no process measures it any more; to go on, add to the same command: --resume=RUN",
    ]


def test_only_what_is_new_in_the_journal_is_read_and_a_line_without_its_end_is_read_again(tmp_path: Path) -> None:
    store = RunStore(shutil.copytree(OLD_RUN, tmp_path / "run"))
    text = store.journal_path.read_text()
    whole = store.read_journal()
    tail = JournalTail(store)
    for end in (0, 1, 700, 9000, len(text) - 1, len(text)):
        store.journal_path.write_text(text[:end])
        found = tail.read()
    assert (found.measurements, found.rounds, found.notes) == (whole.measurements, whole.rounds, ())


def test_a_run_of_an_older_version_is_followed_without_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(OLD_RUN, tmp_path / "reports" / "old")
    assert main(["watch", "old", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["planned_groups"], found["groups"], found["left_s"]) == ("complete", None, 1, 0.0)
    assert main(["watch", "reports/old"]) == 0
    assert "done: 1 round in 1 group" in capsys.readouterr().out
