"""Interim looks: when they take place, at which confidence, and when a cell has enough rounds."""

from __future__ import annotations

import itertools
import random

import pytest

from harness.analysis import (
    IN_ORDER,
    Limit,
    Look,
    Reason,
    Samples,
    Sequential,
    Verdict,
    decided,
    estimate_overhead,
    exceeds_p_value,
    judge_look,
    looks,
)

PLAN = Sequential(first=3, most=27)
ALLOWED = Limit(0.30)


def pair(overhead: float, noise: float, n: int, seed: int = 1) -> tuple[list[float], list[float]]:
    """Throughputs of `n` rounds of a guest slower by `overhead`; the noise has exactly no mean where n is even."""
    chance = random.Random(seed)
    host = [50_000 * chance.uniform(0.8, 1.2) for _ in range(n)]
    return host, [h * (1 - overhead) * (1 + noise * (-1) ** index) for index, h in enumerate(host)]


def reason(
    overhead: float,
    noise: float,
    n: int,
    *,
    budget: Limit = ALLOWED,
    target: float | None = 0.05,
    cells: int = 1,
    time_spent: bool = False,
    samples: Samples = IN_ORDER,
) -> Reason | None:
    host, guest = pair(overhead, noise, n)
    return decided(
        host,
        guest,
        PLAN,
        higher_is_better=True,
        budget=budget,
        target=target,
        cells=cells,
        time_spent=time_spent,
        samples=samples,
    )


# --- when ---


def test_looks_grow_by_half() -> None:
    assert looks(3, 27) == (3, 5, 8, 12, 18, 27)
    assert looks(2, 5) == (2, 3, 5)


@pytest.mark.parametrize(
    ("first", "most", "planned"), [(3, 10, (3, 5, 10)), (3, 6, (3, 6)), (3, 4, (3, 4)), (5, 5, (5,)), (1, 1, (1,))]
)
def test_no_look_is_close_before_the_last(first: int, most: int, planned: tuple[int, ...]) -> None:
    assert looks(first, most) == planned


def test_looks_always_rise_from_the_first_to_the_most() -> None:
    for first, most in itertools.combinations_with_replacement(range(1, 60), 2):
        planned = looks(first, most)
        assert planned[0] == first
        assert planned[-1] == most
        assert list(planned) == sorted(set(planned))


@pytest.mark.parametrize(("first", "most"), [(0, 3), (4, 3), (-1, -1)])
def test_impossible_looks_are_refused(first: int, most: int) -> None:
    with pytest.raises(ValueError, match="the first look must be"):
        looks(first, most)


# --- what each may spend ---


@pytest.mark.parametrize("shape", [0.0, 0.25, 0.4, 0.5])
@pytest.mark.parametrize(("first", "most"), [(3, 27), (3, 10), (2, 40), (5, 5)])
def test_the_levels_of_planned_looks_rise_and_spend_more_together_than_the_union_bound_allows(
    first: int, most: int, shape: float
) -> None:
    plan = Sequential(first, most, shape=shape)
    levels = [look.alpha for rounds in plan.looks if (look := plan.look(rounds))]
    assert levels == sorted(levels)
    assert min(levels) > 0
    assert 0.05 * (1 - 1e-9) <= sum(levels) < 2 * 0.05


@pytest.mark.parametrize("stop", range(1, 27))
def test_a_last_look_before_the_planned_one_may_have_what_is_left(stop: int) -> None:
    before = [look.alpha for rounds in PLAN.looks if rounds < stop and (look := PLAN.look(rounds))]
    last, planned = PLAN.look(stop, final=True), PLAN.look(stop)
    assert last is not None
    assert max(0.05 - sum(before), *before, 0.0) < last.alpha <= 0.05 + 1e-12
    assert planned is None or planned.alpha < last.alpha


def test_one_look_is_the_fixed_design() -> None:
    look = Sequential(first=5, most=5).look(5)
    assert look is not None
    assert look.confidence == 0.95
    assert look.adjusted(0.01) == 0.01
    assert look.error_rate == pytest.approx(0.025)


@pytest.mark.parametrize("rounds", PLAN.looks)
def test_a_p_value_at_a_planned_look_is_at_the_level_of_all_looks_that_it_has_there(rounds: int) -> None:
    look = PLAN.look(rounds)
    assert look is not None
    assert look.adjusted(look.alpha / 2) == pytest.approx(0.025)
    adjusted = [look.adjusted(10**-exponent) for exponent in range(1, 12)]
    assert adjusted == sorted(adjusted, reverse=True)
    assert all(p > 10**-exponent for exponent, p in enumerate(adjusted, start=1))
    assert (look.adjusted(0.0), look.adjusted(0.7)) == (0.0, 1.0)
    for level in (0.01, 0.001, 1e-6):
        stricter = Sequential(3, 27, confidence=1 - level).look(rounds)
        assert stricter is not None
        assert look.adjusted(stricter.alpha / 2) == pytest.approx(level / 2, rel=1e-6)


def test_a_p_value_is_adjusted_for_the_looks_and_is_never_above_one() -> None:
    look = Look(rounds=3, alpha=0.01, alpha_of_all=0.05)
    assert look.adjusted(0.004) == pytest.approx(0.02)
    assert look.adjusted(0.5) == 1


def test_there_is_no_look_between_the_planned_ones() -> None:
    assert PLAN.look(4) is None
    assert PLAN.look(1) is None


@pytest.mark.parametrize("rounds", [0, 28])
def test_rounds_outside_of_the_plan_are_refused(rounds: int) -> None:
    with pytest.raises(ValueError, match="1 to 27 rounds"):
        PLAN.look(rounds)


@pytest.mark.parametrize(("confidence", "shape"), [(95.0, 0.4), (0.0, 0.4), (0.95, 0.6), (0.95, float("nan"))])
def test_an_impossible_plan_is_refused(confidence: float, shape: float) -> None:
    with pytest.raises(ValueError, match=r"confidence must be a share|shape of the boundary"):
        Sequential(3, 27, confidence, shape)


# --- the judgement at a look ---


def test_a_look_makes_its_interval_and_its_p_value_at_its_own_level() -> None:
    host, guest = pair(0.35, 0.01, 3)
    look = PLAN.look(3)
    assert look is not None
    judgement = judge_look(host, guest, Limit(0.30), look, higher_is_better=True)
    assert judgement.overhead == estimate_overhead(host, guest, higher_is_better=True, confidence=look.confidence)
    p = exceeds_p_value(host, guest, Limit(0.30), higher_is_better=True)
    assert p is not None
    assert judgement.p_value == pytest.approx(look.adjusted(p))
    assert judgement.added is None


@pytest.mark.parametrize("budget", [Limit(0.1), Limit(0.1, 10.0, "looser"), Limit(0.1, 10.0, "stricter")])
def test_at_a_look_exceeds_and_a_small_p_value_are_the_same_thing(budget: Limit) -> None:
    chance = random.Random(7)
    exceeding = 0
    for _ in range(300):
        rounds = chance.choice(PLAN.looks)
        look = PLAN.look(rounds)
        assert look is not None
        host = [100 * chance.lognormvariate(0, 0.1) for _ in range(rounds)]
        worse = chance.uniform(1.0, 1.4)
        guest = [value * worse * chance.lognormvariate(0, 0.03) for value in host]
        judgement = judge_look(host, guest, budget, look, higher_is_better=False)
        assert judgement.p_value is not None
        assert (judgement.verdict is Verdict.EXCEEDS) == (judgement.p_value <= look.error_rate)
        exceeding += judgement.verdict is Verdict.EXCEEDS
    assert 20 < exceeding < 280


def test_one_round_is_inconclusive_and_no_budget_unjudged_at_any_look() -> None:
    look = PLAN.look(1, final=True)
    assert look is not None
    assert judge_look([1.0], [2.0], Limit(0.1), look, higher_is_better=False).verdict is Verdict.INCONCLUSIVE
    assert judge_look([1.0], [2.0], Limit(), look, higher_is_better=False).verdict is Verdict.UNJUDGED


def test_a_look_at_other_rounds_than_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="3 samples, not 4"):
        judge_look([1.0] * 4, [1.0] * 4, Limit(), Look(3, 0.01, 0.05), higher_is_better=False)


# --- enough ---


def test_a_quiet_cell_is_narrow_enough_at_the_first_look() -> None:
    assert reason(0.30, 0.002, 3) is Reason.NARROW


def test_a_noisy_cell_goes_on() -> None:
    assert reason(0.30, 0.05, 3) is None


def test_a_cell_far_below_its_budget_is_decided_however_wide_its_interval() -> None:
    assert reason(0.02, 0.04, 5) is Reason.BUDGET
    assert reason(0.02, 0.04, 5, budget=Limit()) is None


def test_a_cell_far_above_its_budget_is_decided() -> None:
    assert reason(0.70, 0.04, 5) is Reason.BUDGET


def test_among_many_cells_an_exceeds_needs_more_rounds_and_a_within_does_not() -> None:
    assert reason(0.45, 0.03, 5, target=None) is Reason.BUDGET
    assert reason(0.45, 0.03, 5, target=None, cells=200) is None
    assert reason(0.45, 0.03, 12, target=None, cells=200) is Reason.BUDGET
    assert reason(0.10, 0.03, 5, target=None, cells=200) is Reason.BUDGET


def test_between_two_looks_nothing_is_decided_however_clear() -> None:
    assert reason(0.90, 0.001, 4) is None


def test_time_is_the_reason_only_where_nothing_better_is() -> None:
    assert reason(0.30, 0.08, 4, time_spent=True) is Reason.TIME
    assert reason(0.90, 0.001, 4, time_spent=True) is Reason.BUDGET
    assert reason(0.30, 0.08, 1, time_spent=True) is Reason.TIME


def test_after_the_most_rounds_there_are_no_more() -> None:
    assert reason(0.30, 0.4, 27) is Reason.MOST
    assert reason(0.30, 0.4, 27, time_spent=True) is Reason.MOST


def test_reasons_read_as_words() -> None:
    assert [str(each) for each in Reason] == [
        "budget decided",
        "narrow enough",
        "cannot be decided in the time left",
        "too few I/Os for a percentile",
        "most rounds",
        "time spent",
        "promised bytes written",
        "limit of the bytes written",
        "longer slices are necessary",
    ]


def test_a_run_without_a_cell_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one cell"):
        reason(0.1, 0.01, 3, cells=0)
