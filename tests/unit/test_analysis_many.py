"""Many cells: Holm's procedure, and an `exceeds` that does not survive it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from scipy import stats

from harness.analysis import (
    Estimate,
    Judgement,
    Limit,
    Reason,
    Sequential,
    Verdict,
    benjamini_hochberg,
    decided,
    holm,
    judge_look,
)
from harness.analysis import correct_verdicts as surviving

ALPHA = 0.025


def judgement(verdict: Verdict, p: float | None) -> Judgement:
    return Judgement(Estimate(0.1, 0.0, 0.2, 5), None, verdict, p)


def standing(run: Sequence[Judgement], *, family: int | None = None) -> list[Verdict]:
    return surviving(run, family=len(run) if family is None else family, error_rate=ALPHA)


def closed_testing(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Holm's procedure as it is derived: reject what every Bonferroni test of every subset that holds it rejects."""
    numbers = range(len(p_values))
    subsets = [s for size in range(1, len(p_values) + 1) for s in itertools.combinations(numbers, size)]
    return [all(min(p_values[i] for i in s) * len(s) <= alpha for s in subsets if one in s) for one in numbers]


def test_holms_own_kind_of_example() -> None:
    # Sorted: 0.005 <= 0.05/4, 0.01 <= 0.05/3, 0.03 > 0.05/2: the last two stand or fall together.
    assert holm([0.01, 0.04, 0.03, 0.005], 0.05) == [True, False, False, True]


@pytest.mark.parametrize("seed", range(50))
def test_benjamini_and_hochberg_reject_what_scipy_adjusts_to_the_level(seed: int) -> None:
    chance = random.Random(seed)
    p_values = [chance.random() ** chance.choice([1, 4]) for _ in range(chance.randint(1, 30))]
    adjusted = stats.false_discovery_control(p_values)
    assert benjamini_hochberg(p_values, 0.05) == [bool(p <= 0.05) for p in adjusted]


def test_a_hypothesis_without_a_p_value_counts_but_is_never_rejected() -> None:
    assert benjamini_hochberg([0.03], 0.05) == [True]
    assert benjamini_hochberg([0.03, None], 0.05) == [False, False]
    assert benjamini_hochberg([], 0.05) == []


@pytest.mark.parametrize(("p_value", "alpha"), [(1.5, 0.05), (0.5, 2.0)])
def test_a_false_discovery_rate_needs_probabilities(p_value: float, alpha: float) -> None:
    with pytest.raises(ValueError, match="probability"):
        benjamini_hochberg([p_value], alpha)


@pytest.mark.parametrize("seed", range(100))
def test_holm_is_closed_testing_with_bonferroni(seed: int) -> None:
    chance = random.Random(seed)
    p_values = [chance.random() ** 4 for _ in range(chance.randint(1, 7))]
    assert holm(p_values, 0.05) == closed_testing(p_values, 0.05)


def test_a_single_p_value_is_compared_with_alpha_itself() -> None:
    assert holm([0.025], 0.025) == [True]
    assert holm([0.0251], 0.025) == [False]
    assert holm([], 0.025) == []


def test_a_missing_p_value_is_not_rejected_and_still_counts() -> None:
    assert holm([None, 0.02], 0.025) == [False, False]
    assert holm([None, 0.0125], 0.025) == [False, True]


@pytest.mark.parametrize(("p_values", "alpha"), [([1.1], 0.05), ([float("nan")], 0.05), ([0.5], 5.0)])
def test_values_that_are_not_probabilities_are_refused(p_values: list[float], alpha: float) -> None:
    with pytest.raises(ValueError, match="probability"):
        holm(p_values, alpha)


def test_an_exceeds_that_does_not_survive_becomes_inconclusive_and_nothing_else_changes() -> None:
    run = [
        judgement(Verdict.EXCEEDS, 0.0001),
        judgement(Verdict.WITHIN, 0.9999),
        judgement(Verdict.EXCEEDS, 0.02),
        judgement(Verdict.INCONCLUSIVE, None),
    ]
    assert standing(run) == ["exceeds", "within", "inconclusive", "inconclusive"]


def test_every_hypothesis_of_the_run_counts_whether_or_not_it_has_evidence() -> None:
    alone = judgement(Verdict.EXCEEDS, 0.02)
    without_evidence = judgement(Verdict.INCONCLUSIVE, None)
    assert standing([alone]) == ["exceeds"]
    assert standing([alone, without_evidence])[0] is Verdict.INCONCLUSIVE
    assert standing([alone], family=2) == ["inconclusive"]


def test_the_family_is_at_least_what_was_tested() -> None:
    run = [judgement(Verdict.EXCEEDS, 0.02), judgement(Verdict.WITHIN, 0.9)]
    assert standing(run, family=0) == standing(run, family=2)


def test_one_cell_alone_keeps_its_verdict() -> None:
    plan = Sequential(3, 27)
    chance = random.Random(5)
    seen = set()
    for _ in range(300):
        rounds = chance.choice(plan.looks)
        look = plan.look(rounds)
        assert look is not None
        worse = chance.uniform(1.0, 1.3)
        guest = [worse * chance.lognormvariate(0, 0.02) for _ in range(rounds)]
        one = judge_look([1.0] * rounds, guest, Limit(0.1), look, higher_is_better=False)
        assert standing([one]) == [one.verdict]
        seen.add(one.verdict)
    assert seen == {Verdict.WITHIN, Verdict.EXCEEDS, Verdict.INCONCLUSIVE}


def test_a_cell_that_ended_early_as_exceeding_keeps_its_verdict() -> None:
    plan, cells, budget = Sequential(6, 27), 20, Limit(0.1)
    chance = random.Random(11)
    stood = 0
    for _ in range(40):
        run = []
        for _ in range(cells):
            rounds = chance.choice(plan.looks)
            worse = chance.choice([1.1, 1.2, 1.4])
            guest = [worse * chance.lognormvariate(0, 0.03) for _ in range(rounds)]
            run.append(([1.0] * rounds, guest))
        judgements = []
        for host, guest in run:
            look = plan.look(len(host))
            assert look is not None
            judgements.append(judge_look(host, guest, budget, look, higher_is_better=False))
        for (host, guest), before, after in zip(run, judgements, standing(judgements), strict=True):
            why = decided(host, guest, plan, higher_is_better=False, budget=budget, target=None, cells=cells)
            if why is Reason.BUDGET and before.verdict is Verdict.EXCEEDS:
                assert after is Verdict.EXCEEDS
                stood += 1
    assert stood > 100
