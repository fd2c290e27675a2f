"""The overhead that a number of rounds can show: against published tables and simulated campaigns."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from harness.analysis import estimate_overhead
from harness.features.calibrate.noise import noncentrality, pool_sd, smallest_detectable


@pytest.mark.parametrize("df", [1, 2, 4, 9, 30, 200])
@pytest.mark.parametrize("power", [0.03, 0.5, 0.8, 0.99])
def test_the_noncentral_t_exceeds_its_critical_value_as_often_as_asked(df: int, power: float) -> None:
    critical = float(stats.t.ppf(0.975, df))
    assert stats.nct.sf(critical, df, noncentrality(critical, df, power)) == pytest.approx(power, abs=1e-6)


@pytest.mark.parametrize(("effect", "pairs"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_the_pairs_that_an_effect_needs_are_those_of_the_tables(effect: float, pairs: int) -> None:
    """Pairs for a power of 80 % at 5 %, two-sided: Cohen (1988), and to the pair G*Power and R's pwr.t.test.

    The effect is in standard deviations of the differences, here of the log ratios.
    """
    sd = 0.01
    shown = [math.log1p(smallest_detectable(sd, n, higher_is_better=False)) / sd for n in (pairs - 1, pairs)]
    assert shown[1] <= effect < shown[0]


@pytest.mark.parametrize("n", [2, 3, 5, 12])
@pytest.mark.parametrize("higher_is_better", [True, False])
def test_the_smallest_detectable_overhead_is_detected_as_often_as_asked(n: int, higher_is_better: bool) -> None:
    chance = np.random.default_rng(n)
    sd, campaigns = 0.03, 2000
    share = smallest_detectable(sd, n, power=0.8, higher_is_better=higher_is_better)
    ratio = 1 - share if higher_is_better else 1 + share
    guests = ratio * np.exp(chance.normal(0, sd, (campaigns, n)))
    shown = 0
    for guest in guests.tolist():
        low = estimate_overhead([1.0] * n, guest, higher_is_better=higher_is_better).low
        assert low is not None
        shown += low > 0
    # The count's own standard deviation is 0.9 %: four of them.
    assert shown / campaigns == pytest.approx(0.8, abs=0.036)


def test_more_rounds_and_less_scatter_show_smaller_overheads() -> None:
    by_rounds = [smallest_detectable(0.03, n) for n in (2, 3, 5, 10, 30)]
    assert by_rounds == sorted(by_rounds, reverse=True)
    assert smallest_detectable(0.01, 5) < smallest_detectable(0.03, 5)
    assert smallest_detectable(0.03, 5, power=0.5) < smallest_detectable(0.03, 5, power=0.9)
    assert smallest_detectable(0.0, 5) == 0


def test_two_noisy_rounds_can_only_show_a_loss_of_nearly_everything() -> None:
    assert smallest_detectable(2.0, 2) == pytest.approx(1.0)
    assert math.isfinite(smallest_detectable(2.0, 2, confidence=0.999, higher_is_better=False))


def test_scatter_is_pooled_within_groups_whose_means_differ() -> None:
    # Squares 2 and 8 over 2 and 1 degrees of freedom.
    assert pool_sd([[0.0, 1.0, 2.0], [100.0, 104.0]]) == pytest.approx(math.sqrt(10 / 3))
    assert pool_sd([[5.0], [], [1.0, 3.0]]) == pytest.approx(math.sqrt(2))


def test_groups_of_single_rounds_have_no_scatter_to_pool() -> None:
    with pytest.raises(ValueError, match="at least two rounds"):
        pool_sd([[1.0], [2.0], []])


@pytest.mark.parametrize(
    ("sd", "n", "confidence", "power"),
    [(0.03, 1, 0.95, 0.8), (-0.1, 5, 0.95, 0.8), (math.nan, 5, 0.95, 0.8), (0.03, 5, 95, 0.8), (0.03, 5, 0.95, 0.02)],
)
def test_impossible_values_are_refused(sd: float, n: int, confidence: float, power: float) -> None:
    with pytest.raises(ValueError, match=r"one sample|standard deviation|confidence must|power must"):
        smallest_detectable(sd, n, confidence=confidence, power=power)


# --- boots ---


def test_a_plan_of_several_boots_shows_what_its_means_show() -> None:
    sd_of_means = math.sqrt(0.02**2 + 0.03**2 / 10)
    shown = smallest_detectable(0.03, 10, boots=5, sd_of_boots=0.02)
    assert shown == pytest.approx(smallest_detectable(sd_of_means, 5))
    assert smallest_detectable(0.03, 10, boots=1, sd_of_boots=0.02) == smallest_detectable(0.03, 10)


def test_two_boots_show_much_less_than_five() -> None:
    two, five = (smallest_detectable(0.03, 10, boots=boots, sd_of_boots=0.01) for boots in (2, 5))
    assert two > 4 * five


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="one sample"):
        smallest_detectable(0.03, 5, boots=0)
    with pytest.raises(ValueError, match="standard deviation"):
        smallest_detectable(0.03, 5, boots=2, sd_of_boots=-1.0)
