"""How often an interval holds the truth if neighbouring samples are correlated, alone and in a group."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.analysis import Limit, Samples, Sequential, estimate_overhead, exceeds_p_value, pooled_correlation
from tests.simulation.campaigns import Floats, Spreads, fixed, overheads, p_values, spreads
from tests.simulation.noises import (
    Noise,
    autoregression,
    drift_inside_of_pairs,
    gamma,
    neighbour,
    normal,
    one_in_eight_is_loud,
    shared_host,
    two_kinds,
)
from tests.simulation.stated import stated

SERIES = 4800
SAMPLES = (6, 12, 30)
# Three standard deviations of a count of 95 % in 4800 are 0.9 %. The seeds are fixed.
CHANCE = 0.009
TOLERANCE = 0.004


def found(noise: Noise, n: int, cells: int, series: int = SERIES) -> Spreads:
    return spreads(noise(np.random.default_rng([n, cells]), series, n), cells)


def coverage(result: Spreads) -> float:
    """Of the series that have an interval."""
    return float(result.covers(0.0, 0.95)[result.given].mean())


@pytest.mark.parametrize("cells", [1, 12])
@pytest.mark.parametrize("n", [3, 6, 12, 30])
@pytest.mark.parametrize("noise", [normal, neighbour, autoregression(0.5), autoregression(0.97)])
def test_the_campaigns_compute_what_the_package_computes(noise: Noise, n: int, cells: int) -> None:
    log_ratios = noise(np.random.default_rng(n), 24, n)
    many, p = overheads(log_ratios, 0.99, cells), p_values(log_ratios, 0.05, cells)
    given = spreads(log_ratios, cells).given
    for index, series in enumerate(log_ratios.tolist()):
        group = log_ratios[index // cells * cells :][:cells].tolist()
        samples = Samples(correlation=pooled_correlation(group) if cells > 1 else None)
        host, guest = [1.0] * n, np.exp(series).tolist()
        one = estimate_overhead(host, guest, higher_is_better=True, confidence=0.99, samples=samples)
        assert (one.low is not None) == given[index]
        if one.low is not None:
            assert (one.low, one.high) == pytest.approx((many.low[index], many.high[index]), rel=1e-6, abs=1e-9)
            found_p = exceeds_p_value(host, guest, Limit(0.05), higher_is_better=True, samples=samples)
            assert found_p == pytest.approx(p[index], rel=1e-6)


@pytest.mark.parametrize(("column", "n"), list(enumerate(SAMPLES)))
@pytest.mark.parametrize(
    ("row", "noise"),
    [
        ("alone, log-normal", normal),
        ("alone, gamma", gamma),
        ("alone, 30 % drift that the pairs do not share", drift_inside_of_pairs),
    ],
)
def test_a_series_alone_whose_samples_are_independent_is_covered_as_stated(
    row: str, noise: Noise, column: int, n: int
) -> None:
    covered = coverage(found(noise, n, 1))
    assert 0.94 - CHANCE <= covered <= 0.97 + CHANCE
    assert covered == pytest.approx(stated(row)[column], abs=TOLERANCE)


@pytest.mark.parametrize(("column", "n"), list(enumerate(SAMPLES)))
@pytest.mark.parametrize(
    ("row", "noise", "least"),
    [
        ("alone, neighbour of 10 s", neighbour, (0.92, 0.92, 0.92)),
        ("alone, AR(1) 0.5", autoregression(0.5), (0.92, 0.92, 0.92)),
        # What six samples cannot show: the estimate has a caveat.
        ("alone, AR(1) 0.9", autoregression(0.9), (0.79, 0.92, 0.92)),
    ],
)
def test_a_series_alone_whose_samples_are_correlated_is_covered_as_stated(
    row: str, noise: Noise, least: tuple[float, ...], column: int, n: int
) -> None:
    covered = coverage(found(noise, n, 1))
    assert covered >= least[column]
    assert covered == pytest.approx(stated(row)[column], abs=TOLERANCE)


@pytest.mark.parametrize("cells", [12, 24])
@pytest.mark.parametrize(("column", "n"), list(enumerate(SAMPLES)))
@pytest.mark.parametrize(
    ("row", "noise"),
    [
        ("independent, one cell in eight with five times the noise", one_in_eight_is_loud),
        ("neighbour of 10 s", neighbour),
        ("AR(1) 0.5", autoregression(0.5)),
        ("AR(1) 0.9", autoregression(0.9)),
        ("AR(1) 0.9, four modes share their host", shared_host(0.9)),
    ],
)
def test_the_cells_of_a_group_are_covered_as_stated(row: str, noise: Noise, column: int, n: int, cells: int) -> None:
    covered = coverage(found(noise, n, cells, SERIES // 2))
    assert covered >= (0.94 - CHANCE if noise is one_in_eight_is_loud else 0.92)
    assert covered == pytest.approx(stated(f"{cells} cells, {row}")[column], abs=TOLERANCE)


@pytest.mark.parametrize(("column", "n"), list(enumerate(SAMPLES)))
def test_the_docs_state_what_a_group_of_two_kinds_of_cells_does(column: int, n: int) -> None:
    covers = found(two_kinds, n, 12).covers(0.0, 0.95)
    assert covers[1::2].mean() == pytest.approx(
        stated("12 cells, this one 0.6, half of the others 0")[column], abs=0.004
    )


def test_without_the_correlation_the_interval_is_as_wrong_as_the_docs_say() -> None:
    for row, noise in (
        ("independent t, neighbour of 10 s", neighbour),
        ("independent t, AR(1) 0.5", autoregression(0.5)),
        ("independent t, AR(1) 0.9", autoregression(0.9)),
    ):
        assert [coverage(found(noise, n, 0)) for n in SAMPLES] == pytest.approx(stated(row), abs=TOLERANCE)


def test_most_series_without_a_stable_mean_have_no_interval() -> None:
    walks: Floats = np.cumsum(np.random.default_rng(4).normal(0, 0.05, (SERIES // 4, 60)), axis=1)
    assert spreads(walks, 1).given.mean() < 0.6
    assert spreads(walks, 12).given.mean() < 0.1


# --- interim looks ---


def missed_and_false(plan: Sequential, cells: int, rho: float) -> tuple[float, float]:
    """How often any look's interval misses, and how often a cell at its budget is called exceeding."""
    log_ratios = autoregression(rho)(np.random.default_rng(8), 2400, plan.most)
    missed, false, going = (np.full(len(log_ratios), value) for value in (False, False, True))
    for look in fixed(plan):
        result = spreads(log_ratios[:, : look.rounds], cells)
        given = result.given
        missed |= given & ~result.covers(0.0, look.confidence)
        exceeds = given & (result.tails(-result.mean) * look.alpha_of_all / look.alpha <= look.error_rate)
        within = given & (result.tails(result.mean) <= (1 - look.confidence) / 2)
        false |= going & exceeds
        going &= ~(exceeds | within)
    return float(missed.mean()), float(false.mean())


@pytest.mark.parametrize(
    ("row", "plan", "cells", "rho"),
    [
        ("12 cells, independent, 3 to 27 blocks", Sequential(3, 27), 12, 0.0),
        ("12 cells, AR(1) 0.5, 3 to 27 blocks", Sequential(3, 27), 12, 0.5),
        ("12 cells, AR(1) 0.9, 6 to 30 blocks", Sequential(6, 30), 12, 0.9),
        ("a cell alone, AR(1) 0.5, 6 to 30 blocks", Sequential(6, 30), 1, 0.5),
    ],
)
def test_the_intervals_of_all_looks_hold_together_although_samples_are_correlated(
    row: str, plan: Sequential, cells: int, rho: float
) -> None:
    missed, false = missed_and_false(plan, cells, rho)
    assert missed <= 0.05
    assert false <= 0.025
    assert (missed, false) == pytest.approx(stated(row), abs=TOLERANCE)


# --- boots ---


@pytest.mark.parametrize(("column", "boots"), list(enumerate((2, 3, 5))))
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_the_means_of_boots_are_covered_as_often_as_stated(share: float, column: int, boots: int) -> None:
    chance = np.random.default_rng(boots)
    each = chance.normal(0, math.sqrt(share), (SERIES * 4, boots, 1))
    blocks = each + chance.normal(0, math.sqrt(1 - share), (SERIES * 4, boots, 10))
    means = spreads(blocks.mean(axis=2)).covers(0.0, 0.95).mean()
    assert means == pytest.approx(0.95, abs=0.005)
    if share:
        one_sample = spreads(blocks.reshape(len(blocks), -1)).covers(0.0, 0.95).mean()
        assert one_sample == pytest.approx(
            stated("every block a sample, boots are half of the variance")[column], abs=0.005
        )
        assert means == pytest.approx(stated("boots' means, boots are half of the variance")[column], abs=0.005)
