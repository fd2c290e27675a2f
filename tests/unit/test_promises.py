"""What a plan promised before the run, in bytes and in time, also holds if jobs are measured again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis import Reason
from harness.events import Event, Note
from harness.measure.interim_analysis import GroupProgress
from harness.measure.rounds import Again, Cause, Cost, compute_bytes_left, keep_promises, written
from harness.measure.series import RoundSegment
from harness.model.counters import Transferred
from harness.results import Measurement, Run, RunStore
from harness.results.journal import Length
from harness.scenario.plan import FIO_SHARE, Plan
from harness.scenario.scenario import Scenario
from harness.scenario.setups import Group
from harness.scenario.timetable import Slice
from tests.build import RUN_ID, counters
from tests.unit import killed_campaign
from tests.unit.draining import Draining, NeverDrained, draining_scenario, the_guest
from tests.unit.killed_campaign import campaign, measured
from tests.unit.recorded_campaign import SECONDS, Played, RecordedMeasurer, write_recording

GB = 1e9
WRITE, READ, LARGER = "randwrite-4k-qd32", "randread-4k-qd32", "randwrite-16k-qd32"
DISCARDED = Length(discarded_s=12.0)
SHALLOW = "randwrite-4k-qd16"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    played: Played = {"guest": [0.97, 0.98, 0.96, 0.975], "disk": 1.0}
    write_recording(Path("recording.json"), dict.fromkeys((WRITE, READ, LARGER, SHALLOW), played))


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "reports", RUN_ID)


def promising(measuring: float, *workloads: str, most_rounds: int = 2, time_limit: float | None = None) -> Scenario:
    """A scenario whose plan promises to write so many bytes at most, without filling the disk."""
    of = draining_scenario(*(workloads or ("randwrite-4k",)), runtime=SECONDS)
    profile = replace(of.profiles[0], most_rounds=most_rounds, time_limit=time_limit, target=1e-9)
    of = replace(of, profiles=(profile,), write_rate=1)
    plan = killed_campaign.plan(of)
    seconds = sum(plan.most_rounds_of(group) * group.writing_seconds for group in plan.groups)
    return replace(of, write_rate=round(measuring / seconds))


def run(
    store: RunStore, of: Scenario, measurer: type[RecordedMeasurer] = NeverDrained, *, resume: bool = False
) -> tuple[Run, list[str]]:
    """The run, and the notes that the user read."""
    notes: list[str] = []

    def heard(event: Event) -> None:
        if isinstance(event, Note):
            notes.append(event.text)

    return measured(campaign(store, resume=resume, of=of, measurer=measurer, heard=heard)), notes


def lengths(store: RunStore, job: str = WRITE) -> dict[int, float]:
    """How many seconds of each slice of the job were discarded, by round."""
    return {each.round: each.discarded_s for each in store.read_journal().measurements if each.job == job}


def wrote(store: RunStore) -> float:
    """The bytes that the disk counted in the whole run."""
    disks = (each.counters.disk for each in store.read_journal().measurements)
    return sum(disk.written for disk in disks if disk is not None)


def promised(of: Scenario) -> float:
    """The bytes that the plan promised to write at most for measuring, without filling the disk."""
    plan = killed_campaign.plan(of)
    return plan.write_bytes - plan.fill_bytes(plan.span)


# --- bytes ---


def test_a_job_whose_longer_slices_would_write_more_than_promised_is_not_measured_again(store: RunStore) -> None:
    of = promising(4 * GB)
    found, notes = run(store, of)
    assert lengths(store) == {1: 0.0, 2: 0.0}
    assert wrote(store) <= promised(of)
    assert found.run.status == "complete"
    for cell in found.cells:
        assert set(cell.rounds) == {1, 2}
        (left_out,) = (note for note in cell.notes if "not measured again" in note)
        assert f"optane-batch1: {WRITE}: {left_out}" in notes
        assert left_out.startswith("carry-over between the arms: not measured again, because this would write ")
        assert "GiB or more: of the 3.788 GiB that the plan promised to write at most, " in left_out
        assert left_out.endswith('are left; set ramp = "12 s" in the profile, which the plan then counts')
    assert any("so the arms disturb each other" in note for note in the_guest(found).notes)


def test_the_proposed_ramp_is_counted_by_the_plan() -> None:
    of = promising(4 * GB)
    profile = replace(of.profiles[0], ramp=12.0)
    assert promised(replace(of, profiles=(profile,))) == pytest.approx(5 * promised(of))


def test_longer_slices_that_keep_the_promise_are_measured_and_only_the_longest_are_left_out(store: RunStore) -> None:
    of = promising(30 * GB)
    found, notes = run(store, of)
    assert lengths(store) == {1: 0.0, 2: 0.0, 3: 12.0, 4: 12.0}
    assert 10 * GB < wrote(store) <= promised(of)
    cell = the_guest(found)
    assert set(cell.rounds) == {3, 4}
    assert cell.longer_slices is not None
    assert any('set ramp = "48 s" in the profile' in note for note in cell.notes)
    assert any("although its first 12 s do not count" in note for note in cell.notes)
    assert len([note for note in notes if "not measured again" in note]) == 1


def test_jobs_that_only_read_are_measured_again_without_those_that_write(store: RunStore) -> None:
    of = promising(4 * GB, "randwrite-4k", "randread-4k")
    found, _ = run(store, of)
    assert set(lengths(store, WRITE).values()) == {0.0}
    assert set(lengths(store, READ).values()) == {0.0, 12.0, 48.0}
    assert any("not measured again" in note for note in the_guest(found, "randwrite").notes)
    assert not any("not measured again" in note for note in the_guest(found, "randread").notes)


def test_the_jobs_that_fit_are_measured_again_in_order(store: RunStore) -> None:
    # The larger job writes four times as much. The smaller one fits with what the larger one leaves.
    of = promising(40 * GB, "randwrite-16k", "randwrite-4k")
    run(store, of)
    assert set(lengths(store, LARGER).values()) == {0.0}
    assert set(lengths(store, WRITE).values()) == {0.0, 12.0}
    assert wrote(store) <= promised(of)


class Overlapping(RecordedMeasurer):
    """All slices overlap."""

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        return [replace(each, overlap="host") for each in super().measure(group, segment, began)]


def test_a_job_whose_slices_overlapped_is_not_measured_again_beyond_the_promise(store: RunStore) -> None:
    found, _ = run(store, promising(4 * GB), Overlapping)
    assert set(lengths(store)) == {1, 2}
    (note,) = (note for note in the_guest(found).notes if "not measured again" in note)
    assert note.startswith("slices overlapped: not measured again, because this would write ")
    assert note.endswith("are left; use --rounds, which the plan then counts")


def test_a_further_series_ends_before_the_round_that_would_exceed_the_promise(store: RunStore) -> None:
    # Up to 12 rounds are planned. Each takes 7 GB in longer slices, after the 2.5 GB of the first two.
    of = promising(40 * GB, most_rounds=12)
    found, _ = run(store, of, Draining)
    assert lengths(store) == {1: 0.0, 2: 0.0} | dict.fromkeys(range(3, 8), 12.0)
    assert found.groups[0].stopped == Reason.BYTES
    assert promised(of) - 7.5 * GB < wrote(store) <= promised(of)


class Faster(Draining):
    """Writes 1.6 times as much per second in longer slices."""

    def disturbed(self, iops: float, previous: str | None, discarded: float) -> float:
        return super().disturbed(iops, previous, discarded) * (1.6 if discarded else 1.0)


def test_a_job_that_writes_more_than_expected_ends_after_fewer_rounds(store: RunStore) -> None:
    of = promising(20 * GB)
    found, _ = run(store, of, Faster)
    assert lengths(store) == {1: 0.0, 2: 0.0, 3: 12.0}
    assert found.groups[0].stopped == Reason.BYTES
    assert wrote(store) <= promised(of)


def test_a_group_may_use_what_the_groups_before_it_left(store: RunStore) -> None:
    # Longer slices take 12 GB. Each of two groups leaves 9.5 GB of its 12 GB.
    of = promising(12 * GB)
    of = replace(of, profiles=(replace(of.profiles[0], iodepth=(16, 32), round_limit=1.0),))
    run(store, of)
    assert set(lengths(store, SHALLOW).values()) == {0.0}
    assert set(lengths(store, WRITE).values()) == {0.0, 12.0}
    assert wrote(store) <= promised(of)


def test_a_cell_keeps_its_last_look_while_other_jobs_are_measured_again(store: RunStore) -> None:
    # Longer slices of both jobs end after two of twelve rounds. The longest ones are of the job that reads.
    of = promising(17.5 * GB, "randwrite-4k", "randread-4k", most_rounds=12)
    found, _ = run(store, replace(of, profiles=(replace(of.profiles[0], blocks=8),)))
    assert set(lengths(store, WRITE).values()) == {0.0, 12.0}
    assert set(lengths(store, READ).values()) == {0.0, 12.0, 48.0}
    assert set(the_guest(found, "randwrite").rounds) == {3, 4}
    assert the_guest(found, "randwrite").confidence == pytest.approx(0.95)


class InterruptedAfter3(NeverDrained):
    interrupt_after = 3


def interrupted(store: RunStore, of: Scenario, measurer: type[RecordedMeasurer]) -> None:
    first = campaign(store, resume=False, of=of, measurer=measurer)
    with pytest.raises(KeyboardInterrupt):
        measured(first)
    first.close(interrupted=True)


def test_a_resumed_run_continues_longer_slices_that_it_had_begun(store: RunStore) -> None:
    # Of 16 GB, 2.5 GB were written before the longer slices, which take 12 GB. Round 3 has written half of them.
    of = promising(16 * GB)
    interrupted(store, of, InterruptedAfter3)
    found, _ = run(store, of, resume=True)
    assert lengths(store) == {1: 0.0, 2: 0.0, 3: 12.0, 5: 12.0}
    assert set(the_guest(found).rounds) == {3, 5}
    assert wrote(store) <= promised(of)


def test_a_resumed_run_counts_what_was_written_before(store: RunStore) -> None:
    # The longest slices take 41 GB. Without what the interrupted part has written, they would keep the promise.
    of = promising(50 * GB)
    interrupted(store, of, InterruptedAfter3)
    found, _ = run(store, of, resume=True)
    assert set(lengths(store).values()) == {0.0, 12.0}
    assert any('set ramp = "48 s" in the profile' in note for note in the_guest(found).notes)


def test_a_resumed_run_leaves_out_the_same_jobs(store: RunStore) -> None:
    of = promising(4 * GB, "randwrite-4k", "randread-4k")
    interrupted(store, of, InterruptedAfter3)
    found, _ = run(store, of, resume=True)
    assert set(lengths(store, WRITE).values()) == {0.0}
    assert set(lengths(store, READ).values()) == {0.0, 12.0, 48.0}
    assert any("not measured again" in note for note in the_guest(found, "randwrite").notes)


# --- time ---


def test_longer_slices_whose_fewest_rounds_take_more_than_the_time_that_is_left_are_not_measured(
    store: RunStore,
) -> None:
    # The first series takes 72 s of fio, longer slices 360 s and then 1224 s.
    found, notes = run(store, promising(1000 * GB, time_limit=500.0))
    assert lengths(store) == {1: 0.0, 2: 0.0, 3: 12.0, 4: 12.0}
    (left_out,) = (note for note in the_guest(found).notes if "not measured again" in note)
    assert left_out.startswith("carry-over between the arms: not measured again, because this would take 24 min 17 s")
    assert "of the time limit of its group, 8 min" in left_out
    assert left_out.endswith("are left; use a longer --time, or time_limit in the profile")
    assert f"optane-batch1: {WRITE}: {left_out}" in notes


class InterruptedAfter2(NeverDrained):
    interrupt_after = 2


def test_a_resumed_run_counts_the_time_before_against_the_limit_of_longer_slices(store: RunStore) -> None:
    # By the journal, the two rounds took 72 s, so 408 s are left. Longer slices take 429 s.
    of = promising(1000 * GB, time_limit=480.0)
    interrupted(store, of, InterruptedAfter2)
    found, _ = run(store, of, resume=True)
    assert set(lengths(store).values()) == {0.0}
    assert any("because this would take 7 min 9 s or more" in note for note in the_guest(found).notes)


def test_a_resumed_run_continues_longer_slices_that_the_time_of_the_journal_would_not_permit(store: RunStore) -> None:
    of = promising(1000 * GB, time_limit=480.0)
    interrupted(store, of, InterruptedAfter3)
    found, _ = run(store, of, resume=True)
    assert set(the_guest(found).rounds) == {3, 5}


# --- the arithmetic ---


def a_plan(*workloads: str, round_limit: float = 10_000) -> Plan:
    of = draining_scenario(*(workloads or ("randwrite-4k",)), runtime=SECONDS)
    return killed_campaign.plan(replace(of, profiles=(replace(of.profiles[0], round_limit=round_limit),)))


def slices(plan: Plan, job: str, arm: str, *, count: int = 2, **flat: float) -> list[Measurement]:
    """Slices of an arm with these counters."""
    group = next(group for group in plan.groups if any(each.id == job for each in group.jobs))
    return [
        Measurement(
            group=group.id,
            round=1,
            arm=arm,
            repeat=1,
            job=job,
            started=1000.0 + number,
            seconds=SECONDS,
            wall=SECONDS,
            metrics={},
            io_bytes=0,
            raw="raw/1.json",
            counters=counters(flat),
        )
        for number in range(count)
    ]


def test_the_hosts_counter_says_what_was_written_and_fio_where_there_is_none() -> None:
    (counted,) = slices(a_plan(), WRITE, "host", count=1, fio_written=1000, disk_written=1500)
    assert written([counted], span=100) == 1500
    uncounted = replace(counted, counters=replace(counted.counters, disk=None))
    assert written([uncounted, counted], span=100) == 2500


def test_what_is_still_in_the_hosts_cache_counts_but_is_at_most_a_region() -> None:
    (cached,) = slices(a_plan(), WRITE, "guest:raw-cached", count=1, fio_written=5000, disk_written=200)
    assert written([cached], span=10_000) == 5000
    assert written([cached], span=1000) == 1200
    nothing = replace(cached, counters=replace(cached.counters, disk=Transferred()))
    assert written([nothing], span=1000) == 1000


def test_the_part_of_groups_that_are_not_measured_yet_is_reserved() -> None:
    plan = a_plan("randwrite-4k", "randwrite-16k", "randread-4k", round_limit=1)
    first, second, third = plan.groups
    part = plan.bytes_of(first)
    assert part == plan.bytes_of(second) > plan.bytes_of(third) == 0
    assert plan.write_bytes == plan.fill_bytes(plan.span) + 2 * part
    ran = {
        first.id: slices(plan, WRITE, "host", fio_written=1000),
        second.id: slices(plan, LARGER, "host", fio_written=5000),
        third.id: [],
    }
    assert compute_bytes_left(plan, first, ran, ended=()) == part - 2000
    assert compute_bytes_left(plan, first, ran, ended=[second.id]) == 2 * part - 12_000
    # Longer slices of a group that a resumed run has not come to again are spent.
    much = ran | {second.id: slices(plan, LARGER, "host", count=1, fio_written=part + 7)}
    assert compute_bytes_left(plan, first, much, ended=()) == part - 2000 - 7


def test_a_job_is_expected_to_write_as_much_per_second_as_before_on_each_arm() -> None:
    plan = a_plan()
    (group,) = plan.groups
    guest = slices(plan, WRITE, "guest:passthrough", count=1, fio_written=600)
    before = [*slices(plan, WRITE, "host", disk_written=3000), *guest]
    again = Again(Cause.CARRY_OVER, {group.jobs[0]: DISCARDED})
    longer_slices = Again(Cause.SHORT, {group.jobs[0]: Length(longer_s=12.0)})
    # 1000 and 200 bytes per second of fio, in 2 rounds of 6 blocks of 15 s.
    expected = (1000 + 200) * 2 * 6 * 15
    for left, fits in ((expected, True), (expected - 1, False)):
        kept, left_out = keep_promises(again, plan, group, before, left=Cost(left, math.inf), begun=())
        assert (bool(kept.lengths), bool(left_out)) == (fits, not fits)
        kept, left_out = keep_promises(longer_slices, plan, group, before, left=Cost(left, math.inf), begun=())
        assert (bool(kept.lengths), bool(left_out)) == (fits, not fits)
    assert 'set runtime = "15 s" in the profile' in left_out[group.jobs[0]]
    # In slices of 15 s, it wrote less per second.
    longer = [replace(each, discarded_s=12.0) for each in before]
    again = Again(Cause.OVERLAP, {group.jobs[0]: DISCARDED})
    kept, _ = keep_promises(again, plan, group, [*before, *longer], left=Cost(expected / 5, math.inf), begun=())
    assert kept.lengths


def test_jobs_that_fit_alone_but_not_together_are_taken_in_order() -> None:
    plan = a_plan("randwrite-4k", "randread-4k", "randwrite-16k")
    (group,) = plan.groups
    before = [each for job in (WRITE, READ, LARGER) for each in slices(plan, job, "host", disk_written=3000)]
    again = Again(Cause.CARRY_OVER, dict.fromkeys(group.jobs, DISCARDED))
    of_job = 1000 * 2 * 6 * 15
    kept, left_out = keep_promises(again, plan, group, before, left=Cost(1.5 * of_job, math.inf), begun=())
    assert [job.id for job in kept.lengths] == [WRITE, READ]
    assert [job.id for job in left_out] == [LARGER]
    seconds = 2 * 6 * 15 / FIO_SHARE
    kept, left_out = keep_promises(again, plan, group, before, left=Cost(math.inf, 2.5 * seconds), begun=())
    assert [job.id for job in kept.lengths] == [WRITE, READ]
    # What an earlier part has begun is continued, and leaves less to the others.
    kept, left_out = keep_promises(again, plan, group, before, left=Cost(0.5 * of_job, math.inf), begun=[WRITE])
    assert [job.id for job in kept.lengths] == [WRITE, READ]


def test_a_series_is_spent_when_another_average_round_exceeds_its_bytes() -> None:
    plan = a_plan().with_rounds(12)
    (group,) = plan.groups
    series = GroupProgress(group, plan, time.monotonic()).make_next({group.jobs[0]: DISCARDED}, bytes_left=1000)
    assert (series.spent, series.reachable) == (None, None)
    series.rounds, series.written = 3, 750
    assert (series.spent, series.reachable) == (None, 4)
    series.rounds, series.written = 4, 1000
    assert (series.spent, series.reachable) == (Reason.BYTES, 4)


def test_a_series_that_only_reads_has_no_limit_of_bytes() -> None:
    plan = a_plan("randread-4k")
    (group,) = plan.groups
    series = GroupProgress(group, plan, time.monotonic()).make_next({group.jobs[0]: DISCARDED}, bytes_left=-1)
    series.rounds, series.written = 1, 4096
    assert (series.spent, series.reachable) == (None, None)
