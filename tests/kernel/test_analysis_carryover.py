"""Carry-over: found where the previous arm matters, and not where only blocks and arms differ."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from harness.analysis import Observation, find_carry_over
from harness.analysis.slices import OTHER_JOB

ARMS = ("host", "twin", "guest")


def slices(blocks: int, *, noise: float, after_guest: float = 0.0, seed: int = 1) -> list[Observation]:
    """Slices of a drifting disk: the guest is slower, and what runs after the guest changes by `after_guest`."""
    chance = random.Random(seed)
    found: list[Observation] = []
    previous = None
    for block in range(blocks):
        for arm in chance.sample(ARMS, len(ARMS)):
            value = 9 - 0.05 * block - 0.2 * ARMS.index(arm) + chance.gauss(0, noise)
            found.append(Observation(block, arm, previous, value + (after_guest if previous == "guest" else 0)))
            previous = arm
    return found


def test_an_effect_of_the_previous_arm_is_found_with_its_cause_and_its_size() -> None:
    found = find_carry_over(slices(20, noise=0.02, after_guest=math.log(0.8)))
    assert found.shown()
    assert found.cause == "guest"
    assert found.effect == pytest.approx(-0.2, abs=0.03)


def test_a_cache_that_drains_while_other_jobs_run_is_found() -> None:
    def cached(at: int, each: Observation) -> Observation:
        first = at % len(ARMS) == 0
        return replace(each, after_other_job=first, log_value=each.log_value + (0.4 if first else 0.0))

    found = find_carry_over([cached(at, each) for at, each in enumerate(slices(20, noise=0.02))])
    assert found.shown()
    assert found.cause == OTHER_JOB
    assert found.effect == pytest.approx(math.expm1(0.4), abs=0.05)


def test_drift_and_slow_arms_are_no_carry_over() -> None:
    found = find_carry_over(slices(20, noise=0.02))
    assert found.enough
    assert not found.shown(0.01)
    assert find_carry_over(slices(20, noise=0.0)).p_value == 1.0


def test_an_effect_without_any_noise_is_certain() -> None:
    found = find_carry_over(slices(20, noise=0.0, after_guest=-0.1))
    assert found.p_value == 0.0
    assert found.effect == pytest.approx(math.expm1(-0.1))


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_few_slices_are_not_enough_for_a_test(blocks: int) -> None:
    found = find_carry_over(slices(blocks, noise=0.02))
    assert not found.enough
    assert not found.shown()


def test_one_arm_that_always_follows_itself_shows_nothing() -> None:
    alone = [Observation(block, "host", "host", 1.0 + block) for block in range(50)]
    assert not find_carry_over(alone).enough


def test_a_block_that_lacks_an_arm_still_counts() -> None:
    full = slices(20, noise=0.02)
    assert find_carry_over(full[:-1]).n == find_carry_over(full).n - 1


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        find_carry_over([Observation(0, "host", None, math.nan)])
