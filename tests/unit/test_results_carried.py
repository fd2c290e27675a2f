"""Carry-over between the slices of a group: found where it is, and not where there is none."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from harness.model.job import Job
from harness.results import Measurement
from harness.results.carried import carry_over_note, carry_overs

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
                    found.append(measurement(number, block, arm, job, started=len(found), iops=iops))
                    previous = arm
    return found


def measurement(number: int, block: int, arm: str, job: Job, *, started: float, iops: float) -> Measurement:
    return Measurement(
        group="g",
        round=number,
        arm=arm,
        repeat=1,
        job=job.id,
        started=started,
        seconds=1,
        wall=1,
        metrics={"iops": iops},
        io_bytes=4096,
        raw="raw/1.json",
        block=block,
    )


def test_an_arm_that_disturbs_the_next_slice_is_named_with_its_effect() -> None:
    (found,) = carry_overs(measured(-0.2), [JOB])
    assert (found.job, found.shown, found.cause) == (JOB.id, True, "guest:lvm")
    assert found.effect == pytest.approx(-0.2, abs=0.05)
    assert "guest:lvm ran before it" in carry_over_note(found)


def test_without_carry_over_nothing_is_shown() -> None:
    (found,) = carry_overs(measured(0.0), [JOB])
    assert not found.shown


def test_each_job_is_tested_with_the_slice_of_any_job_before_it() -> None:
    found = carry_overs(measured(-0.2, jobs=(JOB, OTHER)), [JOB, OTHER])
    assert {each.job: each.shown for each in found} == {JOB.id: True, OTHER.id: True}


def test_too_few_slices_show_nothing() -> None:
    assert carry_overs(measured(-0.2, blocks=1), [JOB]) == ()


def test_the_first_slice_of_a_round_and_slices_that_overlapped_are_not_used() -> None:
    several = measured(-0.2, blocks=4, rounds=3)
    spoiled = [replace(each, overlap="host", metrics={"iops": 1e6}) if each.block == 1 else each for each in several]
    (found,) = carry_overs(spoiled, [JOB])
    assert found.effect == pytest.approx(-0.2, abs=0.07)
