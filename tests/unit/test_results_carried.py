"""Carry-over between the slices of a group: found where it is, and not where there is none."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from harness.analysis import Estimate
from harness.model.job import Job
from harness.results import Measurement
from harness.results.cells import LongerSlices
from harness.results.validity import find_carry_overs, find_longer_slices, note_carry_over, split_by_length
from tests.build import build_measurement

JOB = Job("randwrite", 4096, iodepth=32, ramp=0, seconds=1)
OTHER = replace(JOB, rw="randread")
ARMS = ("host", "twin:raw", "guest:raw", "guest:lvm")


def measured(effect: float, *, blocks: int = 12, jobs: tuple[Job, ...] = (JOB,), rounds: int = 1) -> list[Measurement]:
    """Blocks in random order. A slice after one of guest:lvm is `effect` faster, and all have 3 % of noise."""
    chance = random.Random(7)
    found: list[Measurement] = []
    for number in range(1, rounds + 1):
        previous = None
        for block in range(1, blocks + 1):
            for job in jobs:
                for arm in chance.sample(ARMS, len(ARMS)):
                    iops = 1000 * (1 + effect * (previous == "guest:lvm")) * chance.lognormvariate(0, 0.03)
                    found.append(
                        build_measurement(
                            arm, number, job=job, block=block, started=float(len(found)), metrics={"iops": iops}
                        )
                    )
                    previous = arm
    return found


def test_an_arm_that_disturbs_the_next_slice_is_named_with_its_effect() -> None:
    (found,) = find_carry_overs(measured(-0.2), [JOB])
    assert (found.job, found.shown, found.cause) == (JOB.id, True, "guest:lvm")
    assert found.effect == pytest.approx(-0.2, abs=0.05)
    assert "guest:lvm ran before it, so the arms disturb each other" in note_carry_over([found], None)[0]


def test_without_carry_over_nothing_is_shown() -> None:
    (found,) = find_carry_overs(measured(0.0), [JOB])
    assert not found.shown
    assert note_carry_over([found], None) == []
    assert find_longer_slices([found], measured(0.0), [JOB]) == {}


def test_an_effect_that_is_small_against_the_target_is_not_measured_again() -> None:
    several = measured(-0.03, blocks=200)
    (found,) = find_carry_overs(several, [JOB])
    assert (found.shown, found.matters) == (True, False)
    assert find_longer_slices([found], several, [JOB]) == {}
    (note,) = note_carry_over([found], None)
    assert note.endswith("(at least 1.9%) if guest:lvm ran before it: not shown to be large enough to measure it again")
    (precise,) = find_carry_overs(several, [JOB], target=0.03)
    assert precise.matters
    assert find_longer_slices([precise], several, [JOB]) == {JOB: 4.0}


def test_several_looks_share_the_probability_of_error() -> None:
    several = measured(-0.03, blocks=200)
    (once,) = find_carry_overs(several, [JOB])
    assert once.shown
    assert once.p_value is not None
    most = round(0.01 / once.p_value)
    assert [find_carry_overs(several, [JOB], looks=looks)[0].shown for looks in (most // 2, 2 * most)] == [True, False]


@pytest.mark.parametrize("arms", [2, 3, 5])
def test_the_effect_of_an_arm_changes_a_difference_by_its_share_of_the_arms(arms: int) -> None:
    chance = random.Random(arms)
    blocks = [chance.sample(range(arms), arms) for _ in range(20_000)]
    followed = Counter(pairwise(arm for block in blocks for arm in block))
    # The share of an arm's slices that follow arm 0, which has the effect.
    after = [followed[0, arm] / len(blocks) for arm in range(arms)]
    assert max(abs(one - other) for one, other in combinations(after, 2)) == pytest.approx(1 / arms, abs=0.02)


def test_slices_become_longer_once_and_once_more_and_then_no_longer() -> None:
    short = measured(-0.2)
    (found,) = find_carry_overs(short, [JOB])
    assert find_longer_slices([found], short, [JOB, OTHER]) == {JOB: 4.0}
    longer, later = replace(found, discarded_s=4.0), discarding(4.0, short)
    assert find_longer_slices([found, longer], [*short, *later], [JOB]) == {JOB: 16.0}
    assert find_longer_slices([found, replace(longer, shown=False)], [*short, *later], [JOB]) == {}
    longest = replace(longer, discarded_s=16.0)
    assert find_longer_slices([found, longer, longest], [*short, *later, *discarding(16.0, short)], [JOB]) == {}


def test_the_beginning_of_very_short_slices_is_as_long_as_of_half_a_second() -> None:
    shortest = replace(JOB, seconds=0.25)
    assert find_longer_slices(find_carry_overs(measured(-0.2), [JOB]), measured(-0.2), [shortest]) == {shortest: 2.0}


def test_longer_slices_that_are_too_few_for_a_test_are_not_measured_again() -> None:
    several = [*measured(-0.2), *discarding(4.0, measured(-0.2, blocks=1))]
    found = find_carry_overs(several, [JOB])
    assert [(each.discarded_s, each.shown) for each in found] == [(0.0, True)]
    assert find_longer_slices(found, several, [JOB]) == {}
    naive = LongerSlices(4.0, Estimate(0.1, 0.05, 0.15, 12))
    assert note_carry_over(found, naive)[0].endswith("; the longer slices are too few for another test")


def discarding(seconds: float, slices: list[Measurement]) -> list[Measurement]:
    return [replace(each, round=2, started=each.started + 1000, discarded_s=seconds) for each in slices]


def test_each_length_is_tested_alone_and_only_the_longest_slices_count() -> None:
    short = measured(-0.2)
    longer = discarding(4.0, measured(0.0))
    other = [replace(each, round=3, started=each.started + 2000) for each in measured(0.0, jobs=(OTHER,))]
    found = find_carry_overs([*short, *longer, *other], [JOB, OTHER])
    assert [(each.job, each.discarded_s, each.shown) for each in found] == [
        (JOB.id, 0.0, True),
        (JOB.id, 4.0, False),
        (OTHER.id, 0.0, False),
    ]
    assert split_by_length([*short, *longer, *other]) == ([*longer, *other], short)


def test_each_job_is_tested_with_the_slice_of_any_job_before_it() -> None:
    found = find_carry_overs(measured(-0.2, jobs=(JOB, OTHER)), [JOB, OTHER])
    assert {each.job: each.shown for each in found} == {JOB.id: True, OTHER.id: True}


def test_an_arm_with_a_timetable_of_its_own_shows_no_carry_over() -> None:
    alternating = measured(0.0)
    # Its cache is full after some slices, so later slices are slower: not because of the arm before them.
    own = [
        build_measurement("guest:cached", job=JOB, block=block, started=100.0 + block, metrics={"iops": 1000 / block})
        for block in range(1, 13)
    ]
    assert find_carry_overs([*alternating, *own], [JOB]) == find_carry_overs(alternating, [JOB])


def test_the_arm_of_another_timetable_did_not_run_directly_before() -> None:
    several = measured(-0.2)
    apart = [replace(each, started=3 * each.started) for each in several]
    assert find_carry_overs(several, [JOB])[0].shown
    assert find_carry_overs(apart, [JOB]) == ()


def test_too_few_slices_show_nothing() -> None:
    assert find_carry_overs(measured(-0.2, blocks=1), [JOB]) == ()


def test_the_first_slice_of_a_round_and_slices_that_overlapped_are_not_used() -> None:
    several = measured(-0.2, blocks=4, rounds=3)
    spoiled = [replace(each, overlap="host", metrics={"iops": 1e6}) if each.block == 1 else each for each in several]
    (found,) = find_carry_overs(spoiled, [JOB])
    assert found.effect == pytest.approx(-0.2, abs=0.07)
