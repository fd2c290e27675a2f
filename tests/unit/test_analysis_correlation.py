"""The correlation of neighbouring samples and boots: what they do to an interval and to a p value."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import toeplitz

from harness.analysis import (
    IN_ORDER,
    INDEPENDENT,
    Caveat,
    Correlation,
    Estimate,
    Limit,
    Look,
    Reason,
    Samples,
    Sequential,
    Verdict,
    decided,
    estimate_added,
    estimate_mean,
    estimate_overhead,
    exceeds_p_value,
    judge,
    judge_look,
    log_ratios,
    mean_interval,
    pool_correlations,
)
from harness.analysis.samples import Sums, correlations, inflation
from harness.analysis.student import t_mixture_quantile, t_mixture_survival


def series(rho: float, n: int, seed: int, noise: float = 0.05) -> list[float]:
    """AR(1) with a mean of 0."""
    chance = random.Random(seed)
    found = [chance.gauss(0, noise)]
    while len(found) < n:
        found.append(rho * found[-1] + chance.gauss(0, noise * math.sqrt(1 - rho * rho)))
    return found


def pairs(rho: float, n: int, seed: int) -> tuple[list[float], list[float]]:
    return [100.0] * n, [90 * math.exp(each) for each in series(rho, n, seed)]


def job(*several: Sequence[float]) -> Correlation:
    """What the cells of a job show whose samples are of the same blocks."""
    return pool_correlations(dict(enumerate(each)) for each in several)


def half_width(estimate: Estimate) -> float:
    assert estimate.half_width is not None
    return estimate.half_width


# --- against the definitions, with matrices ---


@pytest.mark.parametrize("rho", [-0.9, -0.3, 0.0, 0.5, 0.97])
@pytest.mark.parametrize("n", [3, 4, 9, 40])
def test_likelihood_and_error_are_those_of_the_matrices(rho: float, n: int) -> None:
    x = np.array(series(0.4, n, n)) + 3
    covariance = toeplitz(rho ** np.arange(n)) / (1 - rho * rho)
    inverse, ones = np.linalg.inv(covariance), np.ones(n)
    mean = ones @ inverse @ x / (ones @ inverse @ ones)
    residual = (x - mean) @ inverse @ (x - mean)
    likelihood = (
        -np.linalg.slogdet(covariance)[1] / 2 - math.log(ones @ inverse @ ones) / 2 - (n - 1) / 2 * math.log(residual)
    )
    variance = residual / (n - 1) * ones @ covariance @ ones / n**2
    sums = Sums.of(x.tolist())
    assert sums.residual(rho) == pytest.approx(residual)
    assert sums.log_likelihood(rho) == pytest.approx(likelihood)
    assert sums.error(rho) == pytest.approx(math.sqrt(variance))
    assert inflation(rho, n) == pytest.approx(ones @ covariance @ ones * (1 - rho * rho) / n)


def test_the_quantile_of_a_mixture_is_the_inverse_of_its_tail() -> None:
    scales, weights = [0.5, 1.0, 8.0], [0.7, 0.2, 0.1]
    for tail in (0.4, 0.025, 1e-5):
        distance = t_mixture_quantile(tail, 7, scales, weights)
        assert t_mixture_survival(distance, 7, scales, weights) == pytest.approx(tail, rel=1e-9)
    assert t_mixture_quantile(0.025, 7, [2.0, 2.0], [0.5, 0.5]) == pytest.approx(2 * stats.t.ppf(0.975, 7))


# --- one boot ---


def test_neighbours_that_are_alike_make_the_interval_wider() -> None:
    host, guest = pairs(0.8, 30, 1)
    plain = estimate_overhead(host, guest, higher_is_better=True, samples=INDEPENDENT)
    allowed = estimate_overhead(host, guest, higher_is_better=True)
    assert allowed.point == plain.point
    assert half_width(allowed) > 1.5 * half_width(plain)
    assert allowed.correlation is not None
    assert allowed.correlation > 0.4
    assert allowed.effective_n is not None
    assert allowed.effective_n < 15


def test_independent_samples_cost_little_width() -> None:
    widths = []
    for seed in range(40):
        host, guest = pairs(0.0, 30, seed)
        plain = estimate_overhead(host, guest, higher_is_better=True, samples=INDEPENDENT)
        widths.append(half_width(estimate_overhead(host, guest, higher_is_better=True)) / half_width(plain))
    assert np.median(widths) < 1.1


def test_too_few_samples_are_treated_as_independent_and_say_so() -> None:
    host, guest = pairs(0.8, 5, 2)
    found = estimate_overhead(host, guest, higher_is_better=True)
    plain = estimate_overhead(host, guest, higher_is_better=True, samples=INDEPENDENT)
    assert (found.low, found.high) == (plain.low, plain.high)
    assert found.caveat is Caveat.NOT_ESTIMATED
    assert plain.caveat is None


@pytest.mark.parametrize(("n", "caveat"), [(6, Caveat.ROUGH), (9, Caveat.ROUGH), (10, None)])
def test_few_samples_show_their_correlation_roughly(n: int, caveat: Caveat | None) -> None:
    assert estimate_overhead(*pairs(0.2, n, 5), higher_is_better=True).caveat is caveat


def test_many_short_series_of_a_job_show_what_one_cannot() -> None:
    alike = job(*(series(0.8, 6, seed) for seed in range(24)))
    unlike = job(*(series(0.0, 6, seed) for seed in range(24)))
    assert alike.value == pytest.approx(0.8, abs=0.2)
    assert unlike.value == pytest.approx(0.0, abs=0.2)
    host, guest = pairs(0.5, 6, 3)
    wide, narrow = (
        estimate_overhead(host, guest, higher_is_better=True, samples=Samples(correlation=of_job))
        for of_job in (alike, unlike)
    )
    assert half_width(wide) > 1.3 * half_width(narrow)


@pytest.mark.parametrize(("n", "caveat"), [(6, Caveat.ROUGH), (9, Caveat.ROUGH), (10, None)])
def test_more_cells_of_a_job_do_not_replace_longer_series(n: int, caveat: Caveat | None) -> None:
    found = job(*(series(0.2, n, seed) for seed in range(24)))
    assert estimate_mean(series(0.2, n, 0), samples=Samples(correlation=found)).caveat is caveat


def test_cells_with_the_same_noise_show_what_one_of_them_shows() -> None:
    own = series(0.5, 12, 4)
    together, alone = job(*[[scale * each for each in own] for scale in (1, -3, 7)]), Correlation.of(own)
    assert together.freedom == pytest.approx(alone.freedom)
    assert together.weights == pytest.approx(alone.weights)


def test_cells_that_share_a_part_of_their_noise_show_less_than_independent_ones() -> None:
    host, guests = series(0.0, 200, 1), [series(0.0, 200, seed) for seed in (2, 3, 4)]
    shared = job(*([a - b for a, b in zip(guest, host, strict=True)] for guest in guests))
    assert job(*guests).freedom == pytest.approx(3 * 198, rel=0.03)
    # Half of the variance is common, so each two series count as 1 / (1 + 0.5 ** 2) of two independent ones.
    assert shared.freedom == pytest.approx(3 * 198 / (1 + 2 * 0.25), rel=0.1)


def test_samples_of_the_same_block_are_compared_although_a_cell_lacks_some_blocks() -> None:
    whole = dict(enumerate(series(0.0, 12, 5)))
    most = {block: value for block, value in whole.items() if block != 2}
    assert pool_correlations([whole, most]).freedom == pytest.approx(10, abs=0.6)
    assert pool_correlations([whole, dict(enumerate(most.values()))]).freedom > 13
    assert pool_correlations([whole, {block + 12: value for block, value in whole.items()}]).freedom == 20


def test_a_loud_cell_counts_as_much_as_a_quiet_one_and_its_unit_does_not_matter() -> None:
    plain = job(series(0.5, 8, 1), series(0.0, 8, 2))
    scaled = job([1e6 * each - 7 for each in series(0.5, 8, 1)], series(0.0, 8, 2))
    assert scaled.value == pytest.approx(plain.value, abs=1e-6)


def test_a_long_series_that_differs_from_its_job_is_judged_by_its_own_correlation() -> None:
    own = series(0.8, 100, 3)
    of_job = job(own, *(series(0.0, 100, seed) for seed in range(20, 43)))
    found = estimate_mean(own, samples=Samples(correlation=of_job))
    assert of_job.value < 0.15
    assert found.correlation is not None
    assert found.correlation > 0.4


def test_series_that_show_nothing_are_not_an_estimate() -> None:
    assert job().freedom == 0
    assert job([1.0], [1.0, 2.0], [3.0] * 20).freedom == 0
    host, guest = pairs(0.5, 4, 3)
    nothing = Samples(correlation=job())
    assert estimate_overhead(host, guest, higher_is_better=True, samples=nothing).caveat is Caveat.NOT_ESTIMATED


def test_a_series_that_drifts_has_no_interval_and_no_p_value() -> None:
    host, guest = [100.0] * 40, [90 * math.exp(0.02 * at) for at in range(40)]
    found = estimate_overhead(host, guest, higher_is_better=True)
    assert (found.low, found.high, found.caveat) == (None, None, Caveat.DRIFTING)
    assert exceeds_p_value(host, guest, Limit(0.05), higher_is_better=True) is None
    judgement = judge_look(host, guest, Limit(0.05), Look(40, 0.05, 0.05), higher_is_better=True)
    assert (judgement.verdict, judgement.p_value) == (Verdict.INCONCLUSIVE, None)
    plan = Sequential(40, 60)
    assert decided(host, guest, plan, higher_is_better=True, budget=Limit(0.05), target=0.5, cells=1) is None


@pytest.mark.parametrize(("n", "why"), [(5, None), (6, None), (9, None), (10, Reason.BUDGET)])
def test_too_few_samples_decide_nothing_while_more_can_follow(n: int, why: Reason | None) -> None:
    host, guest = pairs(0.2, n, 5)
    for most, expected in ((40, why), (n, Reason.BUDGET)):
        plan = Sequential(n, most)
        assert decided(host, guest, plan, higher_is_better=True, budget=Limit(0.9), target=None, cells=1) is expected


@pytest.mark.parametrize("value", [0.3, 1e-12, 1e6])
def test_equal_samples_have_an_interval_without_width(value: float) -> None:
    found = mean_interval([value] * 20)
    assert (found.low, found.high) == pytest.approx((value, value))


@pytest.mark.parametrize("n", [6, 7, 30])
def test_samples_that_alternate_have_a_finite_interval(n: int) -> None:
    found = estimate_mean([(-1.0) ** at for at in range(n)])
    assert 0 < half_width(found) < 1


# --- intervals and p values agree ---


@pytest.mark.parametrize(
    "budget",
    [Limit(0.1), Limit(absolute=1e-5), Limit(0.1, 1e-5, "looser"), Limit(0.1, 1e-5, "stricter")],
    ids=["share", "absolute", "looser", "stricter"],
)
@pytest.mark.parametrize("kind", ["alone", "job", "boots", "independent"])
def test_interval_and_p_value_always_give_the_same_verdict(budget: Limit, kind: str) -> None:
    exceeding = 0
    for seed in range(150):
        chance = random.Random(seed)
        n = chance.randint(6, 16)
        host = [1e-4 * math.exp(each) for each in series(0.5, n, seed)]
        worse = chance.uniform(0.05, 0.25)
        guest = [value * math.exp(worse + each) for value, each in zip(host, series(0.5, n, seed + 999), strict=True)]
        samples = {
            "alone": IN_ORDER,
            "job": Samples(correlation=job(log_ratios(host, guest), *(series(0.0, n, at) for at in (7, 8, 9)))),
            "boots": Samples(boots=tuple(at // 3 for at in range(n))),
            "independent": INDEPENDENT,
        }[kind]
        look = Look(n, 0.02, 0.05)
        found = judge_look(host, guest, budget, look, higher_is_better=False, samples=samples)
        assert (found.verdict is Verdict.EXCEEDS) == (found.p_value is not None and found.p_value <= look.error_rate)
        level = budget.interval_confidence(0.98)
        overhead = estimate_overhead(host, guest, higher_is_better=False, confidence=level, samples=samples)
        added = estimate_added(host, guest, confidence=level, samples=samples)
        assert judge(overhead, budget, added) is found.verdict
        exceeding += found.verdict is Verdict.EXCEEDS
    assert 0 < exceeding < 150


def test_everything_that_makes_intervals_takes_the_same_samples() -> None:
    host, guest = pairs(0.8, 30, 1)
    samples = Samples(boots=tuple(at // 10 for at in range(30)))
    added = estimate_added(host, guest, samples=samples)
    assert {added.boots, mean_interval(guest, samples=samples).boots} == {3}


# --- boots ---


def means(values: Sequence[float], size: int) -> list[float]:
    return [float(np.mean(values[at : at + size])) for at in range(0, len(values), size)]


def test_of_several_boots_the_means_are_the_samples() -> None:
    host, guest = pairs(0.0, 20, 4)
    found = estimate_overhead(
        host, guest, higher_is_better=False, samples=Samples(boots=tuple(at // 5 for at in range(20)))
    )
    interval = stats.ttest_1samp(means(log_ratios(host, guest), 5), 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.expm1(interval.low), math.expm1(interval.high)), rel=1e-9)
    assert (found.n, found.boots) == (20, 4)


def test_blocks_of_one_boot_are_samples_about_that_boot() -> None:
    host, guest = pairs(0.0, 12, 4)
    one = Samples(boots=(7,) * 12)
    assert estimate_overhead(host, guest, higher_is_better=True, samples=one) == estimate_overhead(
        host, guest, higher_is_better=True
    )


def test_a_plan_may_count_boots() -> None:
    samples = Samples(boots=(1, 1, 1, 2, 2, 2), by_boot=True)
    host, guest = [100.0] * 6, [50.0, 51.0, 49.0, 50.0, 51.0, 49.5]
    assert samples.count(6) == 2
    assert Samples(boots=samples.boots).count(6) == 6
    plan = Sequential(2, 5)
    why = decided(host, guest, plan, higher_is_better=True, budget=Limit(0.1), target=None, cells=1, samples=samples)
    assert why is Reason.BUDGET
    with pytest.raises(ValueError, match="3 boots, not 2"):
        judge_look(host, guest, Limit(0.1), Look(3, 0.05, 0.05), higher_is_better=True, samples=samples)


# --- bad input ---


def test_boots_of_other_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="3 samples, 2 boots"):
        estimate_mean([1.0, 2.0, 3.0], samples=Samples(boots=(1, 2)))


def test_samples_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        job([1.0, math.nan, 2.0, 3.0])


def test_the_considered_correlations_are_symmetric_and_rise() -> None:
    values = correlations()
    assert list(values) == sorted(values)
    assert values == pytest.approx([-each for each in reversed(values)])
