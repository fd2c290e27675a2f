"""The timetable of a round: slices that alternate between arms without an overlap, and those that cannot alternate."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from harness.measure.slices import reading_times, reported_slices
from harness.model.attach import Attach, Vfio
from harness.model.base import Device, Md
from harness.model.job import Job, parse_workload
from harness.model.layout import Lvm, Zvol
from harness.model.mode import Arm, Mode, Place
from harness.scenario.plan import expand, group_cells
from harness.scenario.scenario import PRESETS
from harness.scenario.setups import Group
from harness.scenario.timetable import (
    FIRST_PAUSES,
    FIRST_SLICES,
    GUARD_SECONDS,
    MOST_SECONDS,
    MOST_SLICES,
    RECOVERY_SECONDS,
    WRITE_BACK_SECONDS,
    ScheduledArm,
    Timetable,
    count_timetables,
    drain_seconds,
    timetables,
)
from tests.build import optane

HOST = Arm(Place.HOST)
LVM = Mode("lvm", Lvm(), Attach())
CACHED = Mode("cached", Lvm(), Attach(cache="writeback"))
VFIO = Mode("vfio", Device(), Vfio())


def job(name: str, iodepth: int = 1, *, ramp: float = 0.0, seconds: float = 1.0) -> Job:
    return parse_workload(name).job(iodepth, ramp=ramp, seconds=seconds)


REBUILDING = Mode("rebuilding", Lvm(on=Md(5, 3, state="rebuilding", spares=1)), Attach())
CACHED_REBUILDING = replace(REBUILDING, name="cached", attach=Attach(cache="writeback"))

READ, WRITE, SEQUENTIAL = job("randread-4k"), job("randwrite-4k"), job("seqread-256k")


def pause(job: Job, _arm: Arm = HOST) -> float:
    return GUARD_SECONDS + job.depth / 1000


def tables(turns_of: Mapping[Job, Sequence[ScheduledArm]], blocks: int = 3, *, seed: object = 7) -> list[Timetable]:
    return timetables(turns_of, blocks, chance=random.Random(str(seed)), pause=pause)


def turns(*modes: Mode) -> list[ScheduledArm]:
    """The host, and the twin and the guest of each mode."""
    return [
        ScheduledArm(HOST),
        *(ScheduledArm(Arm(place, mode)) for mode in modes for place in (Place.TWIN, Place.GUEST)),
    ]


def of_group(group: Group) -> dict[Job, list[ScheduledArm]]:
    return {job: [ScheduledArm(arm) for arm in group.arms if job in group.jobs_of(arm)] for job in group.jobs}


def everything() -> dict[Job, list[ScheduledArm]]:
    """The jobs and arms of the optane matrix, of which one mode has a host cache."""
    (group,) = group_cells(expand(optane(), "smoke"), 3600)
    return of_group(group)


def ids(table: Timetable) -> list[str]:
    return [f"{each.arm.id} {each.job.id}" for each in table.slices]


def drawn(found: Sequence[Timetable]) -> list[tuple[int, str, str]]:
    """Each slice of a round in the order of time: its block, its arm and its job."""
    return [(each.block, each.arm.id, each.job.id) for table in found for each in table.slices]


# --- in one timetable ---


@pytest.mark.parametrize("ramp", [0.0, 0.5])
def test_no_two_slices_of_a_timetable_overlap_and_the_pause_of_its_job_follows_each(ramp: float) -> None:
    turns_of = {replace(job, ramp=ramp): arms for job, arms in everything().items()}
    for table in tables(turns_of):
        first, *_ = table.slices
        assert first.start == 0
        for before, after in pairwise(table.slices):
            assert before.start < before.end
            assert after.start - before.end == pytest.approx(pause(before.job))
        last = table.slices[-1]
        assert table.seconds - last.end == pytest.approx(pause(last.job))


def test_a_slice_is_measured_for_the_time_of_its_job_after_its_ramp() -> None:
    ramped = job("randread-4k", ramp=0.5, seconds=2.0)
    (table,) = tables({ramped: [ScheduledArm(HOST)]}, blocks=1)
    (only,) = table.slices
    assert only.measured_from == pytest.approx(0.5 + pause(ramped))  # the I/Os of the ramp complete in the meantime
    assert only.end - only.measured_from == pytest.approx(2.0)
    (table,) = tables({READ: [ScheduledArm(HOST)]}, blocks=1)
    assert (table.slices[0].measured_from, table.slices[0].end) == (0.0, 1.0)


def test_every_block_has_every_arm_of_its_job_once() -> None:
    turns_of = everything()
    found = Counter((each.block, each.job, each.turn) for table in tables(turns_of) for each in table.slices)
    assert found == Counter((block, job, turn) for block in (1, 2, 3) for job in turns_of for turn in turns_of[job])


def test_an_arm_that_only_some_jobs_need_is_only_in_their_blocks() -> None:
    turns_of = {READ: turns(LVM), WRITE: [ScheduledArm(HOST)]}
    (table,) = tables(turns_of)
    assert {each.arm.id for each in table.slices if each.job == READ} == {"host", "twin:lvm", "guest:lvm"}
    assert {each.arm.id for each in table.slices if each.job == WRITE} == {"host"}


def test_the_slices_of_a_block_follow_each_other() -> None:
    (table,) = tables({READ: turns(LVM), WRITE: turns(LVM), SEQUENTIAL: turns(LVM)}, blocks=5)
    blocks = [(each.block, each.job) for each in table.slices]
    assert blocks == [block for at in range(0, len(blocks), 3) for block in [blocks[at]] * 3]
    assert table.blocks == 15


def test_successive_blocks_have_different_jobs_and_each_job_is_spread_over_the_round() -> None:
    jobs = [READ, WRITE, SEQUENTIAL]
    for seed in range(200):
        (table,) = tables({each: turns(LVM) for each in jobs}, blocks=6, seed=seed)
        order = [each.job for each in table.slices][::3]
        for at in range(0, len(order), len(jobs)):
            assert set(order[at : at + len(jobs)]) == set(jobs)
        assert all(before != after for before, after in pairwise(order))


def short_first(blocks: int, seconds: float) -> list[Timetable]:
    """With pauses of so many seconds, of which there are 8 in each block of the two jobs."""
    arms = {READ: turns(LVM, CACHED), WRITE: turns(LVM, CACHED)}
    return timetables(arms, blocks, chance=random.Random("7"), pause=lambda _job, _arm: seconds, short_first=True)


def test_a_short_first_timetable_has_the_first_blocks_of_each_job_and_the_order_stays_the_same() -> None:
    arms = {READ: turns(LVM, CACHED), WRITE: turns(LVM, CACHED)}
    first, *rest = short_first(20, 0.12)
    assert {(slice_.block, slice_.job) for slice_ in first.slices} == {(n, job) for n in range(1, 6) for job in arms}
    assert all(slice_.block > 5 or slice_.arm.mode == CACHED for table in rest for slice_ in table.slices)
    assert drawn([first, *rest]) == drawn(tables(arms, blocks=20))


def test_a_first_timetable_has_enough_slices_to_learn_from_but_few_if_its_pauses_are_long() -> None:
    def blocks(seconds: float) -> int:
        return max(slice_.block for slice_ in short_first(30, seconds)[0].slices)

    assert blocks(0.05) == math.ceil(FIRST_SLICES / 8)
    assert blocks(0.24) == FIRST_PAUSES // (8 * 0.24)
    assert blocks(4.0) == 1, "a whole block at least"


def test_a_second_short_timetable_follows_if_the_first_one_is_too_short_to_show_how_exact_starts_are() -> None:
    first, second, rest, *_ = short_first(40, 1.0)
    ends = [max(slice_.block for slice_ in table.slices) for table in (first, second, rest)]
    assert ends[1] - ends[0] == math.ceil(FIRST_SLICES / 8)
    assert ends[2] > ends[1] > ends[0] == 1
    assert {slice_.block for slice_ in rest.slices} == set(range(ends[1] + 1, ends[2] + 1))


def test_the_slices_after_a_short_timetable_are_not_in_more_pieces_because_of_guessed_pauses() -> None:
    # 8 slices of a block need 8.0 s and pauses of 16 s by the guess, so 7 blocks would fill a timetable.
    assert len({slice_.block for slice_ in short_first(14, 2.0)[1].slices}) == 11


def test_no_short_timetable_comes_first_if_it_saves_less_than_its_start_takes() -> None:
    few, more = short_first(9, 0.07), short_first(16, 0.07)
    assert max(slice_.block for slice_ in few[0].slices) == 9
    assert max(slice_.block for slice_ in more[0].slices) == 7


def test_a_timetable_with_other_pauses_has_the_same_slices_in_the_same_order() -> None:
    for table in tables(everything()):
        other = table.paused(lambda job, _arm: 2 * pause(job))
        assert drawn([other]) == drawn([table])
        for before, after in pairwise(other.slices):
            assert after.start - before.end == pytest.approx(2 * pause(before.job))
        assert table.paused(pause) == table


def test_slices_of_a_clock_that_is_not_known_well_are_further_apart() -> None:
    for table in tables(everything()):
        spread = table.spread(0.3)
        assert drawn([spread]) == drawn([table])
        for before, after in pairwise(spread.slices):
            assert after.start - before.end == pytest.approx(pause(before.job) + 0.3)
        last = spread.slices[-1]
        assert spread.seconds - last.end == pytest.approx(pause(last.job) + 0.3)
        assert table.spread(0.0) == table


# --- the order ---


def test_the_same_seed_gives_the_same_order_and_the_same_times() -> None:
    for seed in range(20):
        assert tables(everything(), seed=seed) == tables(everything(), seed=seed)


def test_the_order_changes_with_the_seed_and_from_block_to_block() -> None:
    found = {tuple(drawn(tables({READ: turns(LVM, PRESETS[1])}, blocks=2, seed=seed))) for seed in range(50)}
    assert len(found) > 45
    (table,) = tables({READ: turns(LVM, PRESETS[1])}, blocks=20)
    orders = {tuple(each.arm.id for each in table.slices[at : at + 5]) for at in range(0, 100, 5)}
    assert len(orders) > 10


def test_no_arm_has_a_favoured_place_in_a_block() -> None:
    blocks = 2000
    every = turns(LVM)
    found = tables({READ: every}, blocks=blocks)
    firsts = Counter(each.turn for table in found for each in table.slices[:: len(every)])
    for turn in every:
        assert firsts[turn] / blocks == pytest.approx(1 / 3, abs=0.05)


def test_the_recorded_order_of_a_known_seed_never_changes() -> None:
    (table,) = tables({READ: turns(LVM), SEQUENTIAL: [ScheduledArm(HOST)]}, blocks=2, seed="never")
    assert ids(table) == [
        "host seqread-256k-qd1",
        "twin:lvm randread-4k-qd1",
        "host randread-4k-qd1",
        "guest:lvm randread-4k-qd1",
        "host seqread-256k-qd1",
        "guest:lvm randread-4k-qd1",
        "host randread-4k-qd1",
        "twin:lvm randread-4k-qd1",
    ]


# --- in pieces ---


def test_a_long_round_is_in_pieces_of_whole_blocks() -> None:
    jobs = [job("randread-4k", depth, seconds=0.2) for depth in (1, 2, 4, 8, 16, 32, 64)]
    found = tables({each: turns(LVM, PRESETS[1], PRESETS[3]) for each in jobs}, blocks=24)

    def most_of_a_machine(table: Timetable) -> int:
        return max(Counter(slice_.arm.in_guest for slice_ in table.slices).values())

    assert len(found) == 3
    assert all(most_of_a_machine(table) <= MOST_SLICES for table in found)
    assert all(len(table.slices) % 7 == 0 for table in found)
    of_block = Counter((each.block, each.job) for table in found for each in table.slices)
    assert set(of_block.values()) == {7}
    assert sum(table.blocks for table in found) == len(of_block) == 7 * 24
    # No piece could have taken another block.
    assert all(most_of_a_machine(table) + 4 > MOST_SLICES for table in found[:-1])


def test_a_block_that_is_larger_than_a_piece_is_a_piece_of_its_own() -> None:
    modes = [Mode(f"m{number}", Lvm(), Attach()) for number in range(MOST_SLICES)]
    short = job("randread-4k", seconds=0.2)
    found = tables({short: [ScheduledArm(Arm(Place.GUEST, mode)) for mode in modes] + [ScheduledArm(HOST)]}, blocks=2)
    assert [len(table.slices) for table in found] == [MOST_SLICES + 1] * 2


def test_long_slices_are_in_pieces_of_whole_blocks_that_end_in_time() -> None:
    long = [job("randread-4k", ramp=8.0, seconds=0.5), job("randwrite-4k", ramp=8.0, seconds=0.5)]
    of_block = sum(each.ramp + each.seconds + 2 * pause(each) for each in long[:1]) * 3
    found = tables({each: turns(LVM) for each in long}, blocks=12)
    assert [table.blocks for table in found] == [6] * 4
    for table in found:
        assert 6 * of_block == pytest.approx(table.seconds)
        assert table.seconds <= MOST_SECONDS < table.seconds + of_block
    assert set(Counter((each.block, each.job) for table in found for each in table.slices).values()) == {3}


def test_a_block_that_takes_longer_than_a_piece_is_a_piece_of_its_own() -> None:
    endless = job("randread-4k", ramp=MOST_SECONDS, seconds=1.0)
    found = tables({endless: turns(LVM)}, blocks=3)
    assert [(table.blocks, len(table.slices)) for table in found] == [(1, 3)] * 3


@pytest.mark.parametrize("mode", [CACHED, VFIO])
def test_long_slices_of_an_arm_that_does_not_alternate_are_in_pieces_too_which_follow_each_other(mode: Mode) -> None:
    long = job("randwrite-4k", ramp=32.0, seconds=2.0)
    found = tables({long: [ScheduledArm(Arm(Place.GUEST, mode)), ScheduledArm(Arm(Place.TWIN, mode))]}, blocks=8)
    assert [table.blocks for table in found] == [5, 3] * 2
    arms = [{each.arm for each in table.slices} for table in found]
    assert arms[0] == arms[1] != arms[2] == arms[3]


# --- arms that cannot alternate ---


def test_writes_of_arms_with_a_host_cache_have_a_timetable_of_their_own_after_the_others() -> None:
    alternating, *apart = tables({READ: turns(LVM, CACHED), WRITE: turns(LVM, CACHED)})
    assert len(apart) == 2
    assert {frozenset(ids(table)) for table in apart} == {
        frozenset({"twin:cached randwrite-4k-qd1"}),
        frozenset({"guest:cached randwrite-4k-qd1"}),
    }
    assert [len(table.slices) for table in apart] == [3, 3]
    # Their reads alternate, because nothing is left in the cache to be written.
    assert {"twin:cached randread-4k-qd1", "guest:cached randread-4k-qd1"} <= set(ids(alternating))
    assert "guest:cached randwrite-4k-qd1" not in ids(alternating)
    assert "guest:lvm randwrite-4k-qd1" in ids(alternating)


def test_a_mixed_job_writes_too() -> None:
    _, *apart = tables({job("randrw-8k-r70"): turns(CACHED)})
    assert [{each.arm.id for each in table.slices} for table in apart] in (
        [{"twin:cached"}, {"guest:cached"}],
        [{"guest:cached"}, {"twin:cached"}],
    )


def test_modes_with_the_whole_device_take_turns() -> None:
    both = [ScheduledArm(HOST), ScheduledArm(Arm(Place.GUEST, VFIO))]
    found = tables({READ: both, WRITE: both}, blocks=2)
    assert sorted({each.arm.id for each in table.slices}.pop() for table in found) == ["guest:vfio", "host"]
    for table in found:
        assert len({each.turn for each in table.slices}) == 1
        assert len(table.slices) == 4


def test_arms_that_take_turns_do_so_in_random_order() -> None:
    both = [ScheduledArm(HOST), ScheduledArm(Arm(Place.GUEST, VFIO))]
    firsts = {tables({READ: both}, seed=seed)[0].slices[0].arm.id for seed in range(20)}
    assert firsts == {"host", "guest:vfio"}


# --- turns of a calibration ---


def test_an_arm_that_is_in_a_block_twice_has_two_turns() -> None:
    a, b = ScheduledArm(HOST, 1, "a"), ScheduledArm(HOST, 2, "b")
    (table,) = tables({READ: [a, b]}, blocks=4)
    assert Counter((each.block, str(each.turn)) for each in table.slices) == Counter(
        (block, name) for block in (1, 2, 3, 4) for name in "ab"
    )


def test_a_turn_without_a_name_has_the_name_of_its_arm() -> None:
    assert str(ScheduledArm(Arm(Place.GUEST, LVM))) == "guest:lvm"


def test_a_round_without_blocks_or_jobs_has_no_timetable() -> None:
    assert tables({}) == []
    assert tables({READ: []}) == []


def test_a_recovery_runs_for_all_jobs_of_a_mode_and_disturbs_no_other_arm() -> None:
    found = tables({READ: turns(LVM, REBUILDING), WRITE: turns(LVM, REBUILDING)}, blocks=2)
    recovering = [each for each in found if any(slice_.arm.mode == REBUILDING for slice_ in each.slices)]
    assert len(recovering) == 1
    for table in recovering:
        assert {each.arm.mode for each in table.slices} == {REBUILDING}
        assert {each.job for each in table.slices} == {READ, WRITE}
        assert [each.block for each in table.slices] == [1] * 4 + [2] * 4
        assert all(one.job == other.job for one, other in zip(table.slices[::2], table.slices[1::2], strict=True)), (
            "twin and guest of a block follow each other"
        )
    others = [each.arm.id for table in found if table not in recovering for each in table.slices]
    assert Counter(others) == {"host": 4, "twin:lvm": 4, "guest:lvm": 4}


def test_cached_writes_on_a_rebuilding_array_have_a_recovery_for_each_arm() -> None:
    found = tables({WRITE: turns(CACHED_REBUILDING)}, blocks=2)
    assert sorted(each.arm.id for table in found for each in table.slices[:1]) == [
        "guest:cached",
        "host",
        "twin:cached",
    ]
    assert all(len({each.arm for each in table.slices}) == 1 for table in found)


@pytest.mark.parametrize(("quiet", "before"), [(None, 0.5), (0.25, 0.125), (2.0, 0.5)])
def test_the_counters_are_read_when_the_last_ios_have_completed(quiet: float | None, before: float) -> None:
    """All as shares of the pause: in the middle of its quiet part, which is never longer than the pause."""
    whole = pause(READ)
    (table,) = tables({READ: turns(LVM)})
    paused = table.paused(pause, quiet=None if quiet is None else quiet * whole)
    _, *times, end = reading_times(paused)
    assert times == pytest.approx([each.start - before * whole for each in paused.slices[1:]])
    assert end == paused.seconds
    if quiet is not None:
        assert paused.spread(0.2).quiet == pytest.approx(quiet * whole + 0.2)


def test_a_recovery_is_not_slowed_down_to_outlast_many_jobs() -> None:
    several = [replace(job("randread-4k"), iodepth=depth, seconds=5) for depth in (1, 2, 4, 8, 16, 32)]
    found = tables({each: turns(REBUILDING) for each in several}, blocks=1)
    recovering = [each for each in found if any(slice_.arm.mode == REBUILDING for slice_ in each.slices)]
    assert len(recovering) == 2
    assert all(each.seconds <= RECOVERY_SECONDS for each in recovering)


@pytest.mark.parametrize("modes", [(LVM,), (LVM, REBUILDING), (CACHED_REBUILDING, LVM), (REBUILDING,)])
@pytest.mark.parametrize(("jobs", "blocks"), [((READ, WRITE), 1), ((READ,), 3), ((READ, WRITE, SEQUENTIAL), 40)])
def test_the_plan_counts_the_timetables_that_a_round_will_have(
    modes: Sequence[Mode], jobs: Sequence[Job], blocks: int
) -> None:
    arms = [turn.arm for turn in turns(*modes)]
    for first in (False, True):
        made = timetables(
            {each: [ScheduledArm(arm) for arm in arms] for each in jobs},
            blocks,
            chance=random.Random("plan"),
            pause=pause,
            short_first=first,
        )
        counted = count_timetables(dict.fromkeys(arms, jobs), blocks, pause)
        recovering = [each for each in made if each.slices[0].arm.mode in (REBUILDING, CACHED_REBUILDING)]
        assert counted.slices == sum(len(each.slices) for each in made)
        assert counted.recoveries == len(recovering)
        assert counted.timetables + (counted.first if first else 0) == pytest.approx(len(made), abs=1)


def test_the_disks_of_an_array_share_what_is_in_flight() -> None:
    deep, array = job("randread-4k", 32), Arm(Place.TWIN, Mode("array", Md(0, 4), None))
    assert drain_seconds(deep, HOST, 100) == pytest.approx(0.32)
    assert drain_seconds(deep, array, 100) == pytest.approx(0.08)
    parity = Arm(Place.TWIN, Mode("parity", Md(5, 4), None))
    assert drain_seconds(deep, parity, 100) == pytest.approx(0.08)
    assert drain_seconds(job("randwrite-4k", 32), parity, 100) == pytest.approx(4 * 0.08), (
        "old data and parity are read"
    )


def test_the_start_of_a_slice_is_reported_every_few_seconds_of_a_long_block() -> None:
    long = replace(READ, seconds=4.0)
    (table,) = tables({long: turns(LVM, replace(LVM, name="other"))}, blocks=2)
    reported = list(reported_slices(table.slices))
    assert [each for each in reported if each == table.slices[0]]
    assert all(other.start - one.start <= 10 + 4.5 for one, other in pairwise(reported))
    (short,) = tables({READ: turns(LVM)}, blocks=2)
    assert [each.block for each in reported_slices(short.slices)] == [1, 2], "each block once"


def test_a_guess_of_long_pauses_leads_to_no_more_recoveries() -> None:
    def recoveries(seconds: float) -> int:
        turns_of = {READ: turns(REBUILDING), WRITE: turns(REBUILDING)}
        chance = random.Random("guess")
        made = timetables(turns_of, 4, chance=chance, pause=lambda _job, _arm: seconds)
        return sum(each.slices[0].arm.mode == REBUILDING for each in made)

    assert recoveries(30.0) == recoveries(1.0) == 1


ZVOL = Mode("zvol", Zvol(), Attach())


def test_after_a_slice_that_writes_on_zfs_all_arms_wait_until_its_group_was_written() -> None:
    """ZFS writes up to five seconds later. The counters are read after that, so they belong to the slice."""
    (first, *_) = found = tables({WRITE: turns(ZVOL)})
    assert {slice_.tail for table in found for slice_ in table.slices} == {5.0 + WRITE_BACK_SECONDS}
    for (before, after), read in zip(pairwise(first.slices), list(reading_times(first))[1:], strict=False):
        assert before.end + before.tail <= read <= after.start
        assert after.start - before.end == pytest.approx(before.tail + pause(WRITE))
    assert {slice_.tail for table in tables({READ: turns(ZVOL)}) for slice_ in table.slices} == {0.0}
    assert {slice_.tail for table in tables({WRITE: turns(LVM)}) for slice_ in table.slices} == {0.0}


def test_the_cost_of_a_group_on_zfs_has_the_waiting() -> None:
    counts = count_timetables({turn.arm: [WRITE] for turn in turns(ZVOL)}, 10, pause)
    assert counts.timetables == len(tables({WRITE: turns(ZVOL)}, 10))
