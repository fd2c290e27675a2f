"""Changes between independent series: agreement with scipy, intervals that cover as often as stated, many changes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from harness.analysis import Change, Samples, estimate_change, find_shown_changes
from harness.features.compare.comparison import find_shown_equal


def series(seed: int, n: int, *, mean: float = 0.0, sd: float = 0.1) -> list[float]:
    """Log-normal values with this mean and standard deviation of the logarithm."""
    chance = random.Random(seed)
    return [chance.lognormvariate(mean, sd) for _ in range(n)]


def ends(change: Change) -> tuple[float, float]:
    assert change.low is not None
    assert change.high is not None
    return change.low, change.high


@pytest.mark.parametrize(("n", "sd", "m", "other_sd"), [(12, 0.1, 12, 0.1), (3, 0.02, 30, 0.4), (2, 0.5, 2, 0.01)])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_independent_samples_give_the_interval_and_the_p_value_of_welch(
    n: int, sd: float, m: int, other_sd: float, confidence: float
) -> None:
    before, after = series(1, n, sd=sd), series(2, m, mean=1.4, sd=other_sd)
    found = estimate_change(before, after, confidence=confidence)
    expected = stats.ttest_ind(np.log(after), np.log(before), equal_var=False)
    interval = expected.confidence_interval(confidence)
    assert ends(found) == pytest.approx((math.exp(interval.low), math.exp(interval.high)), rel=1e-7)
    assert found.ratio == pytest.approx(stats.gmean(after) / stats.gmean(before))
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-6)
    assert (found.n_before, found.n_after) == (n, m)


def test_the_means_of_boots_are_the_samples_if_there_are_several_boots() -> None:
    boots = (1, 1, 1, 2, 2, 2, 3, 3, 3)
    before, after = series(3, 9), series(4, 9, mean=0.5)
    found = estimate_change(before, after, samples_before=Samples(boots), samples_after=Samples(boots))
    means = [np.log(values).reshape(3, 3).mean(axis=1) for values in (before, after)]
    interval = stats.ttest_ind(means[1], means[0], equal_var=False).confidence_interval()
    assert ends(found) == pytest.approx((math.exp(interval.low), math.exp(interval.high)), rel=1e-7)
    assert (found.n_before, found.n_after) == (3, 3)


@pytest.mark.parametrize(("n", "m"), [(12, 12), (12, 30), (30, 30)])
def test_an_interval_contains_the_truth_as_often_as_stated(n: int, m: int) -> None:
    found = []
    for seed in range(300):
        before = series(2 * seed, n, sd=0.05)
        after = series(2 * seed + 1, m, mean=math.log(4.1), sd=0.2)
        found.append(estimate_change(before, after))
    assert 0.92 <= sum(low <= 4.1 <= high for low, high in map(ends, found)) / len(found) <= 0.98


def test_before_and_after_exchanged_give_the_inverse() -> None:
    before, after = series(7, 8), series(8, 14, mean=-1)
    one, other = estimate_change(before, after), estimate_change(after, before)
    assert ends(one) == pytest.approx([1 / end for end in reversed(ends(other))], rel=1e-6)
    assert one.p_value == pytest.approx(other.p_value, rel=1e-6)


def test_one_sample_gives_no_interval() -> None:
    found = estimate_change([1.0], [2.0, 2.1, 1.9])
    assert found.ratio == pytest.approx(stats.gmean([2.0, 2.1, 1.9]))
    assert (found.low, found.high, found.p_value) == (None, None, None)
    assert not found.excludes_one


@pytest.mark.parametrize(("after", "p_value"), [(2.0, 1.0), (3.0, 0.0)])
def test_series_without_any_spread_have_an_interval_of_width_0(after: float, p_value: float) -> None:
    found = estimate_change([2.0] * 3, [after] * 4)
    assert ends(found) == (found.ratio, found.ratio)
    assert found.p_value == p_value


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ([], [1.0], "at least one sample"),
        ([1.0, 0.0], [1.0], "before value 1 is 0"),
        ([1.0], [math.nan], "after value 0 is nan"),
    ],
)
def test_values_that_no_ratio_can_have_are_refused(before: Sequence[float], after: Sequence[float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        estimate_change(before, after)
    with pytest.raises(ValueError, match="confidence"):
        estimate_change([1.0, 2.0], [1.0, 2.0], confidence=95)


def change(p_value: float | None, low: float | None = 1.1, high: float | None = 1.3) -> Change:
    return Change(1.2, low, high, p_value, 12, 12)


def test_one_small_p_value_among_many_changes_is_chance() -> None:
    assert find_shown_changes([change(0.04)]) == [True]
    assert find_shown_changes([change(0.04), *[change(0.5, 0.9)] * 19]) == [False] * 20


def test_many_changes_are_shown_together() -> None:
    assert find_shown_changes([change(0.04)] * 20) == [True] * 20


def test_a_change_without_an_interval_is_never_shown_and_counts() -> None:
    assert find_shown_changes([change(0.04), change(None, None, None)]) == [False, False]
    assert find_shown_changes([change(0.02), change(None, None, None)]) == [True, False]
    assert find_shown_changes([]) == []


def test_an_interval_that_includes_1_shows_nothing() -> None:
    assert find_shown_changes([change(0.04, 0.9)]) == [False]


def test_equality_has_the_p_value_of_two_one_sided_tests() -> None:
    before, after = series(11, 20, sd=0.03), series(12, 20, mean=0.01, sd=0.03)
    found = estimate_change(before, after, margin=0.05)
    bound = math.log(1.05)
    tests = [
        stats.ttest_ind(np.log(after) + bound, np.log(before), equal_var=False, alternative="greater"),
        stats.ttest_ind(np.log(after) - bound, np.log(before), equal_var=False, alternative="less"),
    ]
    assert found.equal_p_value == pytest.approx(max(test.pvalue for test in tests), rel=1e-6)
    far = estimate_change(before, [value * 1.2 for value in after])
    assert far.equal_p_value is not None
    assert far.equal_p_value > 0.9


def test_a_change_by_the_margin_is_seldom_called_equal() -> None:
    found = [
        estimate_change(series(2 * seed, 20, sd=0.03), series(2 * seed + 1, 20, mean=math.log(1.05), sd=0.03))
        for seed in range(200)
    ]
    assert sum(find_shown_equal([each], 0.05) == [True] for each in found) <= 0.06 * len(found)


def test_equal_within_the_margin_is_shown_as_one_of_many() -> None:
    narrow = Change(1.0, 0.98, 1.02, 0.9, 12, 12, 0.04)
    assert find_shown_equal([narrow], 0.05) == [True]
    assert find_shown_equal([narrow], 0.01) == [False]
    assert find_shown_equal([narrow, *[change(0.5, 0.9)] * 19], 0.05) == [False] * 20
    assert find_shown_equal([change(None, None, None)], 0.05) == [False]
