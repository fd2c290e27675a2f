"""Failures in a campaign: which cells they concern, what is stored, and how much time counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis import Verdict
from harness.errors import (
    GuestError,
    HarnessError,
    HostError,
    LabUnavailable,
    MeasurementError,
    NotReached,
    NotTried,
    SafetyError,
    Unsupported,
)
from harness.events import Event, Events, Note
from harness.measure.campaign import Campaign
from harness.measure.phases import Phases, read_paces
from harness.measure.resume import Earlier
from harness.measure.series import CampaignSpec, LabFound, PreparedGroup, RoundSegment
from harness.model.mode import Budget
from harness.report.html import render_html
from harness.report.terminal import summary_lines
from harness.results import Measurement, Run, RunStore
from harness.scenario.plan import Plan
from harness.scenario.scenario import Scenario
from harness.scenario.setups import Group
from harness.scenario.timetable import Slice, Timetable
from tests.build import RUN_ID, optane
from tests.unit import killed_campaign
from tests.unit.draining import Draining, NeverDrained, draining_scenario, the_guest
from tests.unit.killed_campaign import HOST, campaign, measured, plan, record
from tests.unit.recorded_campaign import HOST_IOPS, Played, RecordedMeasurer, write_recording


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record()


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "reports", RUN_ID)


class Fails(RecordedMeasurer):
    """Fails with `error` while a group of the scenario `of` is made ready."""

    error: Exception
    of = "first"
    tried = 0

    def prepare(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> PreparedGroup:
        if group.scenario == self.of:
            self.tried += 1
            raise self.error
        return super().prepare(plan, group, examined)


def failing(cause: Exception) -> type[Fails]:
    class FailsSo(Fails):
        error = cause

    return FailsSo


def two_scenarios(store: RunStore, measurer: type[RecordedMeasurer]) -> tuple[Campaign, RecordedMeasurer]:
    """A campaign of the scenarios `first` and `second` on one host."""
    scenarios = {name: replace(killed_campaign.scenario(), name=name) for name in ("first", "second")}
    plans = tuple(plan(scenario) for scenario in scenarios.values())
    spec = CampaignSpec(RUN_ID, HOST, plans, scenarios, "smoke", seed=7, command="pytest")
    phases = Phases(Events())
    measures = measurer(spec, store, None, phases)
    return Campaign(spec, store, measures, phases, Earlier()), measures


def outcomes(campaign: Campaign) -> dict[str, list[HarnessError | str]]:
    """By scenario, of each cell the error that its record raised, or why it was skipped, or "measured"."""
    found: dict[str, list[HarnessError | str]] = {}
    for each in campaign.spec.plans:
        for cell in each.cells:
            try:
                cell_record = campaign.record(cell)
                found.setdefault(cell.scenario, []).append(cell_record.skipped or "measured")
            except HarnessError as error:
                found.setdefault(cell.scenario, []).append(error)
    return found


def test_a_run_stores_the_published_figures_that_its_scenarios_name(store: RunStore) -> None:
    named = replace(killed_campaign.scenario(), name="first", published="local_disks.optane")
    scenarios = {"first": named, "second": replace(named, name="second", published=None)}
    plans = tuple(plan(scenario) for scenario in scenarios.values())
    spec = CampaignSpec(RUN_ID, HOST, plans, scenarios, "smoke", seed=7, command="pytest")
    phases = Phases(Events())
    outcomes(Campaign(spec, store, RecordedMeasurer(spec, store, None, phases), phases, Earlier()))
    assert store.read_results().run.published == {"first": "local_disks.optane"}


# --- which cells a failure concerns ---


def test_unsupported_cells_are_skipped_with_the_remedy_and_the_next_scenario_is_measured(
    store: RunStore,
) -> None:
    refusal = Unsupported("host node1: disk optane is too small for these modes", hint="select fewer modes")
    first, measurer = two_scenarios(store, failing(refusal))
    found = outcomes(first)
    assert set(found["first"]) == {"host node1: disk optane is too small for these modes; select fewer modes"}
    assert set(found["second"]) == {"measured"}
    assert isinstance(measurer, Fails)
    assert measurer.tried == 1
    run = first.close(interrupted=False)
    assert (run.run.status, run.run.cause) == ("complete", None)


class LacksJobs(RecordedMeasurer):
    """Its guest has no fio that can run some of the jobs."""

    jobs: tuple[str, ...] = ("randwrite-4k-qd32",)

    def prepare(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> PreparedGroup:
        unable = {
            cell.id: f"host node1: fio there lacks {cell.job.id}"
            for cell in group.cells
            if cell.mode.name == "passthrough" and cell.job.id in self.jobs
        }
        return replace(super().prepare(plan, group, examined), unable=unable)


def test_cells_whose_job_the_guest_cannot_run_are_skipped_and_the_others_are_measured(store: RunStore) -> None:
    modes = tuple(mode for mode in optane().modes if mode.name in ("host", "passthrough", "raw"))
    of = replace(killed_campaign.scenario(), modes=modes)
    lacking = campaign(store, resume=False, of=of, measurer=LacksJobs)
    outcome = {cell.id: lacking.record(cell).skipped for each in lacking.spec.plans for cell in each.cells}
    assert {name: why for name, why in outcome.items() if why} == {
        "optane-passthrough-randwrite-4k-qd32": "host node1: fio there lacks randwrite-4k-qd32"
    }
    lacking.close(interrupted=False)
    measured_arms = {(each.arm, each.job) for each in store.read_journal().measurements}
    assert ("guest:passthrough", "randwrite-4k-qd32") not in measured_arms
    assert {("guest:passthrough", "randread-4k-qd32"), ("guest:raw", "randwrite-4k-qd32")} <= measured_arms


def test_a_group_in_which_no_guest_can_run_its_job_does_not_keep_others_of_its_setup_from_being_measured(
    store: RunStore,
) -> None:
    lacking = campaign(store, resume=False, measurer=LacksJobs)
    outcome = {cell.id: lacking.record(cell).skipped for each in lacking.spec.plans for cell in each.cells}
    assert outcome["optane-passthrough-randread-4k-qd32"] is None
    assert outcome["optane-host-randread-4k-qd32"] is None
    assert outcome["optane-passthrough-randwrite-4k-qd32"] == "host node1: fio there lacks randwrite-4k-qd32"
    assert "not measured without a guest" in (outcome["optane-host-randwrite-4k-qd32"] or "")


class FioFails(RecordedMeasurer):
    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        if group.scenario == "first":
            raise MeasurementError("host node1: fio ended with status 1")
        return super().measure(group, segment, began)


def test_if_fio_fails_the_scenarios_other_cells_are_not_tried_and_the_next_scenario_is_measured(
    store: RunStore,
) -> None:
    first, _ = two_scenarios(store, FioFails)
    found = outcomes(first)
    cause, *others = found["first"]
    assert isinstance(cause, MeasurementError)
    assert {str(other) for other in others} == {
        "not tried: scenario first failed before: host node1: fio ended with status 1"
    }
    assert set(found["second"]) == {"measured"}
    run = first.close(interrupted=False)
    assert (run.run.status, run.run.cause) == ("failed", "host node1: fio ended with status 1")


@pytest.mark.parametrize("kind", [SafetyError, GuestError, HostError, LabUnavailable])
def test_after_any_other_failure_nothing_is_tried_on_the_host(store: RunStore, kind: type[HarnessError]) -> None:
    first, _ = two_scenarios(store, failing(kind("it went wrong", hint="look there")))
    found = outcomes(first)
    cause, *others = [*found["first"], *found["second"]]
    assert isinstance(cause, kind)
    assert all(isinstance(other, NotTried) for other in others)
    assert {str(other) for other in others} == {"not tried: host node1 failed before: it went wrong"}


# --- what is stored of a failure ---


@pytest.mark.parametrize(
    "cause",
    [
        SafetyError("host node1: disk optane: it is mounted", hint="unmount it"),
        GuestError("host node1: the guest did not answer", hint="see its console"),
        LabUnavailable("host node1: Proxmox VE answers 403: no permission", hint="give it"),
    ],
    ids=["safety", "start", "403"],
)
def test_the_page_and_the_terminal_say_what_happened_and_not_that_the_host_was_never_reached(
    store: RunStore, cause: HarnessError
) -> None:
    first, _ = two_scenarios(store, failing(cause))
    outcomes(first)
    run = first.close(interrupted=False)
    said = " ".join(str(cause).split())
    assert summary_lines(run)[0].startswith(f"This run failed: {said}. No cell was measured")
    page = render_html(run)
    assert cause.message in page
    assert "never reached" not in page + "".join(summary_lines(run))


def test_a_host_without_a_connection_was_never_reached(store: RunStore) -> None:
    first, _ = two_scenarios(store, failing(NotReached("host node1: connection refused", hint="is it up?")))
    outcomes(first)
    run = first.close(interrupted=False)
    assert run.lab.why == "the host was never reached: host node1: connection refused"


# --- the time limit ---

ROUND_SECONDS = 6.0
"""As the journal has it of two arms of 3 s each."""


class Interrupted(RecordedMeasurer):
    """Is interrupted in the round after so many."""

    after = 3

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        if segment.number > self.after:
            raise KeyboardInterrupt
        return super().measure(group, segment, began)


class InterruptedAfterBlock(RecordedMeasurer):
    """Is interrupted in a round, after the measurements of its first block were stored."""

    begun = 3

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        if segment.number != self.begun:
            return super().measure(group, segment, began)
        block = Timetable(tuple(each for each in segment.table.slices if each.block == 1), 1.0)
        super().measure(group, replace(segment, table=block), began)
        raise KeyboardInterrupt


class InterruptedInSecond(Interrupted):
    after = 1


def limited(seconds: float) -> Scenario:
    """Up to 12 rounds that decide nothing, within this time for each of the two groups."""
    scenario = killed_campaign.scenario(rounds=2)
    profile = replace(scenario.profiles[0], rounds=2, most_rounds=12, time_limit=2 * seconds, target=None)
    return replace(scenario, profiles=(profile,), budgets=(Budget("iops", 0.0301),))


@pytest.fixture
def rounds_after(store: RunStore) -> Callable[[float], int]:
    """How many rounds the first group has at the end of a run that was interrupted after three, by its time limit."""

    def rounds_after(time_limit: float) -> int:
        scenario = limited(time_limit)
        first = campaign(store, resume=False, of=scenario, measurer=Interrupted)
        with pytest.raises(KeyboardInterrupt):
            measured(first)
        first.close(interrupted=True)
        run = measured(campaign(store, resume=True, of=scenario))
        return len(run.groups[0].rounds)

    return rounds_after


def test_the_time_that_was_measured_before_an_interruption_counts(rounds_after: Callable[[float], int]) -> None:
    # A fourth round would end after 24 s.
    assert rounds_after(3.5 * ROUND_SECONDS) == 3


def test_a_run_that_goes_on_measures_as_long_as_its_limit_allows(rounds_after: Callable[[float], int]) -> None:
    assert rounds_after(100 * ROUND_SECONDS) == 12


# --- the blocks of a round ---


@pytest.fixture
def blocks() -> Scenario:
    """A mode whose writes never reach the disk beside one of which they do; two jobs of three blocks in a round."""
    scenario = killed_campaign.scenario(rounds=2)
    profile = replace(scenario.profiles[0], blocks=3, rounds=2, most_rounds=4, round_limit=300, target=0.0001)
    return replace(scenario, profiles=(profile,), budgets=())


def test_each_round_has_all_blocks_of_all_jobs(store: RunStore, blocks: Scenario) -> None:
    measured(campaign(store, resume=False, of=blocks))
    found = Counter((each.round, each.block, each.job, each.arm) for each in store.read_journal().measurements)
    assert set(found.values()) == {1}
    assert {key[:3] for key in found} == {
        (number, block, job)
        for number in {each.round for each in store.read_journal().measurements}
        for block in (1, 2, 3)
        for job in ("randread-4k-qd32", "randwrite-4k-qd32")
    }
    assert {key[3] for key in found} == {"host", "guest:passthrough"}


def test_the_arms_of_a_void_cell_are_left_out_of_later_rounds(store: RunStore, blocks: Scenario) -> None:
    good: Played = {"guest": [0.97, 0.90, 0.98, 0.91], "disk": 1.0}
    write_recording(Path("recording.json"), {"randread-4k-qd32": {**good, "disk": 0.5}, "randwrite-4k-qd32": good})
    run = measured(campaign(store, resume=False, of=blocks))
    by_round: dict[int, set[str]] = {}
    for each in store.read_journal().measurements:
        by_round.setdefault(each.round, set()).add(each.job)
    both = {"randread-4k-qd32", "randwrite-4k-qd32"}
    assert by_round == {1: both, 2: both, 3: {"randwrite-4k-qd32"}, 4: {"randwrite-4k-qd32"}}, "the first two together"
    void = next(cell for cell in run.cells if cell.verdict is Verdict.VOID)
    assert (void.job.id, set(void.rounds)) == ("randread-4k-qd32", {1, 2})
    events = [each for each in store.read_journal().rounds if each.event == "begun"]
    assert [each.measurements for each in events] == [12, 12, 6, 6]


def test_a_resumed_run_takes_over_whole_rounds_of_blocks_and_measures_the_others_again(
    store: RunStore, blocks: Scenario
) -> None:
    first = campaign(store, resume=False, of=blocks, measurer=InterruptedAfterBlock)
    with pytest.raises(KeyboardInterrupt):
        measured(first)
    first.close(interrupted=True)
    run = measured(campaign(store, resume=True, of=blocks))
    assert run.groups[0].abandoned == (3,)
    assert run.groups[0].rounds == (1, 2, 4, 5)
    cell = next(cell for cell in run.cells if cell.mode == "passthrough")
    assert Counter(cell.rounds) == {1: 3, 2: 3, 4: 3, 5: 3}
    assert cell.blocks[:6] == (1, 2, 3) * 2


class InterruptedInFirst(InterruptedAfterBlock):
    begun = 1


def test_rounds_that_are_measured_together_are_abandoned_together(store: RunStore, blocks: Scenario) -> None:
    first = campaign(store, resume=False, of=blocks, measurer=InterruptedInFirst)
    with pytest.raises(KeyboardInterrupt):
        measured(first)
    first.close(interrupted=True)
    run = measured(campaign(store, resume=True, of=blocks))
    assert run.groups[0].abandoned == (1, 2)
    assert run.groups[0].rounds == (3, 4, 5, 6)


class Overlapping(RecordedMeasurer):
    """The slices of the reads overlap in the first rounds."""

    until = 2

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        several = super().measure(group, segment, began)
        return [
            replace(each, overlap="host") if segment.number <= self.until and each.job.startswith("randread") else each
            for each in several
        ]


class AlwaysOverlapping(Overlapping):
    until = 10**6


class OneModeOverlapping(RecordedMeasurer):
    """The guest's slices in one mode overlap in the first rounds, so the other mode has more blocks that count."""

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        several = super().measure(group, segment, began)
        return [
            replace(each, overlap="host") if segment.number <= 2 and each.arm == "guest:passthrough" else each
            for each in several
        ]


def test_only_the_mode_whose_slices_overlapped_is_measured_again(store: RunStore, blocks: Scenario) -> None:
    profile = replace(blocks.profiles[0], most_rounds=2)
    modes = tuple(mode for mode in optane().modes if mode.name in ("host", "passthrough", "lvm"))
    of = replace(blocks, modes=modes, profiles=(profile,))
    run = measured(campaign(store, resume=False, of=of, measurer=OneModeOverlapping))
    rounds = {cell.mode: len(set(cell.rounds)) for cell in run.cells if cell.job.pattern == "randread"}
    assert rounds == {"host": 4, "passthrough": 2, "lvm": 2}, "the host runs for each cell, and all of that counts"
    found = Counter(each.arm for each in store.read_journal().measurements if each.job.startswith("randread"))
    assert found["guest:passthrough"] == found["host"] == 4 * 3
    assert found["guest:lvm"] == found["twin:lvm"] == 2 * 3


@pytest.mark.parametrize(("measurer", "counted", "rounds"), [(Overlapping, 6, 4), (AlwaysOverlapping, 0, 4)])
def test_a_job_whose_slices_overlapped_is_measured_again_once(
    store: RunStore, blocks: Scenario, measurer: type[Overlapping], counted: int, rounds: int
) -> None:
    profile = replace(blocks.profiles[0], most_rounds=2)
    run = measured(campaign(store, resume=False, of=replace(blocks, profiles=(profile,)), measurer=measurer))
    by_job = {cell.job.pattern: len(cell.rounds) for cell in run.cells if cell.mode == "passthrough"}
    assert by_job == {"randread": counted, "randwrite": 6}
    found = Counter(each.job for each in store.read_journal().measurements)
    assert found == {"randread-4k-qd32": rounds * 6, "randwrite-4k-qd32": 2 * 6}


# --- carry-over ---


class DrainingInterrupted(Draining):
    interrupt_after = 5


@pytest.fixture
def alternating() -> Scenario:
    return draining_scenario("randread-4k")


def test_a_job_with_carry_over_is_measured_again_in_longer_slices_until_there_is_none(
    store: RunStore, alternating: Scenario
) -> None:
    heard: list[Event] = []
    run = measured(campaign(store, resume=False, of=alternating, measurer=Draining, heard=heard.append))
    by_round = {each.round: each.discarded_s for each in store.read_journal().measurements}
    assert by_round == {1: 0.0, 2: 0.0, 3: 4.0, 4: 4.0, 5: 16.0, 6: 16.0}
    cell = the_guest(run)
    assert set(cell.rounds) == {5, 6}
    assert cell.longer_slices is not None
    assert cell.longer_slices.discarded_s == 16.0
    overhead = cell.metrics["iops"].overhead
    assert overhead is not None
    assert abs(overhead.point - 0.03) < 0.01 < abs(cell.longer_slices.naive.point - 0.03)
    (note,) = (note for note in cell.notes if "carry-over" in note)
    assert "so the first 16 s of each slice do not count; the overhead with all of each slice is" in note
    assert [(each.discarded_s, each.shown) for each in run.groups[0].carry_over] == [(0, True), (4, True), (16, False)]
    assert sum("measured again" in str(event) for event in heard) == 2


def test_carry_over_that_longer_slices_do_not_end_is_told(store: RunStore, alternating: Scenario) -> None:
    cell = the_guest(measured(campaign(store, resume=False, of=alternating, measurer=NeverDrained)))
    (note,) = (note for note in cell.notes if "carry-over" in note)
    assert "although its first 16 s do not count" in note
    assert set(cell.rounds) == {5, 6}


class LosesLongSlices(Draining):
    """No longer slice counts, because all of them overlap."""

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        several = super().measure(group, segment, began)
        return [replace(each, overlap="host") if each.discarded_s else each for each in several]


def test_longer_slices_that_never_count_end_the_measurement(store: RunStore, alternating: Scenario) -> None:
    cell = the_guest(measured(campaign(store, resume=False, of=alternating, measurer=LosesLongSlices)))
    by_round = {each.round: each.discarded_s for each in store.read_journal().measurements}
    assert by_round == {1: 0.0, 2: 0.0, 3: 4.0, 4: 4.0}
    assert not cell.rounds


def test_a_run_that_was_interrupted_in_longer_slices_goes_on_with_them(store: RunStore, alternating: Scenario) -> None:
    first = campaign(store, resume=False, of=alternating, measurer=DrainingInterrupted)
    with pytest.raises(KeyboardInterrupt):
        measured(first)
    first.close(interrupted=True)
    again = measured(campaign(store, resume=True, of=alternating, measurer=Draining))
    assert set(the_guest(again).rounds) == {5, 7}
    assert {each.round: each.discarded_s for each in store.read_journal().measurements}[7] == 16.0


class DrainingInterruptedEarly(Draining):
    interrupt_after = 3


def test_a_run_that_is_resumed_with_fewer_rounds_ends(store: RunStore, alternating: Scenario) -> None:
    more = replace(alternating, profiles=(replace(alternating.profiles[0], rounds=4, most_rounds=4),))
    first = campaign(store, resume=False, of=more, measurer=DrainingInterruptedEarly)
    with pytest.raises(KeyboardInterrupt):
        measured(first)
    first.close(interrupted=True)
    again = measured(campaign(store, resume=True, of=alternating, measurer=Draining))
    assert again.run.status == "complete"
    assert set(the_guest(again).rounds) == {8, 9}


# --- slices that are short for their I/Os ---


class SlowDevice(RecordedMeasurer):
    """15 IOPS, so that each of 32 I/Os in flight takes 2 s, but only one IOPS of a guest's short slices."""

    interrupt_after = 10**6

    def disturbed(self, iops: float, previous: str | None, discarded: float) -> float:  # noqa: ARG002
        return 15 * iops / HOST_IOPS

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        if segment.number > self.interrupt_after:
            raise KeyboardInterrupt
        return super().measure(group, segment, began)


class SlowDeviceInterrupted(SlowDevice):
    interrupt_after = 3


WRITES = "randwrite-4k-qd32"


def test_a_job_whose_ios_take_longer_than_a_slice_is_measured_in_longer_ones(
    store: RunStore, alternating: Scenario
) -> None:
    heard: list[Event] = []
    run = measured(campaign(store, resume=False, of=alternating, measurer=SlowDevice, heard=heard.append))
    # Two rounds share their timetables. After them, slices take at most five seconds.
    by_round = {slice_.round: slice_.longer_s for slice_ in store.read_journal().measurements}
    assert by_round == {1: 0.0, 2: 0.0, 3: 4.0, 4: 4.0}
    cell = the_guest(run)
    assert set(cell.rounds) == {3, 4}
    assert cell.longer_slices is not None
    assert (cell.longer_slices.longer_s, cell.longer_slices.discarded_s) == (4.0, 0.0)
    assert "slices of 5 s instead of 1 s, which were short for its I/Os: they said 2.5%" in cell.notes
    (told,) = (str(event) for event in heard if "short for their I/Os" in str(event))
    assert "measured again in slices longer by: randread-4k-qd32 (4 s)" in told


def test_other_jobs_of_the_group_keep_their_slices(store: RunStore) -> None:
    class SlowReads(SlowDevice):
        def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
            several = super().measure(group, segment, began)
            return [
                replace(slice_, metrics={"iops": 1e4, "lat_mean": 0.0032}) if slice_.job == WRITES else slice_
                for slice_ in several
            ]

    of = draining_scenario("randread-4k", "randwrite-4k")
    measured(campaign(store, resume=False, of=of, measurer=SlowReads))
    by_round: dict[str, dict[int, float]] = {}
    for slice_ in store.read_journal().measurements:
        by_round.setdefault(slice_.job, {})[slice_.round] = slice_.longer_s
    assert by_round == {"randread-4k-qd32": {1: 0.0, 2: 0.0, 3: 4.0, 4: 4.0}, WRITES: {1: 0.0, 2: 0.0}}


def test_a_job_without_the_time_for_longer_slices_is_measured_as_planned(
    store: RunStore, alternating: Scenario
) -> None:
    heard: list[Event] = []
    profile = replace(alternating.profiles[0], rounds=3, most_rounds=3, time_limit=60.0)
    of = replace(alternating, profiles=(profile,))
    run = measured(campaign(store, resume=False, of=of, measurer=SlowDevice, heard=heard.append))
    assert {slice_.round: slice_.longer_s for slice_ in store.read_journal().measurements} == {1: 0.0, 2: 0.0, 3: 0.0}
    assert set(the_guest(run).rounds) == {1, 2, 3}
    (told,) = (str(event) for event in heard if "not measured again" in str(event))
    assert "slices were short for their I/Os" in told
    assert "use a longer --time" in told


def test_a_run_that_was_interrupted_in_slices_for_slow_ios_goes_on_with_them(
    store: RunStore, alternating: Scenario
) -> None:
    first = campaign(store, resume=False, of=alternating, measurer=SlowDeviceInterrupted)
    with pytest.raises(KeyboardInterrupt):
        measured(first)
    first.close(interrupted=True)
    again = measured(campaign(store, resume=True, of=alternating, measurer=SlowDevice))
    assert set(the_guest(again).rounds) == {3, 5}
    assert {slice_.round: slice_.longer_s for slice_ in store.read_journal().measurements}[5] == 4.0


def test_the_efficiency_of_a_run_that_goes_on_counts_what_it_measured_before(store: RunStore) -> None:
    first = campaign(store, resume=False, measurer=InterruptedInSecond)
    with pytest.raises(KeyboardInterrupt):
        measured(first)
    before = first.close(interrupted=True).run
    after = measured(campaign(store, resume=True)).run
    assert after.efficiency.fio_s == sum(each.seconds for each in store.read_journal().measurements)
    assert after.efficiency.wall_s > before.efficiency.wall_s > 0
    assert after.phases["measure"] > before.phases["measure"]


def test_results_that_are_written_during_a_phase_include_its_time_so_far() -> None:
    phases = Phases(Events())
    with phases.timed("measure"):
        assert phases.seconds["measure"] > 0
    ended = phases.seconds
    assert phases.seconds == ended


# --- percentiles ---


class SlowDisk(RecordedMeasurer):
    """Each slice completes 600 I/Os, of which too few are slow for a percentile of one slice."""

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        found = super().measure(group, segment, began)
        return [replace(each, histogram={1_000_000: 590, 9_000_000 + segment.number: 10}) for each in found]


def of_slow_disk(store: RunStore, *, rounds: int, metric: str) -> tuple[Run, list[str]]:
    """The run, and what it said to the user."""
    notes: list[str] = []

    def heard(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.text)

    own = replace(killed_campaign.scenario(rounds=rounds), budgets=(Budget(metric, 0.1),))
    return measured(campaign(store, resume=False, of=own, heard=heard, measurer=SlowDisk)), notes


def test_a_percentile_out_of_reach_is_named_with_the_remedy_and_is_inconclusive(store: RunStore) -> None:
    run, notes = of_slow_disk(store, rounds=1, metric="clat_p99")
    assert [note.partition(":")[0] for note in notes] == ["optane-batch1", "optane-batch2"]
    assert all("a budget for clat_p99 that cannot be judged" in note for note in notes)
    assert all("completes about 600 I/Os in a block" in note for note in notes)
    assert all("take 2 rounds, and the plan has at most 1; measure 2 rounds (--rounds=2, or" in note for note in notes)
    guests = [cell for cell in run.cells if cell.mode_detail.attach is not None]
    assert [cell.verdict for cell in guests] == [Verdict.INCONCLUSIVE] * 2
    assert all("it needs 1000 I/Os of each arm" in "".join(cell.notes) for cell in guests)
    assert "too few I/Os to be judged" in render_html(run)
    assert run.groups[0].stopped == "too few I/Os for a percentile"


def test_the_proposed_rounds_give_the_percentile_its_verdict(store: RunStore) -> None:
    run, notes = of_slow_disk(store, rounds=4, metric="clat_p99")
    assert notes == []
    for cell in run.cells:
        assert len(cell.metrics["clat_p99"].samples("host")) == 4
        if cell.mode_detail.attach is not None:
            assert cell.verdict == Verdict.WITHIN


# --- paces ---


def test_a_complete_run_leaves_its_pace_and_one_that_was_interrupted_does_not(
    store: RunStore, blocks: Scenario, own_paces: Path
) -> None:
    own_paces.unlink(missing_ok=True)
    first = campaign(store, resume=False, of=blocks, measurer=Interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured(first)
    first.close(interrupted=True)
    assert not own_paces.exists()
    measured(campaign(store, resume=True, of=blocks))
    assert not own_paces.exists(), "a part of a run says little about its pace"


def test_the_pace_of_a_run_has_its_scenario_and_its_timetables(
    store: RunStore, blocks: Scenario, own_paces: Path
) -> None:
    own_paces.unlink(missing_ok=True)
    this = campaign(store, resume=False, of=blocks)
    measured(this)
    (pace,) = read_paces(this.spec.host)
    assert pace.scenarios == (blocks.name,)
    assert "start" in pace.ratios
