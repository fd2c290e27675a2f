"""A run that was killed at any moment goes on: whole rounds count, nothing is measured twice or written over."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from harness.errors import GuestError, ResultsError
from harness.events import Event, Note
from harness.measure.resume import earlier_part
from harness.measure.series import LabFound, PreparedGroup, RoundSegment
from harness.report.html import write_report
from harness.results import Journal, Measurement, Run, RunStore
from harness.scenario.plan import Plan
from harness.scenario.setups import Group
from harness.scenario.timetable import Slice
from tests.build import RUN_ID
from tests.unit.killed_campaign import HOST, ROUNDS, campaign, kept_at_every_moment, measured, plan, scenario
from tests.unit.recorded_campaign import RecordedMeasurer

ROOT = Path(__file__).parents[2]

ALWAYS, SELDOM = 1e9, 1e-9
"""Shares of the time that writing results.json may take: after each round, and only where --resume needs it."""


@pytest.fixture(scope="module")
def campaigns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a campaign for each moment at which one was killed, and a whole one."""
    return killed_campaigns(tmp_path_factory.mktemp("campaigns"), ALWAYS)


@pytest.fixture(scope="module")
def campaigns_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, but their results.json has nothing that was measured before the end."""
    return killed_campaigns(tmp_path_factory.mktemp("behind"), SELDOM)


def killed_campaigns(here: Path, share: float) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        kept_at_every_moment(share)
    return here


@pytest.fixture(autouse=True)
def _here(campaigns: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(campaigns)


@pytest.fixture
def whole(campaigns: Path, tmp_path: Path) -> RunStore:
    """A copy of the run that was not killed."""
    return copied(campaigns / "whole", tmp_path)


def copied(reports: Path, to: Path) -> RunStore:
    shutil.copytree(reports, to / reports.name, symlinks=True)
    return RunStore.open(to / reports.name / RUN_ID)


def keys(journal: Journal) -> list[tuple[object, ...]]:
    return [(each.group, each.round, each.arm, each.job, each.repeat) for each in journal.measurements]


def whole_rounds(journal: Journal) -> set[tuple[str, int]]:
    """By group and number, what the journal shows by itself: as many measurements as were announced."""
    found = Counter((each.group, each.round) for each in journal.measurements)
    return {
        (begun.group, begun.round)
        for begun in journal.rounds
        if begun.event == "begun" and begun.measurements == found[begun.group, begun.round]
        if begun.round not in journal.abandoned(begun.group)
    }


def files(store: RunStore) -> dict[str, tuple[str, int]]:
    """The raw outputs: content and when they were written."""
    raw = store.path / "raw"
    return {path.name: (path.read_text(), path.stat().st_mtime_ns) for path in raw.iterdir()}


def require_resumed(store: RunStore, heard: list[Event] | None = None) -> Run:
    """Resume the run, and check all that must hold whenever it was killed."""
    before, raw = store.read_journal(), files(store)
    write_report(store)  # What there is can be shown before it goes on.
    measured(campaign(store, resume=True, heard=(heard if heard is not None else []).append))
    run, after = store.read_results(), store.read_journal()
    assert run.run.status == "complete"
    assert len(keys(after)) == len(set(keys(after)))
    assert after.measurements[: len(before.measurements)] == before.measurements
    assert whole_rounds(before) <= whole_rounds(after)
    for group in plan().groups:
        numbers = {number for name, number in whole_rounds(after) if name == group.id}
        assert len(numbers) == ROUNDS
        assert {each.round for each in after.rounds if each.group == group.id} - numbers == after.abandoned(group.id)
        assert all(run.cell(cell.id).rounds == tuple(sorted(numbers)) for cell in group.cells)
        (record,) = (each for each in run.groups if each.id == group.id)
        assert (record.rounds, record.abandoned) == (tuple(sorted(numbers)), tuple(sorted(after.abandoned(group.id))))
    now = files(store)
    assert {name: now[name] for name in raw} == raw
    return run


def killed(campaigns: Path) -> Iterator[Path]:
    yield from sorted(campaigns.glob("killed-*"), key=lambda path: int(path.name.partition("-")[2]))


# --- killed at a moment ---


def require_resumed_from_every_moment(campaigns: Path, tmp_path: Path) -> int:
    """Returns the largest number of whole rounds that the journal had and results.json did not have."""
    resumed, behind = 0, 0
    for reports in killed(campaigns):
        store = copied(reports, tmp_path)
        if store.results_path.exists():
            shown = sum(len(group.rounds) for group in store.read_results().groups)
            behind = max(behind, len(whole_rounds(store.read_journal())) - shown)
            require_resumed(store)
            resumed += 1
        else:
            # Only before anything is built: there is nothing to lose.
            assert not store.journal_path.exists()
            with pytest.raises(ResultsError, match="does not exist"):
                campaign(store, resume=True)
    assert resumed > 35
    return behind


def test_a_run_goes_on_from_every_moment_at_which_it_wrote_something(campaigns: Path, tmp_path: Path) -> None:
    assert require_resumed_from_every_moment(campaigns, tmp_path) == 1


def test_a_run_goes_on_if_only_its_journal_has_the_rounds(campaigns_behind: Path, tmp_path: Path) -> None:
    assert require_resumed_from_every_moment(campaigns_behind, tmp_path) == ROUNDS * len(plan().groups)


def test_a_run_that_was_killed_and_killed_again_goes_on(campaigns: Path, tmp_path: Path) -> None:
    reports = [path for path in killed(campaigns) if (path / RUN_ID / "journal.jsonl").exists()][25]
    store = copied(reports, tmp_path)
    subprocess.run(
        [sys.executable, "-m", "tests.unit.killed_campaign", str(store.path), "3"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
        check=True,
    )
    require_resumed(store)


@pytest.mark.parametrize("cut", [0, 1, 40, -1], ids=["between lines", "1 byte", "40 bytes", "all but its end"])
def test_a_journal_goes_on_after_each_of_its_lines_and_within_the_next(
    campaigns: Path, whole: RunStore, tmp_path: Path, cut: int
) -> None:
    begun = next(path for path in killed(campaigns) if (path / RUN_ID / "results.json").exists())
    lines = whole.journal_path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines):
        store = copied(begun, tmp_path / f"{number}")
        part = line.rstrip()[:cut] if cut else b""
        store.journal_path.write_bytes(b"".join(lines[:number]) + part)
        for raw in (each.raw for each in store.read_journal().measurements):
            shutil.copy2(whole.path / raw, store.path / raw)
        notes = store.read_journal().notes
        assert len(notes) == bool(part)
        heard: list[Event] = []
        require_resumed(store, heard)
        assert [event.text for event in heard if isinstance(event, Note)] == list(notes)
        require_finished(store)


def require_finished(store: RunStore) -> None:
    """Resuming it measures nothing, and leaves results and journal as they are."""
    files_before = files(store)
    results, journal = store.results_path.read_bytes(), store.journal_path.read_bytes()
    assert store.read_results().run.status == "complete"
    measured(campaign(store, resume=True))
    assert (store.results_path.read_bytes(), store.journal_path.read_bytes()) == (results, journal)
    assert files(store) == files_before


# --- a run that was measured to its end ---


def test_a_complete_run_is_left_as_it_is(whole: RunStore) -> None:
    require_finished(whole)


def test_a_run_that_was_killed_after_its_last_round_is_complete_without_another_one(whole: RunStore) -> None:
    journal = whole.journal_path.read_bytes()
    run = whole.read_results()
    whole.write_results(replace(run, run=replace(run.run, status="running", finished=None)))
    measured(campaign(whole, resume=True))
    assert whole.journal_path.read_bytes() == journal
    assert whole.read_results().run.status == "complete"
    # Killed before the last group was assembled: as after the last round.
    last = replace(run.groups[-1], stopped=None)
    whole.write_results(replace(run, run=replace(run.run, status="running"), groups=(*run.groups[:-1], last)))
    measured(campaign(whole, resume=True))
    assert whole.journal_path.read_bytes() == journal
    assert whole.read_results().groups == run.groups


def test_a_complete_run_is_judged_anew_by_another_budget_without_another_round(whole: RunStore) -> None:
    journal = whole.journal_path.read_bytes()
    measured(campaign(whole, resume=True, of=scenario(budget=0.5)))
    assert whole.journal_path.read_bytes() == journal
    assert {budget.share for cell in whole.read_results().cells for budget in cell.budget} == {0.5}


def test_a_complete_run_that_has_its_evaluation_as_text_is_judged_anew_without_another_round(whole: RunStore) -> None:
    journal = whole.journal_path.read_bytes()
    run = whole.read_results()
    # As stored by version 0.1.
    text: JsonValue = {"optane": "2 to 2 rounds, target None, time limit None, (BudgetRule(metric='iops'),), ()"}
    whole.write_results(replace(run, provenance=run.provenance | {"evaluation": text}))
    again = measured(campaign(whole, resume=True))
    assert whole.journal_path.read_bytes() == journal
    assert again.run.status == "complete"
    assert again.provenance["evaluation"] == run.provenance["evaluation"]
    assert again.cells == run.cells
    require_finished(whole)


def test_a_complete_run_goes_on_where_more_rounds_are_asked_for(whole: RunStore) -> None:
    run = measured(campaign(whole, resume=True, of=scenario(rounds=3)))
    assert {cell.rounds for cell in run.cells} == {(1, 2, 3)}


# --- a round that fails ---


class LosesGuest(RecordedMeasurer):
    """Its guest is lost in round 2 of each group, after all of it was measured."""

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        found = super().measure(group, segment, began)
        measured = [each for each in self.store.read_journal().measurements if each.round == 2]
        if segment.number == 2 and len({each.arm for each in measured}) == len(group.arms):
            raise GuestError("the guest was lost")
        return found


def test_a_round_that_failed_is_abandoned_with_the_reason_and_its_number_is_not_used_again(
    tmp_path: Path,
) -> None:
    failing = campaign(store := RunStore.create(tmp_path, RUN_ID), resume=False, measurer=LosesGuest)
    with pytest.raises(GuestError):
        measured(failing)
    run = failing.close(interrupted=False)
    assert run.run.status == "failed"
    (abandoned,) = (each for each in store.read_journal().rounds if each.event == "abandoned")
    assert (abandoned.round, abandoned.why) == (2, "the guest was lost")
    assert {cell.rounds for cell in run.cells} == {(1,)}
    assert (run.groups[0].rounds, run.groups[0].abandoned) == ((1,), (2,))
    write_report(store)
    assert "1 round, without an interim look. Abandoned and not counted: round 2." in store.report_path.read_text()
    assert require_resumed(store).groups[0].rounds == (1, 3)


# --- what is stored of a run that goes on, until the lab is reached ---


class DoesNotBoot(RecordedMeasurer):
    def prepare(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> PreparedGroup:  # noqa: ARG002
        raise GuestError("it did not boot")


def test_results_stay_as_they_are_where_a_resumed_run_does_not_reach_its_lab(campaigns: Path, tmp_path: Path) -> None:
    reports = [path for path in killed(campaigns) if (path / RUN_ID / "journal.jsonl").exists()][30]
    store = copied(reports, tmp_path)
    before = store.results_path.read_bytes(), store.journal_path.read_bytes()
    failing = campaign(store, resume=True, measurer=DoesNotBoot)
    with pytest.raises(GuestError):
        measured(failing)
    failing.close(interrupted=False)
    assert (store.results_path.read_bytes(), store.journal_path.read_bytes()) == before
    require_resumed(store)


# --- a journal that is damaged ---


def middle(campaigns: Path, tmp_path: Path) -> RunStore:
    """A run whose results have rounds of both groups, killed in the middle of another one."""
    stores = [RunStore(path / RUN_ID) for path in killed(campaigns)]
    found = next(
        store
        for store in reversed(stores)
        if store.results_path.exists() and store.read_journal().unfinished and len(store.read_results().groups) == 2
    )
    return copied(found.path.parent, tmp_path)


def change_lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[RunStore], None]:
    def damage(store: RunStore) -> None:
        lines = change(store.journal_path.read_bytes().splitlines(keepends=True))
        store.journal_path.write_bytes(b"".join(lines))

    return damage


def change_measurement(**values: JsonValue) -> Callable[[RunStore], None]:
    """The second line of the journal, which is its first measurement, with these values."""
    return change_lines(
        lambda lines: [lines[0], json.dumps(json.loads(lines[1]) | values).encode() + b"\n", *lines[2:]]
    )


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (change_lines(lambda lines: [lines[0][:40] + b"\n", *lines[1:]]), "lacks round 1 of optane-batch1"),
        (change_lines(lambda lines: [lines[0], b"\0" * len(lines[1]), *lines[1:]]), "lacks round 1 of optane-batch1"),
        (change_lines(lambda lines: [*lines[:2], lines[1], *lines[3:]]), "lacks round 1 of optane-batch1"),
        (change_lines(lambda _: []), "lacks rounds 1, 2 of optane-batch1"),
        (lambda store: store.journal_path.unlink(), "lacks rounds 1, 2 of optane-batch1"),
        (change_measurement(raw="raw/of-another-run.json"), r"is missing, raw/of-another-run\.json"),
        (change_measurement(started=1e11), "began in the future"),
        (lambda store: shutil.rmtree(store.path / "raw"), "fio's output .* is missing"),
    ],
    ids=["a cut begin", "zeros", "a copy in its place", "empty", "missing", "another run", "future", "no raw outputs"],
)
def test_a_run_whose_journal_lacks_what_its_results_have_stays_as_it_is(
    campaigns: Path, tmp_path: Path, damage: Callable[[RunStore], None], why: str
) -> None:
    store = middle(campaigns, tmp_path)
    damage(store)
    before = store.results_path.read_bytes()
    with pytest.raises(ResultsError, match=why) as refused:
        measured(campaign(store, resume=True))
    assert "cannot be resumed" in refused.value.message
    assert "restore it from a backup" in (refused.value.hint or "")
    assert store.results_path.read_bytes() == before


def test_a_round_that_was_abandoned_does_not_count_if_the_journal_lost_that(campaigns: Path, tmp_path: Path) -> None:
    store = middle(campaigns, tmp_path)
    run = store.read_results()
    first = replace(run.groups[0], abandoned=(1,))
    store.write_results(replace(run, groups=(first, *run.groups[1:])))
    with pytest.raises(ResultsError, match=r"its results have abandoned round 1 of optane-batch1"):
        campaign(store, resume=True)


def test_a_measurement_that_the_journal_has_twice_counts_once(campaigns: Path, tmp_path: Path) -> None:
    store = middle(campaigns, tmp_path)
    change_lines(lambda lines: [*lines[:2], *lines[1:]])(store)
    run = measured(campaign(store, resume=True))
    assert run.groups[0].rounds == (1, 2)
    assert {cell.rounds for cell in run.cells if cell.id.endswith("randread-4k-qd32")} == {(1, 2)}


WRONG: Sequence[JsonValue] = (None, "x", "", True, -1, -0.5, 0, 2, 1e40, math.nan, 1 << 70, [], {}, [1], {"x": 1})


def mutations(value: JsonValue) -> Iterator[JsonValue]:
    """The value with one of its parts left out, or replaced by something else."""
    yield from (wrong for wrong in WRONG if wrong != value)
    if isinstance(value, dict):
        for key, inner in list(value.items())[:6]:
            rest = {name: of for name, of in value.items() if name != key}
            yield rest
            yield {**rest, f"{key}-x": inner}
            yield from ({**value, key: mutated} for mutated in mutations(inner))


def places(journal: Journal) -> set[tuple[object, ...]]:
    """What the whole rounds have, without the values."""
    whole = whole_rounds(journal)
    return {
        (each.group, each.round, each.job, each.arm, each.repeat, each.block)
        for each in journal.measurements
        if (each.group, each.round) in whole
    }


def resume_or_refuse(store: RunStore) -> Journal | ResultsError:
    try:
        return earlier_part(store, HOST.name, "smoke")[0].journal
    except ResultsError as error:
        return error


def test_a_changed_line_loses_nothing_or_is_refused_with_its_number(campaigns: Path, tmp_path: Path) -> None:
    store = middle(campaigns, tmp_path)
    lines = store.journal_path.read_bytes().splitlines(keepends=True)
    before = places(store.read_journal())
    refused = 0
    for number in (1, 2, len(lines) // 2):
        document = json.loads(lines[number - 1])
        # The begin of a round says what each of its lines must be.
        named = r"line \d" if number == 1 else rf"line {number}\b"
        for mutated in (item for item in mutations(document) if isinstance(item, dict)):
            changed = json.dumps(mutated).encode() + b"\n"
            store.journal_path.write_bytes(b"".join([*lines[: number - 1], changed, *lines[number:]]))
            journal = resume_or_refuse(store)
            if isinstance(journal, Journal):
                assert places(journal) == before, mutated
            else:
                assert "journal.jsonl" in journal.message
                assert re.search(rf"{named}|lacks round|is missing", journal.message), journal.message
                assert journal.hint
                refused += "line" in journal.message
    assert refused > 100


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"job": "randread-4k-qd33"}, r"line 2 of journal.jsonl \(randread-4k-qd33 by \w+.*\) was not planned"),
        ({"arm": "guest:lvm"}, r"line 2 of journal.jsonl \(randread-4k-qd32 by guest:lvm, block 1\) was not planned"),
        ({"block": 99}, r"line 2 of journal.jsonl \(.*, block 99\) was not planned in round 1 of optane"),
        ({"repeat": 2}, "line 2 of journal.jsonl"),
        ({"longer_s": 1.0}, "line 3 of journal.jsonl"),
        ({"started": -1.0}, "line 2: started = -1.0"),
        ({"seconds": -1.0}, "line 2: seconds = -1.0"),
        ({"wall": math.nan}, "line 2: wall = nan: the number is too large, or not finite"),
        ({"histogram": {"1000": -1}}, "line 2: histogram.1000 = -1"),
        ({"histogram": {"-1000": 1}}, "line 2: histogram"),
        ({"io_bytes": 1 << 80}, "line 2: io_bytes = .*: the number is too large"),
        ({"group": "optane-batch9"}, "lacks round 1 of optane-batch1"),
    ],
)
def test_a_line_of_something_that_the_run_does_not_have_is_refused(
    campaigns: Path, tmp_path: Path, changes: dict[str, JsonValue], why: str
) -> None:
    store = middle(campaigns, tmp_path)
    change_measurement(**changes)(store)
    before = store.results_path.read_bytes()
    with pytest.raises(ResultsError, match=why):
        measured(campaign(store, resume=True))
    assert store.results_path.read_bytes() == before


def test_the_line_is_named_also_if_many_slices_have_the_same_output_of_fio(campaigns: Path, tmp_path: Path) -> None:
    store = middle(campaigns, tmp_path)
    documents = [json.loads(line) for line in store.journal_path.read_text().splitlines()]
    slices = [document for document in documents if "raw" in document]
    for slice_ in slices:
        slice_["raw"] = slices[0]["raw"]
    slices[-1]["block"] = 99
    at = documents.index(slices[-1]) + 1
    store.journal_path.write_text("".join(f"{json.dumps(document)}\n" for document in documents))
    with pytest.raises(ResultsError, match=rf"line {at} of journal.jsonl \(.*, block 99\) was not planned"):
        measured(campaign(store, resume=True))


@pytest.mark.skipif(os.getuid() != 0, reason="root mounts it")
def test_a_run_on_a_read_only_file_system_is_refused_before_anything_is_built(campaigns: Path, tmp_path: Path) -> None:
    store = middle(campaigns, tmp_path)
    subprocess.run(["mount", "--bind", store.path, store.path], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", store.path], check=True)
        with pytest.raises(ResultsError, match=r"cannot be resumed: .* is read-only"):
            campaign(store, resume=True)
    finally:
        subprocess.run(["umount", "--lazy", store.path], check=True)
