"""The pause after a slice: long enough for the I/Os in flight, as far as that is known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, count

import pytest

from harness.measure.phases import FEW_JITTER, LEAST_JITTER, MOST_JITTER, UNKNOWN_JITTER, Pauses
from harness.model.attach import Attach
from harness.model.base import Md
from harness.model.job import Job
from harness.model.layout import RawFile
from harness.model.mode import Arm, Mode, Place
from harness.results import Measurement
from tests.build import build_measurement

JOB = Job("randread", 4096, iodepth=32, ramp=0, seconds=1)
OTHER = replace(JOB, iodepth=1)


STARTS = count(1000, 100)


def lasting(seconds: float, job: Job = JOB, *, arm: str = "host") -> Measurement:
    """The next slice, which lasted so long."""
    return build_measurement(arm, job=job, started=next(STARTS), seconds=seconds)


def pause(
    *timetables: Sequence[Measurement],
    job: Job = JOB,
    in_guest: bool = False,
    rotational: bool = False,
    arm: Arm | None = None,
) -> float:
    """The pause after these timetables."""
    pauses = Pauses()
    for each in timetables:
        pauses.learn(each)
    return pauses.after(job, in_guest=in_guest, rotational=rotational, arm=arm)


def test_before_the_first_timetable_the_pause_grows_with_the_ios_in_flight() -> None:
    assert pause(job=OTHER) < pause(job=JOB) < pause(job=replace(JOB, numjobs=4)) < 1
    assert pause(job=replace(JOB, iodepth=128)) == pause(job=replace(JOB, numjobs=4))


def test_a_hard_disk_needs_a_longer_pause() -> None:
    assert pause(rotational=True) == pytest.approx(UNKNOWN_JITTER + 32 / 80)
    assert pause(rotational=True) > pause()
    deep = replace(JOB, numjobs=16)
    assert pause(job=deep, rotational=True) == pytest.approx(UNKNOWN_JITTER + 512 / 160), "it sorts many of them"


def test_once_measured_the_longest_end_of_the_job_counts() -> None:
    assert pause([lasting(1.02), lasting(1.3), lasting(1.0)]) == pytest.approx(UNKNOWN_JITTER + 0.3)
    assert pause([lasting(1.02)], rotational=True) == pytest.approx(UNKNOWN_JITTER + 0.02)


def test_one_slice_in_fifty_may_end_later() -> None:
    ends = [lasting(1.0 + number / 1000) for number in range(101)]
    assert pause(ends) == pytest.approx(LEAST_JITTER + 0.098)


def test_a_slice_on_the_host_needs_no_pause_as_long_as_one_in_a_guest() -> None:
    slices = [lasting(1.3, arm="guest:lvm"), lasting(1.02), lasting(1.02, arm="twin:lvm")]
    assert pause(slices, in_guest=True) == pytest.approx(UNKNOWN_JITTER + 0.3)
    assert pause(slices) == pytest.approx(UNKNOWN_JITTER + 0.02)


def test_an_arm_need_not_wait_for_the_io_of_a_slower_one() -> None:
    array = Arm(Place.TWIN, Mode("array", Md(0, 4), None))
    slices = [lasting(3.0), lasting(1.4, arm=array.id), lasting(1.4, arm=array.id)]
    assert pause(slices) == pytest.approx(UNKNOWN_JITTER + 2.0)
    assert pause(slices, arm=array) == pytest.approx(UNKNOWN_JITTER + 1.5 * 0.4)
    assert pause([lasting(3.0)], arm=array) == pytest.approx(UNKNOWN_JITTER + 2.0), "nothing is known of it"
    short = [lasting(1.3), lasting(1.1, arm=array.id)]
    assert pause(short, arm=array) == pause(short), "short pauses are the same for all"


WRITES = Job("write", 256 * 1024, iodepth=32, ramp=0, seconds=1)
CACHED = Arm(Place.TWIN, Mode("cached", RawFile(), Attach(cache="writeback")))


def test_the_ends_of_slices_that_write_to_a_cache_count_for_their_arm_alone() -> None:
    pauses = Pauses()

    def last(arm: Arm | None = None) -> float:
        return pauses.after(WRITES, in_guest=False, rotational=False, arm=arm) - pauses.jitter

    assert last(CACHED) > last() + 0.03, "8 MiB may be in flight"
    before = last(CACHED)
    pauses.learn([lasting(1.01, WRITES) for _ in range(20)])
    assert last(CACHED) == pytest.approx(before), "what others write to disks says nothing about it"
    pauses.learn([lasting(1.2, WRITES, arm=CACHED.id) for _ in range(20)])
    assert last(CACHED) == pytest.approx(0.2)
    assert last() == pytest.approx(0.01)


def test_reads_of_a_cached_arm_alternate_with_those_of_others() -> None:
    reads = [lasting(1.02), lasting(1.3, arm=CACHED.id)]
    assert pause(reads, arm=CACHED) == pause(reads) == pytest.approx(UNKNOWN_JITTER + 0.3)


def test_the_disks_of_an_array_complete_together_what_is_in_flight() -> None:
    array = Arm(Place.TWIN, Mode("array", Md(0, 4), None))
    assert pause(rotational=True, arm=array) == pytest.approx(UNKNOWN_JITTER + 32 / 80 / 4)


def run_of(*apart: float, number: int = 1, arms: Sequence[str] = ("host",)) -> list[Measurement]:
    """Slices of a round on these arms in turn, with so many seconds from each start to the next one."""
    starts = accumulate(apart, initial=100.0 * number)
    return [
        replace(lasting(1.0, arm=arms[index % len(arms)]), round=number, started=start)
        for index, start in enumerate(starts)
    ]


def close_by(mean: float, chance: random.Random, slices: int = 200) -> list[float]:
    """The times between starts, of which half come closer than 1.1 s, by this mean."""
    return [1.1 + chance.choice([-1, 1]) * chance.expovariate(1 / mean) for _ in range(slices)]


@pytest.mark.parametrize("mean", [0.004, 0.02, 0.1])
def test_the_pause_costs_least_together_with_the_slices_that_overlap_in_spite_of_it(mean: float) -> None:
    chance = random.Random(1)
    learned = pause(run_of(*close_by(mean, chance)))
    later = [1.1 - apart for apart in close_by(mean, chance, 20_000)]

    def cost(seconds: float) -> float:
        """For each slice of a second: an overlap costs four of them."""
        return seconds + 4 * sum(closer > seconds for closer in later) / len(later)

    assert cost(learned) < 1.1 * min(cost(learned * factor) for factor in (0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.5, 2))


def test_a_machine_that_starts_everything_on_time_needs_the_shortest_pause() -> None:
    assert pause(run_of(*[1.1] * 50)) == pytest.approx(LEAST_JITTER)


def test_few_slices_do_not_show_that_starts_are_exact() -> None:
    assert pause(run_of(*[1.1] * 10)) == FEW_JITTER
    assert pause(run_of(*[1.1] * 25)) == FEW_JITTER


def test_the_last_round_shows_how_exact_starts_are() -> None:
    unlike = run_of(1.1, 0.8, 1.1)
    last = run_of(1.1, 1.04, 1.1, number=2)
    assert pause(unlike, last) == pause(last) < pause(unlike)


def test_all_timetables_of_the_round_show_it_also_if_their_pauses_differ() -> None:
    assert pause(run_of(1.1, 1.0, 1.1), run_of(1.5, 1.5, 1.5)) == pause(run_of(1.1, 1.0, 1.1))
    assert pause(run_of(1.5, 1.5, 1.5), run_of(1.1, 1.1, 1.1, 1.1)) == FEW_JITTER


def test_a_machine_that_was_stuck_once_does_not_make_all_pauses_long() -> None:
    assert pause(run_of(30.0, 30.0, 1.1)) == MOST_JITTER
    assert pause(run_of(1.1, 0.2, *[1.1] * 60)) == LEAST_JITTER


def test_one_hiccup_among_few_slices_does_not_make_pauses_long() -> None:
    assert pause(run_of(1.0, *[1.1] * 10)) <= FEW_JITTER
    assert pause(run_of(1.0, *[1.1] * 9)) > 0.1


def test_a_guest_whose_slices_all_start_late_does_not_make_pauses_long() -> None:
    assert pause(run_of(*[1.2, 1.0] * 4, arms=("host", "guest:lvm"))) == FEW_JITTER


def test_two_slices_do_not_show_how_exact_starts_are() -> None:
    assert pause(run_of(1.1)) == UNKNOWN_JITTER


def test_the_ends_of_other_jobs_do_not_count() -> None:
    assert pause([lasting(1.5, OTHER)]) == pause()
    assert pause([lasting(1.5, OTHER), lasting(1.1)]) == pytest.approx(UNKNOWN_JITTER + 0.1)


def test_the_pause_is_never_shorter_than_the_start_of_a_slice_needs() -> None:
    assert pause([lasting(0.9)]) == UNKNOWN_JITTER
    assert pause([lasting(1.0)]) == UNKNOWN_JITTER


def test_slices_that_piled_up_on_a_slow_disk_count_with_their_share_of_the_time_in_which_it_was_busy() -> None:
    piled = [build_measurement("host", job=JOB, started=1000 + late, seconds=60.0 - late) for late in range(60)]
    assert pause(piled) == pytest.approx(LEAST_JITTER + 1, abs=0.2), "twice a second each, without the slice itself"
    assert pause([*piled, *[lasting(4.0) for _ in range(3)]]) > 3, "what ran alone counts as it was"


def test_two_slices_of_which_one_ended_late_count_as_they_were() -> None:
    pair = [build_measurement("host", job=JOB, started=1000.0 + late, seconds=1.3) for late in (0.0, 1.2)]
    assert pause(pair) == pause([lasting(1.3), lasting(1.3)])
