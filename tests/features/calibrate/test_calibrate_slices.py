"""The length of a slice, and the variances that it depends on."""

from __future__ import annotations

import math
import random

import pytest

from harness.features.calibrate.noise import SliceVariance, choose_slice, estimate_variance_components


def test_the_best_slice_is_the_best_of_many() -> None:
    gap, variance = 0.4, SliceVariance(within=0.01, between=0.02)
    best = choose_slice(gap, variance.within, variance.between)

    def per_time(seconds: float) -> float:
        return (seconds + gap) * variance.of(seconds)

    assert best == pytest.approx(math.sqrt(0.4 * 0.01 / 0.02))
    assert per_time(best) < min(per_time(best * 0.8), per_time(best * 1.25))


def test_the_best_slice_is_within_its_limits() -> None:
    assert choose_slice(0.4, 1.0, 1e-6) == 3.0
    assert choose_slice(0.4, 1e-6, 1.0) == 0.2
    assert choose_slice(0.4, 1.0, 0.0) == 3.0
    assert choose_slice(0.4, 0.0, 0.0) == 0.2


def test_both_variances_are_found_in_a_series_of_short_slices() -> None:
    chance = random.Random(3)
    white = [chance.gauss(0, 0.1) for _ in range(4000)]
    found = estimate_variance_components(white, 0.2)
    assert found.within == pytest.approx(0.2 * 0.1**2, rel=0.1)
    assert found.between < 0.05 * found.of(0.2)


def test_noise_that_stays_between_neighbours_of_any_length_is_between() -> None:
    chance = random.Random(4)
    # Flicker: the sum of noises that change every 1, 4, 16 ... slices has the same variance at every length.
    levels = [0.0] * 6
    values = []
    for at in range(4096):
        for octave in range(6):
            if at % 4**octave == 0:
                levels[octave] = chance.gauss(0, 0.1)
        values.append(math.fsum(levels) + chance.gauss(0, 0.1))
    found = estimate_variance_components(values, 0.2)
    assert found.between > 0.3 * found.of(0.2)
    assert found.within > 0


def test_a_slow_drift_does_not_count() -> None:
    chance = random.Random(5)
    white = [chance.gauss(0, 0.1) for _ in range(1000)]
    drifting = [each + 0.001 * at for at, each in enumerate(white)]
    assert estimate_variance_components(drifting, 0.2).of(0.2) == pytest.approx(
        estimate_variance_components(white, 0.2).of(0.2), rel=0.1
    )


def test_equal_slices_have_no_variance() -> None:
    assert estimate_variance_components([1.0] * 64, 0.2) == SliceVariance(0.0, 0.0)


@pytest.mark.parametrize(("values", "seconds"), [([1.0] * 15, 0.2), ([1.0] * 64, 0.0), ([math.nan] * 64, 0.2)])
def test_a_series_that_shows_no_variance_is_refused(values: list[float], seconds: float) -> None:
    with pytest.raises(ValueError, match=r"slices|slice must|finite"):
        estimate_variance_components(values, seconds)


@pytest.mark.parametrize("values", [(-1.0, 1.0, 1.0), (1.0, math.nan, 1.0), (1.0, 1.0, math.inf)])
def test_impossible_variances_are_refused(values: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        choose_slice(*values)
