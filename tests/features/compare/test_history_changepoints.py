"""Change points of series whose truth is known: how often there is a false one, and where a planted one is found."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.features.compare.trends import LEAST, _compute_energies, change_points


def noise(seed: int, n: int, sd: float = 0.02) -> list[float]:
    return [float(value) for value in np.random.default_rng(seed).normal(0, sd, n)]


def planted(seed: int, n: int, at: int, change: float) -> list[float]:
    return [value + (change if number >= at else 0) for number, value in enumerate(noise(seed, n))]


@pytest.mark.parametrize("values", [noise(1, 9), [3.0, 1, 1, 2, 3, 3, 1, 2, 2, 1], planted(2, 33, 20, 0.1)])
def test_the_statistic_is_the_energy_distance_of_all_pairs(values: list[float]) -> None:
    def energy(at: int) -> float:
        parts = values[:at], values[at:]
        between, first, last = (
            np.mean([abs(a - b) for a in one for b in other])
            for one, other in (parts, (parts[0], parts[0]), (parts[1], parts[1]))
        )
        return float(at * (len(values) - at) / len(values) * (2 * between - first - last))

    places = range(LEAST, len(values) - LEAST + 1)
    assert _compute_energies(np.array(values)) == pytest.approx([energy(at) for at in places])


def test_a_change_in_the_middle_of_thousands_of_runs_is_found() -> None:
    (change,) = change_points(planted(3, 3000, 1800, 0.1))
    assert abs(change.at - 1800) <= 3


def test_at_most_one_in_200_series_without_a_change_has_a_change_point() -> None:
    assert sum(bool(change_points(noise(seed, 60))) for seed in range(200)) <= 1


@pytest.mark.parametrize("change", [-0.05, 0.1])
def test_a_planted_change_is_found_within_three_values(change: float) -> None:
    for seed in range(8):
        at = 20 + 5 * seed
        (found,) = change_points(planted(seed, 80, at, change))
        assert abs(found.at - at) <= 3
        assert found.after - found.before == pytest.approx(change, abs=0.02)
        assert found.p_value <= 0.001


def test_a_change_by_five_standard_deviations_is_found_three_values_later() -> None:
    found = [change_points(planted(seed, 60 + 3, 60, -0.1)) for seed in range(10)]
    assert [each.at for points in found for each in points] == [60] * 10


def test_several_changes_are_found_in_order() -> None:
    values = [value + (0.2 if 30 <= number < 60 else 0) for number, value in enumerate(noise(3, 90))]
    assert [point.at for point in change_points(values)] == [30, 60]


def test_a_result_can_be_reproduced() -> None:
    values = planted(5, 50, 25, 0.03)
    assert change_points(values) == change_points(values)


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 3.0, 4.0, 5.0], [2.0] * 50])
def test_few_or_equal_values_have_no_change_point(values: list[float]) -> None:
    assert change_points(values) == []


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        change_points([1.0] * 10 + [math.nan])
